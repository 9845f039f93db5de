"""What a server offers, found out by asking: dialects, token extensions, transports."""

from dataclasses import dataclass, field

from conformance.rdma.expect import REPLY
from conformance.rdma.lanes import Lane
from conformance.rdma.token import unroutable
from conformance.rdma.trial import CONTENT, CUOBJ, DIALECTS, Dialect, Trial
from conformance.rdma.wire import Server

SPOKEN = "spoken"


@dataclass
class Offers:
    """Each value is SPOKEN or what was seen instead. `transports` has also those that could not be tried here."""

    dialects: dict[str, str] = field(default_factory=dict)
    extensions: dict[str, str] = field(default_factory=dict)
    transports: dict[str, str] = field(default_factory=dict)
    demanded: list[str] = field(default_factory=list)
    """Names of dialects that are tested although the server was not seen to speak them."""

    def tests(self, dialect: Dialect) -> bool:
        return self.dialects.get(dialect.header) == SPOKEN or dialect.name in self.demanded


def dialects(server: Server, bucket: str, prefix: str) -> dict[str, str]:
    """A PUT with a token that goes nowhere: a server that knows the header never answers it with an ordinary 200."""
    found = {}
    for dialect in DIALECTS:
        trial = Trial(server, bucket, prefix)
        try:
            answer = trial.send("PUT", trial.key(), headers={dialect.header: unroutable()[""]})
        finally:
            trial.close()
        if answer.status == 501 or (REPLY in answer.headers and answer.status >= 300):
            found[dialect.header] = SPOKEN
        elif answer.status < 300:
            found[dialect.header] = f"ignored: the PUT was answered {answer}, which a client takes for a stored object"
        else:
            found[dialect.header] = f"refused: {answer}"
    return found


def extensions(server: Server, bucket: str, prefix: str) -> dict[str, str]:
    """A server without an extension takes its suffix for a malformed token."""
    found = {}
    for name, text in unroutable().items():
        if name:
            trial = Trial(server, bucket, prefix)
            try:
                answer = trial.send("PUT", trial.key(), headers={CUOBJ.header: text})
            finally:
                trial.close()
            found[name] = SPOKEN if answer.status in (501, 503) else f"not spoken: {answer}"
    return found


def moves(server: Server, bucket: str, prefix: str, lane: Lane) -> str:
    """SPOKEN when a PUT through `lane` moved bytes; what was seen otherwise."""
    trial = Trial(server, bucket, prefix, lane)
    try:
        token = trial.buffer(len(CONTENT), CONTENT).token()
        answer = trial.send("PUT", trial.key(), headers={CUOBJ.header: token})
    finally:
        trial.close()
    if answer.status == 501:
        return f"declined: {answer}"
    return SPOKEN if answer.status < 300 else f"refused: {answer}"
