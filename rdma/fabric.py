"""The port between payload loops and what moves bytes: verbs, the same host, or a fabric of the tests.

    Fabric.open(token) -> RemoteRegion      one request's lease on a client's buffer
    RemoteRegion.read / write               one chunk between that buffer and a registered buffer of this process

READ and WRITE are named from the server's side: a PUT reads the client's memory, a GET writes it.
"""

from typing import Protocol

from s3verbs.rdma.token import Token, Transport

CHUNK = 1 << 20
"""Bytes of a registered buffer, and so the most that one read or write moves. Soft-RoCE's limit is 8 MiB."""


class Arena(Protocol):
    """The memory that all registered buffers of a process lie in: registered once with each device. Page-aligned."""

    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...


class RegisteredBuffer(Protocol):
    """CHUNK bytes of the arena, page-aligned. Owned by whoever acquired it from the staging pool."""

    @property
    def view(self) -> memoryview: ...
    @property
    def address(self) -> int: ...


class RemoteRegion(Protocol):
    """The client's buffer as one request sees it. Loop thread only.

    Several reads and writes may be in progress at once; they complete in any order. Whatever ends one (return, error,
    cancellation), nothing touches `into` or `data` after it: an implementation flushes the queue pair first.

    They raise RemoteAccess; PeerUnreachable after the reconnect and retry that are theirs to make;
    Declined(NOT_PERMITTED) when the kernel forbids it, before any byte has moved.
    """

    @property
    def size(self) -> int:
        """The token's size, in bytes. Offsets below are from the token's address."""

    @property
    def transport(self) -> Transport: ...

    @property
    def device(self) -> str:
        """The RDMA device for logs, or ""."""

    async def read(self, offset: int, into: RegisteredBuffer, length: int) -> None:
        """Client memory [offset, offset + length) -> the first `length` bytes of `into`."""

    async def write(self, offset: int, data: RegisteredBuffer, length: int, start: int = 0) -> None:
        """`length` bytes of `data` from `start` on -> client memory at `offset`. On return they are placed there."""

    async def close(self) -> None:
        """Give the lease back; waits for nothing but what the calls above are still doing. Never raises."""


class Fabric(Protocol):
    """Everything of one process that speaks one or several transports. Loop thread only."""

    @property
    def transports(self) -> frozenset[Transport]: ...

    async def open(self, token: Token) -> RemoteRegion:
        """Raises Declined (no session, no route, peer not allowed, too many connections), PeerUnreachable."""

    @property
    def connections(self) -> int:
        """Queue pairs that are connected; 0 where there are none."""

    def describe(self) -> str:
        """One line for the banner, /health and the log: devices, addresses."""

    async def close(self) -> None:
        """After the last request."""
