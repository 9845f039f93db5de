"""Aligned buffers, whole reads and writes, preallocation, and what the kernel's errors mean for the store.

Everything here blocks and belongs on an executor thread; the calls that move bytes release the GIL.
"""

import ctypes
import errno
import mmap
import os
import threading

from s3verbs.storage.errors import PayloadDamaged, StorageBusy, StorageError, StorageFull, StoreUnusable
from s3verbs.storage.payload_file import ALIGNMENT

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_BUSY = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
_BROKEN = frozenset(
    {
        errno.EIO,
        errno.EROFS,
        errno.ENXIO,
        errno.ENODEV,
        errno.ESTALE,
        errno.EACCES,
        errno.EPERM,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EUCLEAN,
    }
)
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_libc.fallocate.restype = ctypes.c_int


def write_error(error: OSError, what: str) -> StorageError:
    """The storage error for a failed write, create, link or sync of `what`."""
    number = error.errno
    if number in _FULL:
        return StorageFull(f"{what}: {error.strerror}")
    if number == errno.EFBIG:
        return StorageFull(f"{what}: larger than the file system or the process's file size limit allows")
    if number in _BUSY:
        return StorageBusy(f"{what}: {error.strerror}")
    if number in _BROKEN:
        return StoreUnusable(f"{what}: {error.strerror}; check the drive, its mount and the permissions")
    return StorageError(f"{what}: {error.strerror}")


def read_error(error: OSError, what: str) -> StorageError:
    """The storage error for a failed open or read of `what`, other than a file that is gone."""
    if error.errno in _BUSY:
        return StorageBusy(f"{what}: {error.strerror}")
    return PayloadDamaged(f"{what}: {error.strerror}")


def is_aligned(view: memoryview) -> bool:
    """Whether O_DIRECT can write from the start of `view` without a copy. False for read-only memory, whose address
    Python does not give."""
    if view.readonly or not view.contiguous or view.nbytes == 0:
        return False
    address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    return address % ALIGNMENT == 0


def write_all(descriptor: int, data: memoryview, offset: int, *, direct: bool) -> None:
    """Write all of `data` at `offset`. With `direct`, its address, length and offset are aligned. Raises OSError."""
    done = 0
    while done < len(data):
        count = os.pwrite(descriptor, data[done:] if done else data, offset + done)
        if direct and done + count < len(data):
            # A short write may end anywhere, but a direct one can only go on from an aligned offset.
            count -= count % ALIGNMENT
            if count <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += count


def read_all(descriptor: int, into: memoryview, offset: int) -> int:
    """Fill `into` from `offset`; fewer bytes only at the end of the file. Raises OSError."""
    done = 0
    while done < len(into):
        count = os.preadv(descriptor, [into[done:] if done else into], offset + done)
        if count == 0:
            break
        done += count
    return done


def preallocate(descriptor: int, size: int) -> bool:
    """Give the file `size` bytes, with blocks behind them. False when the file system cannot. Raises OSError.

    The C library's posix_fallocate is not used: where the file system cannot, it writes to every block instead.
    """
    while _libc.fallocate(descriptor, 0, 0, size) != 0:
        number = ctypes.get_errno()
        if number == errno.EINTR:
            continue
        if number in _UNSUPPORTED:
            return False
        raise OSError(number, os.strerror(number))
    return True


class AlignedBuffers:
    """A pool of page-aligned buffers of `size` bytes. At most `keep` idle ones are held. Any thread."""

    def __init__(self, size: int, keep: int = 16) -> None:
        self._size = size
        self._keep = keep
        self._idle: list[mmap.mmap] = []
        self._lock = threading.Lock()

    def acquire(self) -> mmap.mmap:
        """A buffer that belongs to the caller until `release`; its content is undefined."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return mmap.mmap(-1, self._size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def release(self, buffer: mmap.mmap) -> None:
        """Give a buffer back; the caller holds no view of it any more."""
        with self._lock:
            if len(self._idle) < self._keep:
                self._idle.append(buffer)

    def close(self) -> None:
        with self._lock:
            self._idle.clear()
