"""What a case expects of an answer, and how it says that it saw something else."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from conformance.rdma.wire import Answer

REPLY = "x-amz-rdma-reply"
BYTES_TRANSFERRED = "x-amz-rdma-bytes-transferred"


class Failed(Exception):
    """The server does not do what the contract says."""

    def __init__(self, expected: object, seen: object) -> None:
        super().__init__(f"expected {expected}, saw {seen}")
        self.expected = str(expected)
        self.seen = str(seen)


class NotApplicable(Exception):
    """The case cannot be run against this server or from this machine; the text says why."""


@dataclass(frozen=True)
class Expected:
    """`status` may be one of several. `code` "" is any. `headers`: the exact value, or None for "must be absent".
    `body` None is any. `why` names the rule in words."""

    status: int | tuple[int, ...]
    code: str = ""
    headers: Mapping[str, str | None] = field(default_factory=dict)
    body: bytes | None = None
    why: str = ""

    def __str__(self) -> str:
        statuses = (self.status,) if isinstance(self.status, int) else self.status
        words = [" or ".join(map(str, statuses))]
        words += [self.code] if self.code else []
        words += [f"no {name}" if value is None else f"{name}: {value}" for name, value in self.headers.items()]
        words += [f"a body of {len(self.body)} bytes"] if self.body is not None else []
        return ", ".join(words) + (f" ({self.why})" if self.why else "")

    def check(self, answer: Answer) -> None:
        """Raises Failed."""
        statuses = (self.status,) if isinstance(self.status, int) else self.status
        wrong = answer.status not in statuses
        # A 5xx of a GET may come without a body, and so without a code, from servers that spare their clients one.
        if self.code and answer.code != self.code:
            wrong = wrong or bool(answer.code) or answer.status < 500
        wrong = wrong or any(answer.headers.get(name) != value for name, value in self.headers.items())
        if wrong:
            raise Failed(self, answer)
        if self.body is not None and answer.body != self.body:
            if len(answer.body) == len(self.body):
                raise Failed(self, f"{answer}, whose content differs")
            raise Failed(self, answer)


MALFORMED = Expected(400, "InvalidArgument", {REPLY: None})
NOT_SIGNED = Expected(403, "AccessDenied", {REPLY: None})
DECLINED = Expected(501, "NotImplemented", {REPLY: "501", BYTES_TRANSFERRED: None})


def served_over_http(body: bytes, status: int = 200) -> Expected:
    """A declined GET of a client that reads bodies: the ordinary answer, marked."""
    return Expected(status, headers={REPLY: "501", BYTES_TRANSFERRED: None}, body=body)


def moved(status: int, count: int, **headers: str) -> Expected:
    """Success of section 4: nothing in the body, `count` bytes by RDMA."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return Expected(
        status, headers={REPLY: str(status), BYTES_TRANSFERRED: str(count), "content-length": "0", **fields}, body=b""
    )


def require(condition: bool, expected: object, seen: object) -> None:
    """Raises Failed unless `condition`."""
    if not condition:
        raise Failed(expected, seen)
