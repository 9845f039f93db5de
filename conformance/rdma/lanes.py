"""The port to what exposes this process's memory to a server: one lane per transport. Shared by all cases."""

from typing import Protocol

from conformance.rdma.memory import Memory


class LaneUnavailable(Exception):
    """This machine cannot try the transport; the text says why."""


class Exposure(Protocol):
    """Memory that the server can reach, until `close`."""

    def token(self, offset: int, size: int) -> str:
        """A token for [offset, offset + size) of the memory, also for ranges that are not in it."""

    def close(self) -> None: ...


class Lane(Protocol):
    """One transport, from the client's side. Any thread."""

    @property
    def name(self) -> str:
        """samehost or rc."""

    def expose(self, memory: Memory) -> Exposure:
        """Let the server reach exactly the memory between the guards."""

    def wrong_tokens(self, memory: Memory, exposure: Exposure) -> dict[str, str]:
        """Tokens of a live client that aim where the server may not reach: 400 InvalidArgument."""

    def dead_tokens(self) -> dict[str, tuple[str, int]]:
        """Tokens of a client that is gone or does not answer, and the status that a PUT gets: 501 (decline) or 503."""

    def close(self) -> None: ...
