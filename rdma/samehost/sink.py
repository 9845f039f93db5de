"""A PayloadSink that writes payload files straight into the memory of a client on this host: one copy, no buffer.

The range of the file is mapped, and the kernel copies from the page cache into the client. Our own process never
touches a mapped page, so a file that was cut short meanwhile is an error of a system call and never a SIGBUS.
Measured on 8 MiB in the page cache, against a bare loop of process_vm_writev between two buffers: mapping the whole
range for each request takes 1.0 of its time, going through a small buffer 1.2 to 1.5, keeping mappings between requests
0.93. Kept mappings would hold deleted files, so they are not kept.
"""

import asyncio
import ctypes
import itertools
import mmap
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future

from s3verbs.rdma.errors import RemoteAccess
from s3verbs.rdma.samehost.fabric import SameHostRegion
from s3verbs.rdma.settle import outlast

PIECES = (1 << 20, 2 << 20)
"""Bytes that a thread copies before it takes the next piece, at least and at most: larger ones cost fewer calls,
smaller ones let a thread that woke late still take its share."""
PARALLEL = min(4, os.cpu_count() or 1)
"""Threads that copy one range; two take about half of the time of one where two cores are idle."""

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


class MappedSink:
    """Loop thread only. `moved` counts the bytes that are in the client's memory; they lie there in the order of the
    calls. The region stays the caller's.

    The head is not sent: nothing of a response may be seen before the last byte is in place.
    """

    committed = False

    def __init__(self, region: SameHostRegion, executor: Executor) -> None:
        self._region = region
        self._executor = executor
        self.moved = 0

    async def start(self, head: bytes) -> None:
        """Takes the head from the loop that delivers, and drops it."""

    async def send(self, data: bytes) -> None:
        """Raises what RemoteRegion.write raises."""
        if data:
            self._expect(len(data))
            await self._region.run(self._executor, _place, self._region, self.moved, data)
            self.moved += len(data)

    async def send_file(self, fd: int, offset: int, length: int) -> None:
        """On return the bytes are in the client's memory. Raises EOFError, OSError when the drive cannot read, and what
        RemoteRegion.write raises."""
        if not length:
            return
        self._expect(length)
        share = -(-length // PARALLEL)
        piece = min(max(share, PIECES[0]), PIECES[1])
        copy = _Copy(self._region, self.moved, fd, offset, length, piece)
        fabric = self._region.fabric
        # Requests beside each other use the cores already; several threads for one would only cost.
        helpers = min(PARALLEL, -(-length // piece)) - 1 if not fabric.copying else 0
        fabric.copying += 1
        # They wake up while the leader makes the mapping.
        helping = [self._executor.submit(copy.help) for _ in range(helpers)]
        try:
            await self._region.run(self._executor, copy.lead, helping)
        except BaseException:
            # A leader that never began leaves helpers behind.
            copy.stop()
            for helper in helping:
                if not helper.cancel():
                    await outlast(asyncio.wrap_future(helper))
            copy.unmap()
            raise
        finally:
            fabric.copying -= 1
        self.moved += length

    async def finish(self) -> None:
        """Nothing is left to do: each call waits for its bytes."""

    async def close(self) -> None:
        """On the error path; nothing is left to stop."""

    def _expect(self, length: int) -> None:
        if self.moved + length > self._region.size:
            raise RemoteAccess(f"{self.moved + length} bytes for a buffer of {self._region.size}")


class _Copy:
    """One range of a file on its way. `lead` runs on one thread, `help` on others."""

    def __init__(self, region: SameHostRegion, at: int, fd: int, offset: int, length: int, piece: int) -> None:
        self._region = region
        self._at = at
        self._fd = fd
        self._offset = offset
        self._length = length
        self._piece = piece
        self._starts = itertools.count(0, piece)
        self._failure: BaseException | None = None
        self._page = offset % mmap.PAGESIZE
        self._map = 0
        self._mapping = threading.Lock()
        self._mapped = False
        self._stopped = False

    def lead(self, helping: "Sequence[Future[None]]") -> None:
        """Copy all of it. On return no thread works on it any more."""
        try:
            self._expect_size()
            self.help()
        except BaseException as error:
            self._failure = self._failure or error
            raise
        finally:
            for helper in helping:
                # One that has not begun has nothing to do any more; its thread may be busy for long.
                if not helper.cancel():
                    helper.result()
            self.unmap()
        if self._failure is not None:
            raise self._failure
        # Within its last page a mapping reads zeros past the end of the file.
        self._expect_size()

    def help(self) -> None:
        """Copy pieces until there are no more."""
        with self._mapping:
            if not self._mapped and not self._stopped and self._failure is None:
                self._make_mapping()
        self._work()

    def stop(self) -> None:
        """Nobody takes another piece."""
        self._stopped = True

    def unmap(self) -> None:
        """After the last thread; a second call does nothing."""
        if self._map:
            _libc.munmap(self._map - self._page, self._page + self._length)
            self._map = 0

    def _make_mapping(self) -> None:
        self._mapped = True
        extent = self._page + self._length
        mapped = _libc.mmap(None, extent, mmap.PROT_READ, mmap.MAP_SHARED, self._fd, self._offset - self._page)
        # A file system that cannot map files is read instead.
        self._map = 0 if mapped == _FAILED else mapped + self._page

    def _work(self) -> None:
        try:
            for start in self._starts:
                if start >= self._length or self._stopped or self._failure is not None:
                    return
                self._copy(start, min(self._piece, self._length - start))
        except BaseException as error:  # noqa: BLE001 raised by `lead`, once all threads are done
            self._failure = error

    def _copy(self, start: int, count: int) -> None:
        if not self._map:
            _place(self._region, self._at + start, self._read(start, count))
            return
        local = self._map + start
        aligned = local & -mmap.PAGESIZE
        # Page tables in one go instead of by faults; where the kernel is too old the faults do it.
        _libc.madvise(aligned, local + count - aligned, _POPULATE_READ)
        try:
            self._region.place(self._at + start, local, count)
        except RemoteAccess:
            # Our side of the copy may be at fault: then reading says so.
            self._read(start, count)
            raise

    def _read(self, start: int, count: int) -> bytes:
        data = os.pread(self._fd, count, self._offset + start)
        if len(data) < count:
            raise EOFError("a payload file is shorter than its record says")
        return data

    def _expect_size(self) -> None:
        if os.fstat(self._fd).st_size < self._offset + self._length:
            raise EOFError("a payload file is shorter than its record says")


def _place(region: SameHostRegion, offset: int, data: bytes) -> None:
    local = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
    assert local is not None
    region.place(offset, local, len(data))
