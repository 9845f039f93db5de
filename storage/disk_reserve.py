"""Room that is kept on the metadata disk so that deletes still work when everything else has filled it.

LMDB copies pages before it changes them, so even a delete takes room. The file `reserve` beside the environment holds
`size` allocated bytes. When a change that frees space finds the disk full, the file is cut to nothing and the change
runs again in the room that this gives. Changes that take space are refused before: while fewer than `size` bytes are
free, or twice as many when the file is gone and has to be made again. Free is what the disk has and what deletes left
inside the environment's file. All processes of a host share the one reserve.
"""

import errno
import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from s3verbs.storage.errors import StorageError

FILE_NAME = "reserve"
CHECK_INTERVAL_S = 0.1
REFILL_INTERVAL_S = 1.0
_PROBE_BYTES = 256 * 1024


class DiskReserve:
    """`size` 0 keeps nothing and refuses nothing. Used by the thread that has the write lock of the process."""

    def __init__(
        self,
        directory: Path,
        size: int,
        *,
        reusable: Callable[[], int] = lambda: 0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`reusable` gives the bytes inside the environment's file, which never shrinks, that no entry uses."""
        self._directory = directory
        self._path = directory / FILE_NAME
        self._size = size
        self._reusable = reusable
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._checked_at = float("-inf")
        self._refilled_at = float("-inf")
        self._low = False

    def low(self) -> bool:
        """Whether changes that take space are to be refused; looked at once per CHECK_INTERVAL_S. Raises OSError,
        and what `reusable` raises."""
        if not self._size:
            return False
        now = self._monotonic()
        if now - self._checked_at >= CHECK_INTERVAL_S:
            self._checked_at = now
            wanted = 2 * self._size - min(self._held(), self._size) - self._free()
            self._low = wanted > 0 and wanted > self._reusable()
        return self._low

    def release(self) -> bool:
        """Give the room back to the file system; False when there was none to give."""
        with self._lock:
            if not self._held():
                return False
            try:
                os.truncate(self._path, 0)
            except OSError:
                return False
            # The whole size must come free again elsewhere before it is taken back.
            self._refilled_at = self._monotonic()
            self._checked_at = float("-inf")
            return True

    def refill(self) -> None:
        """Take the room again when there is plenty; tried once per REFILL_INTERVAL_S. Never raises."""
        now = self._monotonic()
        if not self._size or now - self._refilled_at < REFILL_INTERVAL_S:
            return
        # The changes before this one are committed: nothing here may make them look failed.
        with self._lock, suppress(OSError, StorageError):
            self._refilled_at = now
            missing = self._size - self._held()
            free = self._free()
            if missing <= 0 or free < missing or free + self._reusable() < missing + self._size:
                return
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self._size)
                os.ftruncate(descriptor, self._size)
            except OSError:
                os.ftruncate(descriptor, 0)
            finally:
                os.close(descriptor)

    def disk_is_full(self) -> bool:
        """Whether the disk, or the quota, takes no more. LMDB reports a write that came out short as an I/O error, so
        this has to be asked."""
        try:
            with tempfile.TemporaryFile(dir=self._directory) as probe:
                os.posix_fallocate(probe.fileno(), 0, _PROBE_BYTES)
        except OSError as failure:
            return failure.errno in (errno.ENOSPC, errno.EDQUOT)
        return False

    def _free(self) -> int:
        status = os.statvfs(self._directory)
        return status.f_bavail * status.f_frsize

    def _held(self) -> int:
        try:
            return self._path.stat().st_blocks * 512
        except OSError:
            return 0
