"""Whose turn it is to commit, among the processes of a store.

LMDB has a lock of its own; whoever waits for it has chosen his changes already. With a turn taken first, the changes
that arrive while another process commits join the group: fewer and larger commits.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FILE = "writer.lock"


class WriterTurn:
    """An advisory lock on a file of the store's directory. It ends with its process; LMDB's lock is what protects the
    data, so a file system without locks costs nothing but group size. Writer thread only."""

    def __init__(self, fd: int) -> None:
        """Owns `fd`."""
        self._fd = fd

    @classmethod
    def open(cls, directory: Path) -> "WriterTurn | None":
        """None where the file cannot be made, as on a full disk: the store works without turns."""
        try:
            return cls(os.open(directory / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError:
            return None

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Waits for the turn."""
        with suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._fd)
