"""Directory fsyncs shared by the threads that wait for them."""

import os
import threading
from pathlib import Path


class _Round:
    """One fsync that has not begun, is running, or is done."""

    __slots__ = ("done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: OSError | None = None


class DirectorySync:
    """Makes the entries of one directory durable; calls that overlap share an fsync. Any thread.

    Why sharing is safe: an fsync covers the entries that exist when it begins. A caller has made its entry before it
    calls `sync`, so every fsync that begins after the call covers it, and one that runs already may not. A caller
    therefore never joins the running round, only `_next`, which by definition has not begun. The first of the waiters
    that finds no round running takes `_next` out of the way of later callers and runs it, all under the lock, so a
    round has exactly one leader and nobody can join once it has begun. At most two fsyncs pass between a call and its
    return. A failed fsync fails everyone who waited for it: the kernel may report an error only once, so a second
    attempt that succeeds would prove nothing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = threading.Condition()
        self._next = _Round()
        self._running = False

    def sync(self) -> None:
        """On return every entry made before the call is on stable storage. Raises OSError."""
        with self._changed:
            mine = self._next
            while self._running and not mine.done:
                self._changed.wait()
            if not mine.done:
                self._running = True
                self._next = _Round()
                leads = True
            else:
                leads = False
        if leads:
            try:
                sync_directory(self._path)
            except OSError as error:
                mine.error = error
            finally:
                with self._changed:
                    mine.done = True
                    self._running = False
                    self._changed.notify_all()
        if mine.error is not None:
            raise OSError(mine.error.errno, mine.error.strerror, str(self._path)) from mine.error


def sync_directory(path: Path) -> None:
    """fsync of a directory. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
