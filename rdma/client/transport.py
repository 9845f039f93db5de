"""The client's port to what exposes its memory: rdma_cm listener and memory regions, or a same-host session."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from s3verbs.rdma.token import Transport


@dataclass(frozen=True, slots=True)
class Memory:
    """A caller's buffer: `size` bytes at virtual address `address`. `owner` keeps it alive.

    For GPU memory `gpu` is the device's ordinal, and `dmabuf` opens a dma-buf over it: (descriptor, offset of `address`
    in it); the caller of `dmabuf` closes the descriptor. It raises OSError where the driver has none; the address
    itself may be registered then, which the nvidia-peermem module allows. Host memory has None for both.
    """

    address: int
    size: int
    owner: object
    gpu: int | None = None
    dmabuf: Callable[[], tuple[int, int]] | None = None


class TransportUnavailable(Exception):
    """This transport cannot be used here, or not for this memory; the text says why and what would change it."""


class Registration(Protocol):
    """Memory that a server can reach. Any thread."""

    def token(self, offset: int, size: int) -> str:
        """A token for [offset, offset + size) of the memory, valid until `revoke`."""

    def revoke(self) -> bool:
        """Take the memory back. True: on return no server can touch it any more. False: the transport could not make
        sure (peer gone silent); the memory stays in quarantine and `revoke` can be called again. Blocking, bounded
        by some seconds."""


class ClientTransport(Protocol):
    """One way of exposing memory, shared by all regions of a client. Any thread."""

    @property
    def transport(self) -> Transport: ...

    def register(self, memory: Memory) -> Registration:
        """Raises TransportUnavailable."""

    def close(self) -> None:
        """Revokes what is still registered."""
