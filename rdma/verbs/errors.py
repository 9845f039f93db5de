"""What the verbs modules raise among themselves; `fabric` turns it into what the RDMA data plane raises."""


class VerbsUnavailable(Exception):
    """No verbs on this machine; the text says what is missing and what would change it."""


class VerbsError(Exception):
    """A call of the verbs library failed. `code` is an errno, or 0 when the library gave none."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code
