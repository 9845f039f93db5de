"""Object stores under test: over memory and over LMDB and payload files, reopened at will, checked at the end."""

import os
from collections.abc import AsyncIterator, Sequence
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from s3verbs.storage import epochs
from s3verbs.storage.check import Report, check_store
from s3verbs.storage.faults import Faults
from s3verbs.storage.keys import time_ordered_id
from s3verbs.storage.memory import MemoryDisk, MemoryMetadataStore, MemoryPayloadStore
from s3verbs.storage.metadata import MetadataStore, Table
from s3verbs.storage.model import (
    Attributes,
    BucketName,
    Checksum,
    CompletedPart,
    FilePayload,
    Part,
    Payload,
    Upload,
    Version,
)
from s3verbs.storage.objects import ObjectReader, ObjectStore
from s3verbs.storage.opening import Store, open_store
from s3verbs.storage.payload import PayloadUpkeep
from s3verbs.storage.sweep import Swept, sweep_orphans

START_NS = 1_700_000_000_000_000_000
NO_ATTRIBUTES = Attributes()


class Clock:
    """A clock that goes on by a microsecond at each look."""

    def __init__(self) -> None:
        self.now_ns = START_NS

    def __call__(self) -> int:
        self.now_ns += 1000
        return self.now_ns


class StoreUnderTest:
    """An object store, with what a test needs to look behind it."""

    objects: ObjectStore
    metadata: MetadataStore
    payloads: PayloadUpkeep
    quarantine: Path

    def __init__(self) -> None:
        self.clock = Clock()
        self.checked = True
        """Whether the store must be consistent when the test ends."""

    def new_id(self) -> bytes:
        return time_ordered_id(self.clock(), os.urandom(8))

    async def close(self) -> None:
        await self.objects.close()

    async def reopen(self, *, boot_id: bytes = b"boot") -> None:
        """Stop cleanly and start again."""
        raise NotImplementedError

    async def die(self, *, boot_id: bytes = b"boot") -> None:
        """Start again as after a kill -9, or, with another boot id, after the kernel died."""
        raise NotImplementedError

    def damage(self, payload: Payload, data: bytes | None) -> None:
        """Replace the bytes of a payload file, not its checksums; None removes the file."""
        raise NotImplementedError

    # -- writing --

    def file(self, data: bytes, *, durable: bool = True) -> FilePayload:
        writer = self.objects.create_payload(len(data))
        if data:
            writer.write(memoryview(data))
        return writer.seal(durable=durable)

    def payload(self, data: bytes) -> Payload:
        """Inline up to 16 KiB, as the gateway does it."""
        return self.objects.inline_payload(data) if len(data) <= 16 * 1024 else self.file(data)

    async def put(self, key: str, payload: Payload | bytes, *, bucket: BucketName = "bucket", **more: Any) -> Version:
        if isinstance(payload, bytes):
            more.setdefault("etag", md5(payload).hexdigest())
            payload = self.payload(payload)
        more.setdefault("etag", "etag")
        more.setdefault("attributes", NO_ATTRIBUTES)
        more.setdefault("checksum", None)
        return await self.objects.publish(bucket, key, payload=payload, **more)

    async def create_upload(self, key: str, *, bucket: BucketName = "bucket", **more: Any) -> Upload:
        return await self.objects.create_upload(bucket, key, initiator="tester", attributes=NO_ATTRIBUTES, **more)

    async def put_part(
        self, upload: Upload, number: int, payload: Payload | bytes, *, bucket: BucketName = "bucket"
    ) -> Part:
        payload = self.payload(payload) if isinstance(payload, bytes) else payload
        part = Part(number, payload, md5(payload.id).hexdigest(), self.clock())
        await self.objects.put_part(bucket, upload.key, upload.id, part)
        return part

    async def complete(
        self, upload: Upload, parts: Sequence[Part], *, bucket: BucketName = "bucket", **more: Any
    ) -> Version:
        listed = [CompletedPart(part.number, part.etag, part.checksum) for part in parts]
        more.setdefault("describe", describe)
        return await self.objects.complete_upload(bucket, upload.key, upload.id, listed, **more)

    # -- reading --

    async def get(self, key: str, *, bucket: BucketName = "bucket") -> bytes:
        reader = await self.objects.open(bucket, key, self.objects.lookup(bucket, key))
        try:
            return read(reader)
        finally:
            reader.close()

    def rows(self, table: Table) -> dict[bytes, bytes]:
        with self.metadata.read() as transaction:
            return dict(transaction.scan(table))

    def files(self) -> set[bytes]:
        return {file.id for number in self.payloads.directories for file in self.payloads.files(number)}

    def sweep(self, **more: Any) -> Swept:
        more.setdefault("now_ns", 1 << 62)
        more.setdefault("files_per_second", 1_000_000)
        return sweep_orphans(self.metadata, self.payloads, **more)

    def check(self, *, read_payloads: bool = True, repair: bool = False) -> Report:
        return check_store(self, read_payloads=read_payloads, repair=repair)


