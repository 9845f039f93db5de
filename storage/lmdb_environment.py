"""One LMDB environment as one process has it open: its tables, its map, and the count of its open transactions.

LMDB may change the map of a process only while that process has no transaction open. So each transaction is counted,
and `grow` and `adopt` wait for the count to reach zero. Reads are short and follow one another on one thread, so it
reaches zero all the time.
"""

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb

from s3verbs.storage.errors import StorageError, StorageFull, StoreUnusable
from s3verbs.storage.metadata import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"

RESIZE_TIMEOUT_S = 10.0
"""How long a change of the map waits for the open transactions of this process."""

NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT))

_READER_SLOT_BYTES = 64
_LOCK_HEADER_SLOTS = 8

_open_here: dict[tuple[int, int], int] = {}
"""Directory (device, inode) -> process that has it open. A second environment over the same files in one process would
share the first one's file locks, and closing either, or merely any descriptor of the lock file, would drop them."""
_opening = threading.Lock()


class LmdbEnvironment:
    """Opened by each process for itself, never before a fork. Any thread may call any method."""

    def __init__(self, path: Path, *, map_bytes: int, read_only: bool, max_readers: int) -> None:
        """Raises StoreUnusable, StorageFull."""
        self.path = path
        self.read_only = read_only
        self._open = 0
        self._resizers = 0
        self._closed = False
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self.generation = 0
        """Counts the changes of the map: read before a transaction, and given to `grow` or `adopt` when it fails."""
        with _opening:
            self._identity = self._claim()
            try:
                self._env, self.tables = self._open_files(map_bytes, max_readers)
            except BaseException:
                del _open_here[self._identity]
                raise

    def begin_read(self) -> "lmdb.Transaction[bytes]":
        """A snapshot of what is committed now. Call `end` after it was aborted. Raises StorageError."""
        for again in (True, True, False):
            generation = self.generation
            self._enter()
            try:
                return self._env.begin()
            except lmdb.MapResizedError:
                self.end()
                self.adopt(generation)
            except lmdb.ReadersFullError as failure:
                self.end()
                if not again or not self.clear_stale_readers():
                    raise storage_error(failure) from failure
            except BaseException as failure:
                self.end()
                if isinstance(failure, lmdb.Error):
                    raise storage_error(failure) from failure
                raise
        raise StorageError("the map of the metadata store keeps growing: no snapshot could be opened")

    def begin_write(self) -> "lmdb.Transaction[bytes]":
        """The write transaction, once every other one of any process has ended. Call `end` after it ended.

        Raises what LMDB raises, MapResizedError among it.
        """
        self._enter()
        try:
            return self._env.begin(write=True)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """A transaction is over."""
        with self._lock:
            self._open -= 1
            if self._resizers and not self._open:
                self._idle.notify_all()

    def adopt(self, generation: int) -> None:
        """Take over the map of a process that grew it, unless this one did since `generation`. Raises StorageError."""
        self._resize(generation, self._adopt_map)

    def grow(self, generation: int) -> None:
        """Double the map, or take over that of a process which did. Raises StorageError, StorageFull."""
        self._resize(generation, self._grow_map)

    def clear_stale_readers(self) -> int:
        """Free the reader slots, and so the old pages, of processes that died. How many there were."""
        return self._env.reader_check()

    @property
    def map_bytes(self) -> int:
        return self._env.info()["map_size"]

    def reusable_bytes(self) -> int:
        """Bytes of the file that no entry uses: pages that were freed, whether or not a snapshot still keeps them."""
        transaction = self.begin_read()
        try:
            used = 0
            for statistics in (self._env.stat(), *(transaction.stat(table) for table in self.tables.values())):
                used += statistics["branch_pages"] + statistics["leaf_pages"] + statistics["overflow_pages"]
            return max(self._env.info()["last_pgno"] + 1 - used, 0) * self._env.stat()["psize"]
        except lmdb.Error as failure:
            raise storage_error(failure) from failure
        finally:
            transaction.abort()
            self.end()

    def close(self) -> None:
        """Waits a while for open transactions, then closes under them. May be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._resizers += 1
            self._idle.wait_for(lambda: not self._open, RESIZE_TIMEOUT_S)
        with _opening:
            self._env.close()
            _open_here.pop(self._identity, None)

    def _enter(self) -> None:
        with self._lock:
            if self._closed:
                raise StorageError("the metadata store is closed")
            self._open += 1

    def _resize(self, generation: int, change: Callable[[], None]) -> None:
        with self._lock:
            self._resizers += 1
            try:
                idle = self._idle.wait_for(lambda: not self._open or self.generation != generation, RESIZE_TIMEOUT_S)
            finally:
                self._resizers -= 1
            if self.generation != generation or self._closed:
                return
            if not idle:
                raise StorageError(f"the map cannot change size: a snapshot stayed open for {RESIZE_TIMEOUT_S:.0f} s")
            change()
            self.generation += 1

    def _adopt_map(self) -> None:
        try:
            self._env.set_mapsize(0)
        except lmdb.Error as failure:
            raise storage_error(failure) from failure

    def _grow_map(self) -> None:
        before = self.map_bytes
        self._adopt_map()
        if self.map_bytes > before:
            return
        try:
            self._env.set_mapsize(2 * before)
        except (lmdb.Error, OverflowError) as failure:
            raise StorageFull(f"the metadata map cannot grow beyond {before} bytes: {failure}") from failure

    # -- opening --

    def _claim(self) -> tuple[int, int]:
        try:
            if not self.read_only:
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.path.stat()
        except OSError as failure:
            raise StoreUnusable(f"metadata directory {self.path}: {failure.strerror}") from failure
        identity = (status.st_dev, status.st_ino)
        if _open_here.get(identity) == os.getpid():
            raise StoreUnusable(f"{self.path} is open in this process already")
        _open_here[identity] = os.getpid()
        return identity

    def _open_files(self, map_bytes: int, max_readers: int) -> "tuple[lmdb.Environment, Mapping[Table, Any]]":
        try:
            with _exclusive(self.path):
                fresh = not (self.path / DATA_FILE).exists()
                if self.read_only:
                    if fresh:
                        raise StoreUnusable(f"{self.path} holds no metadata store")
                else:
                    _allocate_lock_file(self.path / LOCK_FILE, max_readers)
                opened = self._open_environment(map_bytes, max_readers)
                if fresh:
                    _sync_directory(self.path)
                    _sync_directory(self.path.parent)
                return opened
        except lmdb.Error as failure:
            if error_number(failure) in NO_ROOM:
                raise StorageFull(f"no room to open the metadata store in {self.path}: {failure}") from failure
            raise StoreUnusable(f"metadata store in {self.path}: {failure}") from failure
        except OSError as failure:
            if failure.errno in NO_ROOM:
                raise StorageFull(f"no room to open the metadata store in {self.path}: {failure}") from failure
            raise StoreUnusable(f"metadata store in {self.path}: {failure}") from failure

    def _open_environment(self, map_bytes: int, max_readers: int) -> "tuple[lmdb.Environment, Mapping[Table, Any]]":
        while True:
            env = None
            try:
                env = lmdb.open(
                    str(self.path),
                    map_size=map_bytes,
                    max_dbs=len(Table),
                    max_readers=max_readers,
                    max_spare_txns=1,
                    readonly=self.read_only,
                    create=False,
                    mode=0o600,  # access keys are in it
                )
                tables = self._open_tables(env)
                env.reader_check()
            except BaseException as failure:
                if env is not None:
                    env.close()
                if not isinstance(failure, lmdb.MapResizedError):
                    raise
                # Another process outgrows the map between two steps of this one.
                map_bytes *= 2
            else:
                return env, tables

    def _open_tables(self, env: lmdb.Environment) -> Mapping[Table, Any]:
        if self.read_only:
            return {table: env.open_db(table.value.encode(), create=False) for table in Table}
        with env.begin(write=True) as transaction:
            return {table: env.open_db(table.value.encode(), txn=transaction) for table in Table}


def error_number(failure: lmdb.Error) -> int:
    """The errno of an LMDB error, negative for LMDB's own codes, 0 when it has none."""
    code = getattr(failure, "code", None)
    if isinstance(code, int):
        return code
    # Releases of py-lmdb without `code` end the message with the text of the errno.
    text = str(failure)
    known = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.ENOMEM)
    return next((number for number in known if os.strerror(number) in text), 0)


