"""Opening a store: which directory holds the metadata, whose payload directories these are, and in which epoch.

A store is one or more data directories. Each is a payload directory; one of them, the first when the store was made,
also holds `metadata/`. `store.lock` beside it counts the processes that have the store open: each holds it shared, so
one that gets it exclusively is alone. Nothing here reads the data, so a store of any size opens at once.
"""

import ctypes
import fcntl
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from s3verbs.storage import epochs
from s3verbs.storage.epochs import Epoch
from s3verbs.storage.errors import StorageError, StoreUnusable
from s3verbs.storage.keys import time_ordered_id
from s3verbs.storage.lmdb_store import LmdbMetadataStore
from s3verbs.storage.metadata import ReadTransaction, Table, WriteTransaction
from s3verbs.storage.nvme_store import NvmePayloadStore
from s3verbs.storage.objects import ObjectStore
from s3verbs.storage.payload_marker import read_marker

_log = logging.getLogger(__name__)

FORMAT = 1
METADATA = "metadata"
LOCK = "store.lock"
SWEEP_LOCK = "sweep.lock"
QUARANTINE = "quarantine"

FORMAT_KEY = b"format"
UUID_KEY = b"uuid"

LOCK_WAIT_SECONDS = 10.0
"""How long an open waits for a process that is alone in the store: one that closes it, or repairs it."""

_libc = ctypes.CDLL(None, use_errno=True)


def new_id() -> bytes:
    """An id of 16 bytes for a payload, an upload or a bucket."""
    return time_ordered_id(time.time_ns(), os.urandom(8))


@dataclass(slots=True)
class Store:
    """An open store of this process. Close `objects` first, on its event loop, then the store."""

    objects: ObjectStore
    metadata: LmdbMetadataStore
    payloads: NvmePayloadStore
    uuid: UUID
    epoch: Epoch
    home: Path
    """The data directory that holds the metadata."""
    read_only: bool
    _lock: int

    @property
    def quarantine(self) -> Path:
        """Where the consistency check puts records that it drops."""
        return self.home / QUARANTINE

    @property
    def sweep_lock(self) -> Path:
        return self.home / SWEEP_LOCK

    def close(self) -> None:
        """Release everything. The last process writes relaxed payloads back and notes a clean stop. Blocking, for as
        long as that takes; a second close does nothing."""
        if self._lock < 0:
            return
        try:
            if not self.read_only and _lock_now(self._lock, fcntl.LOCK_EX):
                self._stop_cleanly()
        finally:
            self.payloads.close()
            self.metadata.close()
            os.close(self._lock)
            self._lock = -1

    def _stop_cleanly(self) -> None:
        try:
            with self.metadata.read() as transaction:
                if not epochs.marked(transaction):
                    return
            for path in self.payloads.directories.values():
                _sync_file_system(path)
            self.metadata.write_now(epochs.clear, frees_space=True)
        except (OSError, StorageError):
            _log.exception("no clean stop was noted; relaxed objects may be verified at their next read")


def open_store(
    data: Sequence[Path],
    *,
    map_bytes: int = 1 << 30,
    reserve_bytes: int = 64 << 20,
    read_only: bool = False,
    exclusive: bool = False,
    boot_id: bytes | None = None,
    clock: Callable[[], int] = time.time_ns,
) -> Store:
    """Open the store in the directories `data`, or make one when they hold none. After any fork, once per process.

    `map_bytes` is the first size of the metadata map, `reserve_bytes` what stays free on each drive so that deleting
    works on a full one. `exclusive` fails when any other process has the store open, and keeps them out. `boot_id`
    stands in for the kernel's. Blocking. Raises StoreUnusable, StorageFull.
    """
    if not data:
        raise StoreUnusable("no data directory; give at least one --data")
    paths = [_existing(Path(path), read_only=read_only) for path in data]
    home = _home(paths, read_only=read_only)
    with ExitStack() as undo:
        lock = _take_lock(home / LOCK, exclusive=exclusive, read_only=read_only)
        undo.callback(os.close, lock)
        metadata = LmdbMetadataStore(
            home / METADATA, map_bytes=map_bytes, reserve_bytes=reserve_bytes, read_only=read_only
        )
        undo.callback(metadata.close)
        boot = epochs.kernel_boot_id() if boot_id is None else boot_id
        if read_only:
            with metadata.read() as transaction:
                uuid, epoch = _identity(transaction), epochs.current(transaction, boot_id=boot)
        else:

            def begin(transaction: WriteTransaction) -> tuple[UUID, Epoch]:
                if transaction.get(Table.STORE, FORMAT_KEY) is None:
                    transaction.put(Table.STORE, FORMAT_KEY, str(FORMAT).encode())
                    transaction.put(Table.STORE, UUID_KEY, os.urandom(16))
                return _identity(transaction), epochs.begin(transaction, boot_id=boot, now_ns=clock())

            uuid, epoch = metadata.write_now(begin, frees_space=True)
        payloads = NvmePayloadStore(
            paths, store_id=uuid.bytes, new_id=new_id, reserve_bytes=reserve_bytes, read_only=read_only
        )
        undo.pop_all()
    objects = ObjectStore(metadata, payloads, clock=clock, new_id=new_id, epoch=epoch)
    return Store(objects, metadata, payloads, uuid, epoch, home, read_only, lock)


