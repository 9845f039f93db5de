"""A crash at every single step of a write leaves the old state or the new one, and nothing leaks after the sweep."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from s3verbs.storage.errors import ObjectNotFound, StorageFull
from s3verbs.storage.faults import Crash
from s3verbs.storage.metadata import Table
from tests.storage_fixtures import MemoryStoreUnderTest, memory_store_fixture  # noqa: F401

OLD, NEW = b"o" * 20_000, b"n" * 30_000
PARTS = [b"1" * 20_000, b"2" * 20_000, b"tail"]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s3verbs.storage.uploads.MIN_PART_SIZE", 1)


async def publish(store: MemoryStoreUnderTest) -> None:
    await store.put("key", NEW)


async def publish_inline(store: MemoryStoreUnderTest) -> None:
    await store.put("key", b"small")


async def delete(store: MemoryStoreUnderTest) -> None:
    await store.objects.delete("bucket", "key")


async def delete_many(store: MemoryStoreUnderTest) -> None:
    await store.objects.delete_many("bucket", ["key", "other"])


async def complete(store: MemoryStoreUnderTest) -> None:
    upload = store.objects.list_uploads("bucket").uploads[0]
    parts, _ = store.objects.parts("bucket", "key", upload.id)
    await store.complete(upload, parts[:-1])


async def abort(store: MemoryStoreUnderTest) -> None:
    upload = store.objects.list_uploads("bucket").uploads[0]
    await store.objects.abort_upload("bucket", "key", upload.id)


async def put_part(store: MemoryStoreUnderTest) -> None:
    upload = store.objects.list_uploads("bucket").uploads[0]
    await store.put_part(upload, 1, NEW)


OPERATIONS = [publish, publish_inline, delete, delete_many, complete, abort, put_part]


async def prepared(root: Path) -> MemoryStoreUnderTest:
    store = MemoryStoreUnderTest(root)
    await store.objects.create_bucket("bucket", owner="me")
    await store.put("key", OLD)
    await store.put("other", OLD)
    upload = await store.create_upload("key")
    for number, piece in enumerate([*PARTS, b"not listed" * 2000], 1):
        await store.put_part(upload, number, piece)
    await store.objects.close()
    store.start()
    return store


async def state(store: MemoryStoreUnderTest) -> dict[str, object]:
    seen: dict[str, object] = {}
    for key in ("key", "other"):
        try:
            seen[key] = await store.get(key)
        except ObjectNotFound:
            seen[key] = None
    for upload in store.objects.list_uploads("bucket").uploads:
        parts, _ = store.objects.parts("bucket", "key", upload.id)
        seen["upload"] = [(part.number, part.size) for part in parts]
    return seen


async def run_to_the_end(
    store: MemoryStoreUnderTest, operation: Callable[[MemoryStoreUnderTest], Awaitable[None]]
) -> None:
    await operation(store)
    await store.objects.close()


async def crash_after(store: MemoryStoreUnderTest) -> None:
    """A new process; what the old one had in flight is gone with it."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0)
    store.start()


async def assert_whole(store: MemoryStoreUnderTest) -> None:
    await store.objects.reclaim()
    report = store.check()
    assert {finding.kind for finding in report.findings} <= {"orphan-file"}
    assert report.counts["waiting_files"] == 0
    store.sweep()
    assert store.check().findings == []
    await store.objects.close()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
async def test_every_crash_leaves_the_old_or_the_new_state(
    operation: Callable[[MemoryStoreUnderTest], Awaitable[None]], tmp_path: Path
) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    whole = await prepared(tmp_path)
    old = await state(whole)
    already = len(whole.faults.passed)
    await run_to_the_end(whole, operation)
    steps = whole.faults.passed[already:]
    whole.start()
    new = await state(whole)
    assert old != new
    assert "metadata.commit" in steps
    outcomes = []
    for number, step in enumerate(steps):
        store = await prepared(tmp_path)
        await state(store)
        store.faults.crash(step, after=steps[:number].count(step))
        with suppress(Crash):  # it is not seen here when the reclaim in the background dies
            await run_to_the_end(store, operation)
        assert store.faults.dead
        await crash_after(store)
        outcomes.append(await state(store))
        # What a commit has dropped waits in RECLAIM, so that only files that were never published need the sweep.
        orphans = store.files() - set(store.rows(Table.PAYLOADS))
        if outcomes[-1] == new:
            await store.objects.reclaim()
            assert store.files() == set(store.rows(Table.PAYLOADS)), (step, number)
        else:
            assert len(orphans) <= 1
        await assert_whole(store)
    committed = steps.index("metadata.committed")
    assert outcomes == [old] * committed + [new] * (len(steps) - committed)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
@pytest.mark.parametrize("step", ["metadata.write", "metadata.commit"])
async def test_a_full_disk_changes_nothing_and_leaks_nothing(
    operation: Callable[[MemoryStoreUnderTest], Awaitable[None]], step: str, tmp_path: Path
) -> None:
    store = await prepared(tmp_path)
    old = await state(store)
    files = store.files()
    store.faults.fail(step, StorageFull("no room"))
    with pytest.raises(StorageFull):
        await operation(store)
    assert await state(store) == old
    await store.objects.close()
    assert store.files() == files
    assert store.check().findings == []


@pytest.mark.parametrize("step", ["payload.create", "payload.write", "payload.seal"])
async def test_a_payload_that_finds_no_room_leaves_nothing(step: str, memory_store: MemoryStoreUnderTest) -> None:
    memory_store.faults.fail(step, StorageFull("no room"))
    with pytest.raises(StorageFull):
        await memory_store.put("key", NEW)
    assert memory_store.files() == set()
    assert memory_store.check().findings == []


async def test_files_that_cannot_be_unlinked_are_tried_again(memory_store: MemoryStoreUnderTest) -> None:
    store = memory_store
    await store.put("key", OLD)
    store.faults.fail("payload.delete", OSError(5, "Input/output error"))
    await store.objects.delete("bucket", "key")
    await store.objects.close()
    assert len(store.files()) == 1
    assert store.check().counts["waiting_files"] == 1
    assert store.check().findings == []
    store.start()
    assert await store.objects.reclaim() == 1
    assert (store.files(), store.rows(Table.RECLAIM)) == (set(), {})


async def test_a_reclaim_whose_commit_fails_is_finished_later(memory_store: MemoryStoreUnderTest) -> None:
    store = memory_store
    await store.put("key", OLD)
    await store.objects.delete("bucket", "key")
    store.faults.fail("metadata.commit", StorageFull("no room"))
    await store.objects.close()
    assert store.files() == set()
    assert len(store.rows(Table.RECLAIM)) == 1
    store.start()
    await store.objects.reclaim()
    assert store.rows(Table.RECLAIM) == {}


async def test_a_publish_torn_down_with_its_loop_never_loses_a_published_payload(
    memory_store: MemoryStoreUnderTest,
) -> None:
    """asyncio.run cancels every task, also the one that waits for the commit; the commit comes all the same."""
    store = memory_store
    payload = store.file(NEW)
    writing = asyncio.create_task(store.put("key", payload))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await asyncio.sleep(0.05)
    assert await store.get("key") == NEW
    await store.objects.close()
    assert store.files() == {payload.id}
