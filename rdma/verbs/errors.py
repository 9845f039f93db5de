"""What the verbs modules raise among themselves; `fabric` turns it into what the RDMA data plane raises."""

from s3verbs.rdma.errors import Failure


class VerbsUnavailable(Exception):
    """No verbs on this machine; the text says what is missing and what would change it."""


class VerbsError(Exception):
    """A call of the verbs library failed. `code` is an errno, or 0 when the library gave none."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class ConnectFailed(Exception):
    """No connection to a peer. `local`: it is this machine's side that failed (device, port, route), so that another
    rail may do; otherwise the peer's, and `reason` says how."""

    def __init__(self, reason: Failure, text: str, *, local: bool = False) -> None:
        super().__init__(text)
        self.reason = reason
        self.local = local


class ConnectionLost(Exception):
    """A connection ended, or a time ran out, before a transfer did. Nothing touches its buffer any more; it may be
    tried again on another connection. `reason` is CONNECTION_LOST or TIMEOUT."""

    def __init__(self, reason: Failure, text: str) -> None:
        super().__init__(text)
        self.reason = reason
