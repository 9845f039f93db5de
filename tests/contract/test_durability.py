"""What a 200 promises when a bucket changes between relaxed and strict, and what a payload that nobody recorded may
become. Over memory and over LMDB with payload files."""

import asyncio
import os
from pathlib import Path

import pytest

from s3verbs.storage.errors import InvalidPart, ObjectNotFound, PayloadDamaged, StorageError
from s3verbs.storage.metadata import Table
from s3verbs.storage.model import CompletedPart, Durability, FilePayload, Part
from s3verbs.storage.nvme_store import NvmePayloadStore
from s3verbs.storage.payload import PayloadStore
from s3verbs.storage.payload_reader import NvmePayloadReader
from tests.storage_fixtures import (  # noqa: F401
    DiskStoreUnderTest,
    MemoryStoreUnderTest,
    StoreUnderTest,
    memory_store_fixture,
    store_fixture,
)

KIB = 1 << 10
SIZE = 20 * KIB


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s3verbs.storage.uploads.MIN_PART_SIZE", KIB)


@pytest.fixture(name="synced")
def synced_fixture(store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Ids of the payloads that the store has synced after their seal."""
    synced: list[bytes] = []
    kind: type[PayloadStore] = type(store.payloads)
    sync = kind.sync

    def noted(self: PayloadStore, payloads: list[FilePayload]) -> None:
        sync(self, payloads)
        synced.extend(payload.id for payload in payloads)

    monkeypatch.setattr(kind, "sync", noted)
    return synced


async def durability(store: StoreUnderTest, value: Durability) -> None:
    await store.objects.update_bucket("bucket", durability=value)


async def test_a_put_that_was_relaxed_when_it_began_is_synced_for_a_bucket_that_is_strict_when_it_ends(
    store: StoreUnderTest, synced: list[bytes]
) -> None:
    payload = store.file(os.urandom(SIZE), durable=False)
    version = await store.put("key", payload)
    assert version.epoch == 0
    assert synced == [payload.id]
    assert version == store.objects.lookup("bucket", "key")


async def test_a_put_that_was_strict_when_it_began_stays_durable(store: StoreUnderTest, synced: list[bytes]) -> None:
    await durability(store, Durability.RELAXED)
    version = await store.put("key", store.file(os.urandom(SIZE)))
    assert (version.epoch, synced) == (0, [])


async def test_parts_written_while_the_bucket_was_relaxed_are_synced_by_a_strict_complete(
    store: StoreUnderTest, synced: list[bytes]
) -> None:
    await durability(store, Durability.RELAXED)
    upload = await store.create_upload("key")
    loose = [await store.put_part(upload, n, store.file(os.urandom(SIZE), durable=False)) for n in (1, 2)]
    await durability(store, Durability.STRICT)
    firm = await store.put_part(upload, 3, store.file(os.urandom(SIZE)))
    version = await store.complete(upload, [*loose, firm])
    assert sorted(synced) == sorted(part.payload.id for part in loose)
    assert (version.epoch, [part.epoch for part in version.parts]) == (0, [0, 0, 0])


async def test_a_strict_part_written_relaxed_is_synced(store: StoreUnderTest, synced: list[bytes]) -> None:
    upload = await store.create_upload("key")
    part = await store.put_part(upload, 1, store.file(os.urandom(SIZE), durable=False))
    assert synced == [part.payload.id]
    assert (await store.complete(upload, [part])).epoch == 0
    assert len(synced) == 1


async def test_a_strict_object_of_relaxed_parts_survives_a_power_cut(memory_store: MemoryStoreUnderTest) -> None:
    store = memory_store
    data = os.urandom(SIZE)
    await durability(store, Durability.RELAXED)
    upload = await store.create_upload("key")
    part = await store.put_part(upload, 1, store.file(data, durable=False))
    await durability(store, Durability.STRICT)
    await store.complete(upload, [part])
    store.memory.lose_power()
    await store.die(boot_id=b"another boot")
    assert await store.get("key") == data


async def test_relaxed_parts_that_a_power_cut_took_are_not_served(memory_store: MemoryStoreUnderTest) -> None:
    """No relaxed object was ever published: the parts alone must end the epoch."""
    store = memory_store
    await durability(store, Durability.RELAXED)
    upload = await store.create_upload("key")
    part = await store.put_part(upload, 1, store.file(os.urandom(SIZE), durable=False))
    file = store.disk.files[part.payload.directory, part.payload.id]  # type: ignore[union-attr]
    file.data = bytes(SIZE)
    await store.die(boot_id=b"another boot")
    version = await store.complete(upload, [part])
    assert version.epoch == 1
    with pytest.raises(ObjectNotFound):
        await store.get("key")


@pytest.mark.parametrize("left", [bytes(SIZE), b"short", None])
async def test_a_strict_complete_refuses_a_part_that_was_lost(store: StoreUnderTest, left: bytes | None) -> None:
    await durability(store, Durability.RELAXED)
    upload = await store.create_upload("key")
    parts = [await store.put_part(upload, n, store.file(os.urandom(SIZE), durable=False)) for n in (1, 2)]
    store.damage(parts[1].payload, left)
    await store.die(boot_id=b"another boot")
    await durability(store, Durability.STRICT)
    with pytest.raises(InvalidPart) as refused:
        await store.complete(upload, parts)
    assert refused.value.number == 2
    await store.objects.abort_upload("bucket", "key", upload.id)


async def test_a_part_keeps_its_epoch_whatever_the_clock_says(store: StoreUnderTest) -> None:
    """A clock that was set back by the power cut must not make a part look newer than it."""
    await durability(store, Durability.RELAXED)
    upload = await store.create_upload("key")
    payload = store.file(os.urandom(SIZE), durable=False)
    part = Part(1, payload, "etag", store.clock() + 10**15)
    await store.objects.put_part("bucket", "key", upload.id, part)
    await store.die(boot_id=b"another boot")
    version = await store.objects.complete_upload(
        "bucket", "key", upload.id, [CompletedPart(1, "etag")], describe=lambda _upload, _parts: ("etag-1", None)
    )
    assert version.epoch == 1


async def test_a_cancelled_put_that_waits_for_a_sync_leaves_no_file(
    store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: object, _payloads: list[FilePayload]) -> None:
        raise StorageError("the drive failed")

    monkeypatch.setattr(type(store.payloads), "sync", fail)
    put = asyncio.create_task(store.put("key", store.file(bytes(SIZE), durable=False)))
    await asyncio.sleep(0)
    put.cancel()
    await asyncio.gather(put, return_exceptions=True)
    await store.objects.close()
    assert store.files() == set()


async def test_a_payload_that_the_sweep_took_is_not_published(store: StoreUnderTest) -> None:
    """A process suspended between seal and commit for longer than the sweep waits."""
    upload = await store.create_upload("key")
    for write in (lambda lost: store.put("key", lost), lambda lost: store.put_part(upload, 1, lost)):
        payload = store.file(bytes(SIZE))
        assert store.sweep().unlinked == 1
        with pytest.raises(StorageError):
            await write(payload)
    assert store.rows(Table.OBJECTS) == store.rows(Table.PARTS) == {}


async def test_a_payload_that_is_published_while_the_sweep_looks_stays(
    store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = store.file(bytes(SIZE))
    looked = "s3verbs.storage.sweep._orphans"
    stored = next(file for number in store.payloads.directories for file in store.payloads.files(number))
    monkeypatch.setattr(looked, lambda _metadata, files: [stored] if files else [])
    await store.put("key", payload)
    assert store.sweep().unlinked == 0
    assert await store.get("key") == bytes(SIZE)


async def test_one_row_that_cannot_be_reclaimed_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskStoreUnderTest(tmp_path)
    await store.objects.create_bucket("bucket", owner="tester")
    for key in ("a", "b", "c"):
        await store.put(key, bytes(SIZE))
    bad = store.objects.lookup("bucket", "b").parts[0].payload.id
    delete = NvmePayloadStore.delete

    def refused(self: NvmePayloadStore, payloads: list[FilePayload]) -> list[FilePayload]:
        if payloads[0].id == bad:
            raise StorageError("in a directory that the store has not")
        return delete(self, payloads)

    monkeypatch.setattr(NvmePayloadStore, "delete", refused)
    await store.objects.delete_many("bucket", ["a", "b", "c"])
    await store.objects.reclaim()
    assert list(store.rows(Table.RECLAIM)) == [bad]
    assert store.files() == {bad}
    await store.close()


async def test_a_hold_that_fails_leaves_no_descriptor_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DiskStoreUnderTest(tmp_path)
    await store.objects.create_bucket("bucket", owner="tester")
    upload = await store.create_upload("key")
    version = await store.complete(upload, [await store.put_part(upload, n, store.file(bytes(SIZE))) for n in (1, 2)])

    def refused(_self: NvmePayloadReader) -> bool:
        raise PayloadDamaged("no locks available")

    monkeypatch.setattr(NvmePayloadReader, "hold", refused)
    before = len(list(Path("/proc/self/fd").iterdir()))
    caught = []
    for _ in range(3):
        try:
            await store.objects.open("bucket", "key", version)
        except PayloadDamaged as failure:
            caught.append(failure)
    assert len(caught) == 3
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    await store.close()