def storage_error(failure: lmdb.Error) -> StorageError:
    """What the callers of this package get for an LMDB error."""
    if error_number(failure) in NO_ROOM:
        return StorageFull(f"no room on the metadata disk: {failure}")
    if isinstance(failure, lmdb.PanicError):
        return StorageError(f"the metadata store stopped after a failed write, restart the server: {failure}")
    return StorageError(f"metadata store: {failure}")


@contextmanager
def _exclusive(directory: Path) -> "Iterator[None]":
    """One process at a time opens the store; the lock is the directory's, and ends with the process."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _allocate_lock_file(path: Path, max_readers: int) -> None:
    """Give the lock file its room on the disk. It is written through a shared mapping, where a hole that a full disk
    cannot fill would kill the process with SIGBUS.

    LMDB counts reader slots by the length of the file: a file that may be in use keeps its length. The descriptor is
    closed before this process opens the environment, since closing one drops the locks that a process has on a file.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        size = (max_readers + _LOCK_HEADER_SLOTS) * _READER_SLOT_BYTES
    except FileExistsError:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        status = os.fstat(descriptor)
        size = status.st_size if status.st_blocks * 512 < status.st_size else 0
    try:
        if size:
            os.posix_fallocate(descriptor, 0, size)
    except OSError as failure:
        if failure.errno in NO_ROOM:
            raise
        # A file system that cannot allocate ahead.
    finally:
        os.close(descriptor)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
