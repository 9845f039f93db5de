"""The directory of the files in which the workers count. It lasts as long as the server.

The files are written through shared mappings, where a page that a full disk cannot give is SIGBUS for the worker: so
they are in memory where the system has a file system for that. A server that was killed leaves its directory behind;
the next one removes it. The lock on a directory is shared by parent and workers, and ends with the last of them.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108  Linux's memory file system
PREFIX = "s3verbs-metrics-"
FRESH_SECONDS = 60.0
"""A directory that young may be about to be locked."""


@contextmanager
def metrics_directory(memory: Path = MEMORY) -> Iterator[Path]:
    """Make it, before any worker is forked, and remove it in the end. Raises OSError."""
    home = memory if os.access(memory, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    _remove_abandoned(home)
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=home))
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _remove_abandoned(home: Path) -> None:
    for path in home.glob(f"{PREFIX}*"):
        with suppress(OSError):
            status = path.lstat()
            if status.st_uid != os.geteuid() or status.st_mtime > time.time() - FRESH_SECONDS:
                continue
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