class MemoryStoreUnderTest(StoreUnderTest):
    def __init__(self, quarantine: Path) -> None:
        super().__init__()
        self.quarantine = quarantine
        self.disk = MemoryDisk()
        self.start()

    def start(self, *, boot_id: bytes = b"boot") -> None:
        """A new process over the same disk."""
        self.faults = Faults()
        metadata = MemoryMetadataStore(self.disk, faults=self.faults, rehearse=True)
        payloads = MemoryPayloadStore(self.disk, new_id=self.new_id, faults=self.faults, directories=2)
        epoch = metadata.write_now(lambda transaction: epochs.begin(transaction, boot_id=boot_id, now_ns=self.clock()))
        self.metadata, self.payloads, self.memory = metadata, payloads, payloads
        self.objects = ObjectStore(metadata, payloads, clock=self.clock, new_id=self.new_id, epoch=epoch)

    async def reopen(self, *, boot_id: bytes = b"boot") -> None:
        await self.close()
        self.metadata.write_now(epochs.clear)
        self.start(boot_id=boot_id)

    async def die(self, *, boot_id: bytes = b"boot") -> None:
        await self.close()
        self.start(boot_id=boot_id)

    def damage(self, payload: Payload, data: bytes | None) -> None:
        assert isinstance(payload, FilePayload)
        self.memory.damage(payload, data)


class DiskStoreUnderTest(StoreUnderTest):
    def __init__(self, root: Path) -> None:
        super().__init__()
        self.data = [root / "one", root / "two"]
        self._start(b"boot")

    def _start(self, boot_id: bytes) -> None:
        self.store: Store = open_store(
            self.data, map_bytes=1 << 24, reserve_bytes=1 << 16, boot_id=boot_id, clock=self.clock
        )
        self.objects, self.metadata, self.payloads = self.store.objects, self.store.metadata, self.store.payloads
        self.quarantine = self.store.quarantine

    async def close(self) -> None:
        await super().close()
        self.store.close()

    async def reopen(self, *, boot_id: bytes = b"boot") -> None:
        await self.close()
        self._start(boot_id)

    async def die(self, *, boot_id: bytes = b"boot") -> None:
        await self.objects.close()
        noted = self.rows(Table.STORE).get(epochs.RELAXED_BOOT)
        self.store.close()
        if noted is not None:
            # A death would have left the note; this process cannot die and go on.
            before = open_store(self.data, map_bytes=1 << 24, boot_id=b"boot", clock=self.clock)
            before.metadata.write_now(lambda transaction: transaction.put(Table.STORE, epochs.RELAXED_BOOT, noted))
            before.metadata.close()
            os.close(before._lock)
        self._start(boot_id)

    def damage(self, payload: Payload, data: bytes | None) -> None:
        assert isinstance(payload, FilePayload)
        path = next(file.path for file in self.payloads.files(payload.directory) if file.id == payload.id)
        if data is None:
            path.unlink()
        else:
            with path.open("r+b") as file:
                file.write(data[: payload.length])
                if len(data) < payload.length:
                    file.truncate(len(data))


def describe(_upload: Upload, parts: Sequence[Part]) -> tuple[str, Checksum | None]:
    """An ETag in S3's form; the gateway's own is tested where it is."""
    digest = md5(b"".join(bytes.fromhex(part.etag) for part in parts)).hexdigest()
    return f"{digest}-{len(parts)}", None


def read(reader: ObjectReader, offset: int = 0, length: int | None = None) -> bytes:
    """The bytes of a range, piece by piece as the gateway sends them."""
    length = reader.version.size if length is None else length
    pieces = []
    for segment in reader.segments(offset, length):
        if segment.data is not None:
            assert segment.length == len(segment.data)
            pieces.append(segment.data)
        else:
            pieces.append(os.pread(segment.fd, segment.length, segment.offset))
            assert len(pieces[-1]) == segment.length
    return b"".join(pieces)


@pytest.fixture(name="store", params=["memory", "disk"])
async def store_fixture(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreUnderTest]:
    """An empty store with the bucket `bucket`; consistent at the end, or the test fails."""
    tested: StoreUnderTest
    tested = (
        MemoryStoreUnderTest(tmp_path / "quarantine") if request.param == "memory" else DiskStoreUnderTest(tmp_path)
    )
    await tested.objects.create_bucket("bucket", owner="tester")
    yield tested
    await tested.objects.reclaim()
    await tested.objects.close()
    report = tested.check()
    await tested.close()
    if tested.checked:
        assert report.findings == []
        assert report.counts["waiting_files"] == 0


@pytest.fixture(name="memory_store")
async def memory_store_fixture(tmp_path: Path) -> MemoryStoreUnderTest:
    """As `store`, in memory, with faults; the test closes and checks it."""
    tested = MemoryStoreUnderTest(tmp_path / "quarantine")
    await tested.objects.create_bucket("bucket", owner="tester")
    return tested
