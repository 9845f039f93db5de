"""Reads of one open file into staging buffers: from the page cache where the bytes are there, else by O_DIRECT."""

import errno
import os

ALIGNMENT = 4096
"""Bytes that offset, length and address of a direct read are multiples of."""


class FileReads:
    """Reads of the caller's `fd`, which is used until `close`; it need not be O_DIRECT.

    A read fills into[begin:end] from [offset + begin, offset + end) of the file. `into` and `offset` are aligned;
    `end` rounded up to ALIGNMENT still lies in `into`, whose bytes around [begin, end) may be overwritten.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._direct: int | None = None

    def cached(self, into: memoryview, offset: int, begin: int, end: int) -> int:
        """Read what the page cache has, up to the first gap: the count of bytes. It does not wait for a drive."""
        try:
            return os.preadv(self._fd, [into[begin:end]], offset + begin, os.RWF_NOWAIT)
        except OSError:
            # Not in the cache, or a file system that cannot tell. What is really wrong shows in `read`.
            return 0

    def prepare(self) -> None:
        """Before the first `read`: open the file a second time, with O_DIRECT where the file system has it. The kernel
        finds the file by the descriptor, so it may have no name any more."""
        if self._direct is None:
            try:
                self._direct = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
            except OSError:
                self._direct = -1

    def read(self, into: memoryview, offset: int, begin: int, end: int) -> None:
        """Read all of it; belongs on an executor thread. Raises EOFError when the file is shorter, OSError."""
        if self._direct is not None and self._direct >= 0:
            begin = self._read_direct(self._direct, into, offset, begin, end)
        while begin < end:
            count = os.preadv(self._fd, [into[begin:end]], offset + begin)
            if count == 0:
                raise EOFError("a payload file is shorter than its record says")
            begin += count

    def close(self) -> None:
        """After the last read."""
        if self._direct is not None and self._direct >= 0:
            os.close(self._direct)
        self._direct = None

    @staticmethod
    def _read_direct(direct: int, into: memoryview, offset: int, begin: int, end: int) -> int:
        """Where the bytes end that could be read so: at `end`, at the end of the file, or where alignment of
        ALIGNMENT is not enough for the drive."""
        at = begin - begin % ALIGNMENT
        limit = end + -end % ALIGNMENT
        while at < end:
            try:
                count = os.preadv(direct, [into[at:limit]], offset + at)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                count = 0
            if at + count >= end:
                return end
            if count < ALIGNMENT:
                break
            at += count - count % ALIGNMENT
        return max(begin, at)