def holds_store(data: Sequence[Path]) -> bool:
    """Whether any of the directories belongs to a store; opening would otherwise make one."""
    return any((path / METADATA).is_dir() or read_marker(path) is not None for path in data)


def _existing(path: Path, *, read_only: bool) -> Path:
    try:
        if not read_only:
            path.mkdir(parents=True, exist_ok=True)
        path = path.resolve(strict=True)
    except FileExistsError as error:
        raise StoreUnusable(f"{path} is not a directory; give a directory to --data") from error
    except FileNotFoundError as error:
        raise StoreUnusable(f"{path} does not exist; give an existing store's directories to --data") from error
    except OSError as error:
        raise StoreUnusable(f"{path} cannot be made or read: {error.strerror}; check its permissions") from error
    if not os.access(path, os.R_OK | os.X_OK | (0 if read_only else os.W_OK)):
        raise StoreUnusable(f"{path} is not accessible to user {os.geteuid()}; change its owner or permissions")
    return path


def _home(paths: Sequence[Path], *, read_only: bool) -> Path:
    """The directory with the metadata, whatever the order they are given in."""
    # Markers are read first: whoever makes this store at the same moment makes the metadata before any marker.
    marked = [path for path in paths if read_marker(path) is not None]
    homes = [path for path in paths if (path / METADATA).is_dir()]
    if len(homes) > 1:
        names = " and ".join(str(path) for path in homes)
        raise StoreUnusable(f"{names} each hold the metadata of a store; give the directories of one store to --data")
    if homes:
        return homes[0]
    if marked:
        raise StoreUnusable(
            f"{marked[0]} belongs to a store whose metadata is in none of the directories; add the missing --data"
        )
    if read_only:
        raise StoreUnusable(f"{paths[0]} holds no store; start the server on it once, or correct --data")
    return paths[0]


def _identity(transaction: ReadTransaction) -> UUID:
    found = transaction.get(Table.STORE, FORMAT_KEY)
    uuid = transaction.get(Table.STORE, UUID_KEY)
    if found is None or uuid is None or len(uuid) != 16:
        raise StoreUnusable("the metadata is not that of a store; restore it from a backup, or give other directories")
    if found != str(FORMAT).encode():
        raise StoreUnusable(
            f"the store has format {found.decode(errors='replace')}, this release reads {FORMAT}; use a later one"
        )
    return UUID(bytes=uuid)


def _take_lock(path: Path, *, exclusive: bool, read_only: bool) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StoreUnusable(f"{path} cannot be opened: {error.strerror}; check its owner and permissions") from error
    if exclusive:
        if not _lock_now(descriptor, fcntl.LOCK_EX):
            os.close(descriptor)
            raise StoreUnusable(f"{path.parent} is open in another process; stop the server first")
        return descriptor
    until = time.monotonic() + LOCK_WAIT_SECONDS
    while not _lock_now(descriptor, fcntl.LOCK_SH):
        if time.monotonic() >= until:
            os.close(descriptor)
            raise StoreUnusable(f"{path.parent} is being checked or repaired by another process; wait for its end")
        time.sleep(0.05)
    return descriptor


def _lock_now(descriptor: int, kind: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return True
    return False


def _sync_file_system(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)
