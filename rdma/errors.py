"""What the RDMA data plane raises. `gateway/errors` turns each into the answer that the wire contract gives.

    RdmaError
    ├── MalformedToken       the header is no token                               400 InvalidArgument
    ├── Declined             no transport for this token, now or at all           HTTP instead, or 501
    └── TransferFailed       a transport was chosen, the bytes did not all move
        ├── RemoteAccess     the client's memory region does not allow it         400 InvalidArgument
        └── PeerUnreachable  no connection, connection lost, time is up           503 ServiceUnavailable

Texts go to logs, never to a client.
"""

from enum import Enum


class Decline(Enum):
    """Why a request is declined; the values are labels of a metric and words of the access log."""

    OFF = "rdma_off"
    AGENT = "agent"
    NO_TRANSPORT = "no_transport"
    """The token is for RC, DC or the same host, and this server has no such transport."""
    NO_ROUTE = "no_route"
    PEER_NOT_ALLOWED = "peer_not_allowed"
    NO_SESSION = "no_session"
    NOT_PERMITTED = "not_permitted"
    """The kernel does not let this process reach the client's memory."""
    NO_BUFFER = "no_buffer"
    NO_CONNECTION = "no_connection"
    """The server has as many queue pairs as it may."""


class Failure(Enum):
    """Why a transfer failed; values as in `Decline`."""

    REMOTE_ACCESS = "remote_access"
    UNREACHABLE = "unreachable"
    REJECTED = "rejected"
    """The listener refused the connection, or did not prove that it knows the nonce."""
    CONNECTION_LOST = "connection_lost"
    TIMEOUT = "timeout"


class RdmaError(Exception):
    """Base of all."""


class MalformedToken(RdmaError):
    """The text says what is wrong with it; it may be told to the client."""


class Declined(RdmaError):
    """The server can serve the request, but not move its bytes by RDMA."""

    def __init__(self, reason: Decline, text: str = "") -> None:
        super().__init__(text or reason.value)
        self.reason = reason


class TransferFailed(RdmaError):
    """A transfer did not complete. Nothing touches a buffer of this process any more; the client's is undefined."""

    def __init__(self, reason: Failure, text: str = "") -> None:
        super().__init__(text or reason.value)
        self.reason = reason


class RemoteAccess(TransferFailed):
    """Bad rkey, or an address outside of what the client registered."""

    def __init__(self, text: str = "") -> None:
        super().__init__(Failure.REMOTE_ACCESS, text)


class PeerUnreachable(TransferFailed):
    """Raised after the one reconnect and the one retry that a transport makes."""
