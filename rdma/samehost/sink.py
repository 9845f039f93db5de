"""A PayloadSink that writes payload files straight into the memory of a client on this host: one copy, no buffer.

The range of the file is mapped, and the kernel copies from the page cache into the client. Measured on 8 MiB in the
page cache, against a bare process_vm_writev between two buffers: going through a small buffer takes 1.2 to 1.5 of its
time, mapping the range and unmapping it again 1.14. Back-to-back GETs of one object share a mapping (see `mappings`).
"""

import ctypes
import functools
import os
import threading

from s3verbs.rdma.errors import RemoteAccess
from s3verbs.rdma.samehost.fabric import CALL_BYTES, SameHostRegion
from s3verbs.rdma.samehost.mappings import Mapping

PARALLEL = min(4, os.cpu_count() or 1)
"""Threads that copy one range; two take about half of the time of one where two cores are idle."""

LEAST_PIECE = 1 << 20
"""Bytes that a thread takes at a time, at least, where several copy: less is not worth the call."""


class MappedSink:
    """Loop thread only. `moved` counts the bytes that are in the client's memory; they lie there in the order of the
    calls. The region stays the caller's.

    The head is not sent: nothing of a response may be seen before the last byte is in place.
    """

    committed = False

    def __init__(self, region: SameHostRegion) -> None:
        self._region = region
        self.moved = 0

    async def start(self, head: bytes) -> None:
        """Takes the head from the loop that delivers, and drops it."""

    async def send(self, data: bytes) -> None:
        """Raises what RemoteRegion.write raises."""
        if data:
            self._expect(len(data))
            await self._region.run(functools.partial(_place, self._region, self.moved, data))
            self.moved += len(data)

    async def send_file(self, fd: int, offset: int, length: int) -> None:
        """On return the bytes are in the client's memory. Raises EOFError, OSError when the drive cannot read, and what
        RemoteRegion.write raises."""
        if not length:
            return
        self._expect(length)
        fabric = self._region.fabric
        # Requests beside each other use the cores already; several threads for one would only cost.
        threads = 1 if fabric.copying else max(1, min(PARALLEL, length // LEAST_PIECE))
        mapping = fabric.mappings.take(fd, offset, length)
        copy = _Copy(self._region, self.moved, fd, offset, mapping, threads)
        fabric.copying += 1
        whole = False
        try:
            await self._region.run(copy.help, threads=threads, stop=copy.stop)
            # Within its last page a mapping reads zeros past the end of the file.
            if os.fstat(fd).st_size < offset + length:
                raise EOFError("a payload file is shorter than its record says")
            whole = True
        finally:
            fabric.copying -= 1
            fabric.mappings.give_back(mapping, keep=whole)
        self.moved += length

    async def finish(self) -> None:
        """Nothing is left to do: each call waits for its bytes."""

    async def close(self) -> None:
        """On the error path; nothing is left to stop."""

    def _expect(self, length: int) -> None:
        if self.moved + length > self._region.size:
            raise RemoteAccess(f"{self.moved + length} bytes for a buffer of {self._region.size}")


class _Copy:
    """One range of a file on its way. `help` runs on one thread or on several."""

    def __init__(self, region: SameHostRegion, at: int, fd: int, offset: int, mapping: Mapping, threads: int) -> None:
        self._region = region
        self._at = at
        self._fd = fd
        self._offset = offset
        self._mapping = mapping
        self._threads = threads
        self._left = mapping.length
        self._taking = threading.Lock()

    def help(self) -> None:
        """Copy pieces until there are no more."""
        try:
            address = self._mapping.address()
            while piece := self._take():
                self._copy(address, *piece)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Nobody takes another piece."""
        with self._taking:
            self._left = 0

    def _take(self) -> tuple[int, int] | None:
        """Start and size of the next piece. Smaller towards the end, so that threads which woke up at different times
        end at the same."""
        with self._taking:
            left = self._left
            if not left:
                return None
            share = left if self._threads == 1 else max(left // (2 * self._threads), LEAST_PIECE)
            count = min(share, left, CALL_BYTES)
            self._left = left - count
            return self._mapping.length - left, count

    def _copy(self, address: int, start: int, count: int) -> None:
        if not address:
            # A file system that cannot map files is read instead.
            _place(self._region, self._at + start, self._read(start, count))
            return
        self._mapping.populate(start, count)
        try:
            self._region.place(self._at + start, address + start, count)
        except RemoteAccess:
            # Our side of the copy may be at fault: then reading says so.
            self._read(start, count)
            raise

    def _read(self, start: int, count: int) -> bytes:
        data = os.pread(self._fd, count, self._offset + start)
        if len(data) < count:
            raise EOFError("a payload file is shorter than its record says")
        return data


def _place(region: SameHostRegion, offset: int, data: bytes) -> None:
    local = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
    assert local is not None
    region.place(offset, local, len(data))
