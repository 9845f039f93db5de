"""In-memory stores that behave as the LMDB and NVMe ones do, with faults at named steps. For tests.

What would survive a killed process lives in a `MemoryDisk`; a store is one process's view of it, so opening new stores
over the same disk is a restart. The steps are in `storage.faults`.
"""

import asyncio
import os
import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from awscrt import checksums  # type: ignore[import-untyped, unused-ignore]

from s3verbs.storage.errors import PayloadDamaged
from s3verbs.storage.faults import Crash, Faults
from s3verbs.storage.metadata import ReadTransaction, Table, WriteTransaction
from s3verbs.storage.model import BLOCK_SIZE, FilePayload

T = TypeVar("T")


class _TableData:
    __slots__ = ("keys", "values")

    def __init__(self, keys: list[bytes], values: dict[bytes, bytes]) -> None:
        self.keys = keys
        self.values = values

    def copy(self) -> "_TableData":
        return _TableData(self.keys.copy(), self.values.copy())


class MemoryDisk:
    """What survives the process: committed tables, and payload files by (directory, id)."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.tables: dict[Table, _TableData] = {table: _TableData([], {}) for table in Table}
        self.files: dict[tuple[int, bytes], _File] = {}
        self.quarantine: dict[tuple[int, bytes], _File] = {}


class _Snapshot:
    def __init__(self, tables: dict[Table, _TableData]) -> None:
        self._tables = tables

    def get(self, table: Table, key: bytes) -> bytes | None:
        return self._tables[table].values.get(key)

    def scan(self, table: Table, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        data = self._tables[table]
        index = bisect_left(data.keys, start)
        while index < len(data.keys):
            key = data.keys[index]
            if stop is not None and key >= stop:
                return
            yield key, data.values[key]
            # The table may have changed under the scan of a write transaction: find the place again by key.
            data = self._tables[table]
            index = bisect_left(data.keys, key + b"\0", min(index, len(data.keys)))
            if index and data.keys[index - 1] > key:
                index = bisect_left(data.keys, key + b"\0")


class _Change(_Snapshot):
    def __init__(self, tables: dict[Table, _TableData]) -> None:
        super().__init__(dict(tables))
        self._copied: set[Table] = set()

    @property
    def tables(self) -> dict[Table, _TableData]:
        return self._tables

    def _own(self, table: Table) -> _TableData:
        if table not in self._copied:
            self._tables[table] = self._tables[table].copy()
            self._copied.add(table)
        return self._tables[table]

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        data = self._own(table)
        if key not in data.values:
            if not data.keys or key > data.keys[-1]:
                data.keys.append(key)
            else:
                insort(data.keys, key)
        data.values[key] = bytes(value)

    def delete(self, table: Table, key: bytes) -> bool:
        if key not in self._tables[table].values:
            return False
        data = self._own(table)
        del data.values[key]
        del data.keys[bisect_left(data.keys, key)]
        return True


class MemoryMetadataStore:
    """A MetadataStore over a MemoryDisk. With `rehearse`, each change is run once in vain before it counts, as the
    port allows: a change with an effect outside its transaction shows."""

    def __init__(self, disk: MemoryDisk | None = None, *, faults: Faults | None = None, rehearse: bool = False) -> None:
        self.disk = disk or MemoryDisk()
        self.faults = faults or Faults()
        self._rehearse = rehearse

    def read(self) -> AbstractContextManager[ReadTransaction]:
        return self._read()

    @contextmanager
    def _read(self) -> Iterator[ReadTransaction]:
        if self.faults.dead:
            raise Crash("metadata.read")
        with self.disk.lock:
            tables = dict(self.disk.tables)
        yield _Snapshot(tables)

    async def write(self, change: Callable[[WriteTransaction], T], *, frees_space: bool = False) -> T:
        self.faults.reach("metadata.write")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        # Handed over: from here on cancelling the await does not stop the change.
        loop.call_soon(self._settle, change, done)
        return await done

    def _settle(self, change: Callable[[WriteTransaction], T], done: "asyncio.Future[T]") -> None:
        try:
            result = self._commit(change)
        except BaseException as error:  # noqa: BLE001 - it comes out of the await
            if not done.cancelled():
                done.set_exception(error)
        else:
            if not done.cancelled():
                done.set_result(result)

    def write_now(self, change: Callable[[WriteTransaction], T], *, frees_space: bool = False) -> T:
        self.faults.reach("metadata.write")
        return self._commit(change)

    def _commit(self, change: Callable[[WriteTransaction], T]) -> T:
        with self.disk.lock:
            if self._rehearse:
                change(_Change(self.disk.tables))
            transaction = _Change(self.disk.tables)
            result = change(transaction)
            self.faults.reach("metadata.commit")
            self.disk.tables = transaction.tables
        self.faults.reach("metadata.committed")
        return result

    def close(self) -> None:
        """Nothing is queued."""


class _File:
    __slots__ = ("data", "directory", "durable", "holders", "id", "intact", "mtime_ns")

    def __init__(self, directory: int, payload_id: bytes, data: bytes, *, durable: bool) -> None:
        self.directory = directory
        self.id = payload_id
        self.data = data
        self.intact = data
        self.durable = durable
        self.mtime_ns = time.time_ns()
        self.holders: set[int] = set()


class StoredPayload(NamedTuple):
    """A StoredFile; `path` only names it."""

    id: bytes
    path: Path
    size: int
    mtime_ns: int


class _Writer:
    def __init__(self, store: "MemoryPayloadStore") -> None:
        self._store = store
        self._chunks: list[bytes] | None = []

    def write(self, chunk: memoryview) -> None:
        self._store.faults.reach("payload.write")
        if self._chunks is None:
            raise ValueError("the payload is sealed or discarded")
        self._chunks.append(bytes(chunk))

    def seal(self, *, durable: bool) -> FilePayload:
        self._store.faults.reach("payload.seal")
        if self._chunks is None:
            raise ValueError("the payload is sealed or discarded")
        data, self._chunks = b"".join(self._chunks), None
        payload = self._store.add(data, durable=durable)
        self._store.faults.reach("payload.sealed")
        return payload

    def discard(self) -> None:
        self._chunks = None


class _Reader:
    def __init__(self, store: "MemoryPayloadStore", file: _File, payload: FilePayload) -> None:
        self.length = payload.length
        self._store = store
        self._file = file
        self._fd = -1

    def fileno(self) -> int:
        if self._fd < 0:
            self._fd = os.memfd_create("payload", os.MFD_CLOEXEC)
            view = memoryview(self._file.data)
            while view:
                view = view[os.write(self._fd, view) :]
        return self._fd

    def read_into(self, offset: int, into: memoryview) -> int:
        chunk = self._file.data[offset : min(offset + len(into), self.length)]
        into[: len(chunk)] = chunk
        return len(chunk)

    def verify(self) -> None:
        if self._file.data != self._file.intact or len(self._file.data) != self.length:
            raise PayloadDamaged(f"payload {self._file.id.hex()} does not match its checksums")

    def verify_range(self, offset: int, length: int) -> None:
        start = offset // BLOCK_SIZE * BLOCK_SIZE
        stop = -(-(offset + length) // BLOCK_SIZE) * BLOCK_SIZE
        if self._file.data[start:stop] != self._file.intact[start:stop]:
            raise PayloadDamaged(f"payload {self._file.id.hex()} does not match its checksums")

    def hold(self) -> bool:
        with self._store.disk.lock:
            if (self._file.directory, self._file.id) not in self._store.disk.files:
                return False
            self._file.holders.add(id(self))
            return True

    def close(self) -> None:
        with self._store.disk.lock:
            self._file.holders.discard(id(self))
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class MemoryPayloadStore:
    """A PayloadStore over a MemoryDisk. `new_id` gives 16 bytes."""

    def __init__(
        self,
        disk: MemoryDisk | None = None,
        *,
        new_id: Callable[[], bytes] = lambda: os.urandom(16),
        faults: Faults | None = None,
        directories: int = 1,
    ) -> None:
        self.disk = disk or MemoryDisk()
        self.faults = faults or Faults()
        self._new_id = new_id
        self._directories = directories

    def create(self, size_hint: int = 0, *, durable: bool = True) -> _Writer:
        self.faults.reach("payload.create")
        return _Writer(self)

    def add(self, data: bytes, *, durable: bool) -> FilePayload:
        """A sealed payload without passing any step."""
        payload_id = self._new_id()
        with self.disk.lock:
            file = _File(len(self.disk.files) % self._directories, payload_id, data, durable=durable)
            self.disk.files[file.directory, payload_id] = file
        return FilePayload(payload_id, file.directory, len(data), _checksum(data), durable)

    def open(self, payload: FilePayload) -> _Reader:
        self.faults.reach("payload.open")
        with self.disk.lock:
            file = self.disk.files.get((payload.directory, payload.id))
        if file is None:
            raise FileNotFoundError(payload.id.hex())
        if len(file.data) != payload.length:
            raise PayloadDamaged(f"payload {payload.id.hex()} has {len(file.data)} bytes")
        return _Reader(self, file, payload)

    def exists(self, payload: FilePayload) -> bool:
        with self.disk.lock:
            return (payload.directory, payload.id) in self.disk.files

    def sync(self, payloads: Sequence[FilePayload]) -> None:
        with self.disk.lock:
            for payload in payloads:
                if not self.exists(payload):
                    raise FileNotFoundError(payload.id.hex())
                self.disk.files[payload.directory, payload.id].durable = True

    def delete(self, payloads: list[FilePayload]) -> list[FilePayload]:
        with self.disk.lock:
            first = self.disk.files.get((payloads[0].directory, payloads[0].id)) if payloads else None
            if first is not None and len(payloads) > 1 and first.holders:
                return []
            for payload in reversed(payloads):
                self.faults.reach("payload.delete")
                self.disk.files.pop((payload.directory, payload.id), None)
                self.faults.reach("payload.deleted")
        return list(payloads)

    @property
    def directories(self) -> dict[int, Path]:
        return {number: Path(f"/memory/{number}") for number in range(self._directories)}

    def files(self, directory: int) -> Iterator[StoredPayload]:
        with self.disk.lock:
            files = [file for file in self.disk.files.values() if file.directory == directory]
        for file in files:
            path = self.directories[directory] / file.id.hex()
            yield StoredPayload(file.id, path, len(file.data), file.mtime_ns)

    def quarantine(self, path: Path) -> Path:
        with self.disk.lock:
            file = self.disk.files.pop((int(path.parent.name), bytes.fromhex(path.name)))
            self.disk.quarantine[file.directory, file.id] = file
        return path.parent / "quarantine" / path.name

    def remove_unsealed(self) -> int:
        return 0  # a payload that is not sealed is on no disk

    def damage(self, payload: FilePayload, data: bytes | None = None) -> None:
        """Replace the stored bytes without touching their checksums; None removes the file."""
        with self.disk.lock:
            if data is None:
                del self.disk.files[payload.directory, payload.id]
            else:
                self.disk.files[payload.directory, payload.id].data = data

    def lose_power(self, keep: int = 0) -> None:
        """What was not sealed durably keeps its first `keep` bytes."""
        with self.disk.lock:
            for file in self.disk.files.values():
                file.holders.clear()
                if not file.durable:
                    file.data = file.data[:keep]

    def close(self) -> None:
        """Nothing is open."""


def _checksum(data: bytes) -> int:
    return int(checksums.crc64nvme(data))
