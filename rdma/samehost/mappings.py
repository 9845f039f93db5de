"""Ranges of payload files in our address space, kept for a moment after their last use. See
docs/decisions/file-mappings-are-kept.md.

Our own process never touches a mapped page, only the kernel does when it copies: a file that was cut short meanwhile is
an error of a system call and never a SIGBUS.
"""

import asyncio
import ctypes
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

KEEP_SECONDS = 1.0
"""How long a mapping is kept after its last use, and so how long a deleted file may keep its space."""
KEPT_BYTES = 1 << 30
"""Of all mappings of a worker. Page tables for them take 2 MiB."""
KEPT_RANGES = 256

_POPULATE_READ = 22
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

Key = tuple[int, ...]


class Mapping:
    """`length` bytes at `offset` of a file. Mapped by the first thread that needs it.

    `users` and `idle_since` (the loop's time) belong to the loop thread.
    """

    def __init__(self, key: Key, fd: int, offset: int, length: int) -> None:
        """`fd` has to stay open until `address` was called."""
        self.key = key
        self.length = length
        self.users = 0
        self.idle_since = 0.0
        self.populated = False
        self._fd = fd
        self._offset = offset
        self._page = offset % mmap.PAGESIZE
        self._lock = threading.Lock()
        self._tried = False
        self._address = 0

    def address(self) -> int:
        """Of the range's first byte; 0 when the file cannot be mapped. Any thread."""
        with self._lock:
            if not self._tried:
                self._tried = True
                self._map()
            return self._address

    def populate(self, start: int, count: int) -> None:
        """Fill the page tables for that part in one go instead of by faults; where the kernel is too old the faults do
        it. Any thread, after `address`."""
        if not self.populated:
            aligned = (self._address + start) & -mmap.PAGESIZE
            _libc.madvise(aligned, self._address + start + count - aligned, _POPULATE_READ)

    def unmap(self) -> None:
        """After the last use. A second call does nothing."""
        if self._address:
            _libc.munmap(self._address - self._page, self._page + self.length)
            self._address = 0

    def _map(self) -> None:
        try:
            # A mapping keeps what it was made from open, and with it a flock that a reader holds until it closes.
            own = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            extent = self._page + self.length
            mapped = _libc.mmap(None, extent, mmap.PROT_READ, mmap.MAP_SHARED, own, self._offset - self._page)
        finally:
            os.close(own)
        if mapped != _FAILED:
            self._address = mapped + self._page


class FileMappings:
    """The mappings of one worker. Loop thread only; what is let go is unmapped on a thread."""

    def __init__(self, *, seconds: float = KEEP_SECONDS, bytes: int = KEPT_BYTES, ranges: int = KEPT_RANGES) -> None:
        self._seconds = seconds
        self._most_bytes = bytes
        self._most_ranges = ranges
        self._kept: OrderedDict[Key, Mapping] = OrderedDict()
        """Those in use and those that are kept; the latter in the order of `idle_since`."""
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def take(self, fd: int, offset: int, length: int) -> Mapping:
        """A mapping of that range, until `give_back`. Raises EOFError when the file is shorter, OSError."""
        status = os.fstat(fd)
        if status.st_size < offset + length:
            raise EOFError("a payload file is shorter than its record says")
        # While it is mapped the inode lives on, so its number names no other file. The times and the size tell a file
        # that was written to, or whose last name is gone, from what was mapped; payload files are never written to.
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, offset, length)
        mapping = self._kept.get(key)
        if mapping is None:
            mapping = Mapping(key, fd, offset, length)
            if self._make_room(length):
                self._kept[key] = mapping
                self._bytes += length
        mapping.users += 1
        return mapping

    def give_back(self, mapping: Mapping, *, keep: bool) -> None:
        """`keep`: all of it was copied."""
        mapping.users -= 1
        if keep:
            mapping.populated = True
        elif self._kept.get(mapping.key) is mapping:
            self._forget(mapping)
        if mapping.users:
            return
        if self._kept.get(mapping.key) is not mapping:
            self._unmap((mapping,))
            return
        loop = asyncio.get_running_loop()
        mapping.idle_since = loop.time()
        self._kept.move_to_end(mapping.key)
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._expire)

    def close(self) -> None:
        """Unmap what is not in use. What still is, as a client's memory does not answer, stays for `give_back`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for mapping in list(self._kept.values()):
            self._forget(mapping)
            if not mapping.users:
                mapping.unmap()

    def _make_room(self, length: int) -> bool:
        """Whether a mapping of `length` bytes can be kept."""
        if length > self._most_bytes:
            return False
        if self._bytes + length > self._most_bytes or len(self._kept) == self._most_ranges:
            # A quarter at once: unmapping takes the same lock of the kernel as mapping does, and a thread.
            self._let_go(self._most_bytes * 3 // 4 - length, self._most_ranges * 3 // 4)
        return self._bytes + length <= self._most_bytes and len(self._kept) < self._most_ranges

    def _let_go(self, bytes: int, ranges: int) -> None:
        """Of those that are not in use, the ones unused for longest, until no more than that is left."""
        gone = []
        for mapping in list(self._kept.values()):
            if self._bytes <= bytes and len(self._kept) <= ranges:
                break
            if not mapping.users:
                self._forget(mapping)
                gone.append(mapping)
        self._unmap(gone)

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        idle = [mapping for mapping in self._kept.values() if not mapping.users]
        gone = [mapping for mapping in idle if mapping.idle_since + self._seconds <= loop.time()]
        for mapping in gone:
            self._forget(mapping)
        self._unmap(gone)
        if len(gone) < len(idle):
            self._timer = loop.call_at(idle[len(gone)].idle_since + self._seconds, self._expire)

    def _forget(self, mapping: Mapping) -> None:
        del self._kept[mapping.key]
        self._bytes -= mapping.length

    def _unmap(self, mappings: Sequence[Mapping]) -> None:
        # Not on the threads that copy: clients can keep all of those waiting.
        if mappings:
            asyncio.get_running_loop().run_in_executor(None, _unmap_all, mappings)


def _unmap_all(mappings: Iterable[Mapping]) -> None:
    for mapping in mappings:
        mapping.unmap()
