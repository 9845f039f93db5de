"""Memory that a device may reach: the staging arena of a server, or a client's buffers."""

import errno
import os

from s3verbs.rdma.fabric import Arena
from s3verbs.rdma.verbs.api import MemoryRegion, ProtectionDomain
from s3verbs.rdma.verbs.attributes import LocalSpan
from s3verbs.rdma.verbs.constants import Access
from s3verbs.rdma.verbs.errors import VerbsError, VerbsUnavailable

LOCAL = Access.LOCAL_WRITE
"""A server's arena: its own queue pairs read and write it, and no peer ever does."""

REMOTE = Access.LOCAL_WRITE | Access.REMOTE_READ | Access.REMOTE_WRITE
"""A client's buffer."""

_MEMLOCK = (errno.ENOMEM, errno.EAGAIN)


def register(domain: ProtectionDomain, address: int, size: int, access: Access) -> MemoryRegion:
    """Pin `size` bytes at `address`; they stay mapped until the region is closed. Takes about 0.1 s per GiB. Raises
    VerbsUnavailable, which says what would change it: the limit of locked memory, or pages that cannot be pinned."""
    try:
        return MemoryRegion(domain, address, size, access)
    except VerbsError as error:
        where = f"{size} bytes could not be registered with {domain.context.name}"
        if error.code in _MEMLOCK:
            raise VerbsUnavailable(
                f"{where}: raise the limit of locked memory (ulimit -l, LimitMEMLOCK=infinity, memlock in limits.conf)"
            ) from error
        text = os.strerror(error.code) if error.code else str(error)
        raise VerbsUnavailable(f"{where}: {text}") from error


class RegisteredArena:
    """The staging arena as one device knows it."""

    def __init__(self, domain: ProtectionDomain, arena: Arena) -> None:
        """Raises VerbsUnavailable."""
        self._first = arena.address
        self._end = arena.address + arena.size
        self._region = register(domain, arena.address, arena.size, LOCAL)

    def span(self, address: int, length: int) -> LocalSpan:
        """Raises ValueError for bytes outside of the arena: no device would take them."""
        if length <= 0 or address < self._first or address + length > self._end:
            raise ValueError(f"{length} bytes at {address:#x} are not in the staging arena")
        return LocalSpan(address, length, self._region.lkey)

    def close(self) -> None:
        """After the last queue pair that used it."""
        self._region.close()
