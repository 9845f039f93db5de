"""The registered memory of a process: one arena, cut into staging buffers that transfers share.

A request waits for the first buffer of each step and takes further ones only when nobody waits for them, so every
request makes progress with one buffer and none can wait for another in a circle. `admission` says who is next.
"""

import asyncio
import ctypes
import mmap
from collections.abc import Hashable
from typing import Literal

from s3verbs.rdma.admission import Turns
from s3verbs.rdma.errors import Decline, Declined
from s3verbs.rdma.fabric import CHUNK

HUGE_PAGE = 2 << 20

_MAP_HUGETLB = 0x40000
_MAP_HUGE_2MB = 21 << 26
"""Of <linux/mman.h>; Python 3.11 does not name them."""

Backing = Literal["hugetlb", "transparent", "pages"]


class StagingArena:
    """One mapping of `size` bytes, rounded up to whole buffers. It lives as long as a view of it does.

    `address` is a multiple of 2 MiB. `backing` says what the kernel gave: pages of its hugetlb pool, ordinary memory
    that it may back with transparent huge pages, or ordinary memory. No page of the latter two is touched before a
    buffer is used. Made in the process that uses it: a child has no copy. Raises OSError.
    """

    def __init__(self, size: int) -> None:
        if size <= 0:
            raise ValueError("an arena needs room for one buffer")
        self.size = -(-size // CHUNK) * CHUNK
        mapped = _hugetlb(self.size)
        self.backing: Backing = "hugetlb"
        if mapped is None:
            # One huge page more than needed, so that the arena can begin at a huge page.
            mapped = mmap.mmap(-1, self.size + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.backing = "transparent" if _advise_huge(mapped) else "pages"
        # A device writes to the pages that it has registered, not to the copies that a fork would leave here.
        mapped.madvise(mmap.MADV_DONTFORK)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        skipped = -begin % HUGE_PAGE
        self.address = begin + skipped
        self.view = memoryview(mapped)[skipped : skipped + self.size]


def _hugetlb(size: int) -> mmap.mmap | None:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_HUGETLB | _MAP_HUGE_2MB
    try:
        mapped = mmap.mmap(-1, -(-size // HUGE_PAGE) * HUGE_PAGE, flags)
    except OSError:
        return None
    # The pages are reserved, yet a container's hugetlb limit strikes only when they are touched, by SIGBUS. A system
    # call that touches them fails instead. The memory is spoken for either way.
    try:
        with open("/dev/zero", "rb", buffering=0) as zeros:  # noqa: PTH123  unbuffered, and readinto
            filled = zeros.readinto(mapped)
    except OSError:
        filled = 0
    if filled == len(mapped):
        return mapped
    mapped.close()
    return None


def _advise_huge(mapped: mmap.mmap) -> bool:
    try:
        mapped.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return False
    return True


class StagingBuffer:
    """A RegisteredBuffer. `lease` is a new number each time the buffer is acquired, and 0 while it is idle."""

    __slots__ = ("address", "lease", "peer", "view")

    def __init__(self, view: memoryview, address: int) -> None:
        self.view = view
        self.address = address
        self.lease = 0
        self.peer: Hashable = None


class StagingPool:
    """All buffers of an arena. Loop thread only.

    `peer` is the key that buffers are shared by, see `admission`; None stands for a user without a share.
    """

    def __init__(self, arena: StagingArena, *, patience: float) -> None:
        self.arena = arena
        self.total = arena.size // CHUNK
        self.most_used = 0
        """The most buffers that were ever held at once."""
        self._patience = patience
        self._leases = 0
        self._turns: Turns[asyncio.Future[StagingBuffer]] = Turns()
        # Taken from the end: the one used last, whose pages are there; at first the one with the lowest address.
        self._idle = [
            StagingBuffer(arena.view[at : at + CHUNK], arena.address + at)
            for at in range((self.total - 1) * CHUNK, -1, -CHUNK)
        ]

    @property
    def idle(self) -> int:
        """Buffers that nobody holds."""
        return len(self._idle)

    @property
    def waiting(self) -> int:
        """Requests that wait for a buffer."""
        return self._turns.waiting

    async def acquire(self, peer: Hashable = None) -> StagingBuffer:
        """A buffer, in turn; its content is undefined. Raises Declined(NO_BUFFER) after `patience` seconds."""
        buffer = self.try_acquire(peer)
        if buffer is not None:
            return buffer
        waiter: asyncio.Future[StagingBuffer] = asyncio.get_running_loop().create_future()
        self._turns.wait(peer, waiter)
        try:
            await asyncio.wait((waiter,), timeout=self._patience)
        except asyncio.CancelledError:
            if waiter.done():
                self.release(waiter.result())
            else:
                self._turns.withdraw(peer, waiter)
            raise
        if waiter.done():
            return waiter.result()
        self._turns.withdraw(peer, waiter)
        raise Declined(Decline.NO_BUFFER, f"no staging buffer came free in {self._patience:g} s")

    def try_acquire(self, peer: Hashable = None) -> StagingBuffer | None:
        """A buffer if one is idle that nobody waits for and `peer` may have."""
        return self._lend(peer) if self._turns.may_take(peer, len(self._idle)) else None

    def release(self, buffer: StagingBuffer) -> None:
        """Give it back; nothing may still use it. Raises RuntimeError when it is not held: it would get two users."""
        if not buffer.lease:
            raise RuntimeError("a staging buffer was released twice")
        self._turns.given_back(buffer.peer)
        buffer.lease = 0
        buffer.peer = None
        self._idle.append(buffer)
        while (turn := self._turns.next(len(self._idle))) is not None:
            peer, waiter = turn
            waiter.set_result(self._lend(peer))

    def _lend(self, peer: Hashable) -> StagingBuffer:
        buffer = self._idle.pop()
        self._leases += 1
        buffer.lease = self._leases
        buffer.peer = peer
        self._turns.taken(peer)
        self.most_used = max(self.most_used, self.total - len(self._idle))
        return buffer
