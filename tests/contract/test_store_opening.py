"""Opening a store: what makes one, what is refused and why, and who else may have it open."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import s3verbs
from s3verbs.storage import epochs, opening
from s3verbs.storage.errors import StoreUnusable
from s3verbs.storage.memory import MemoryPayloadStore
from s3verbs.storage.metadata import Table
from s3verbs.storage.model import Durability
from s3verbs.storage.opening import Store, open_store
from s3verbs.storage.sweep import MINIMUM_AGE_NS, sweep_orphans
from tests.storage_fixtures import NO_ATTRIBUTES, StoreUnderTest, read, store_fixture  # noqa: F401

MAP = 1 << 24


def opened(*data: Path, read_only: bool = False, exclusive: bool = False) -> Store:
    return open_store(data, map_bytes=MAP, reserve_bytes=1 << 16, read_only=read_only, exclusive=exclusive)


async def put(store: Store, key: str, data: bytes) -> None:
    await store.objects.publish(
        "bucket", key, payload=store.objects.inline_payload(data), etag="e", attributes=NO_ATTRIBUTES, checksum=None
    )


async def test_a_store_is_made_and_found_again_whatever_the_order(tmp_path: Path) -> None:
    one, two = tmp_path / "deep" / "one", tmp_path / "two"
    store = opened(one, two)
    await store.objects.create_bucket("bucket", owner="me")
    await put(store, "key", b"data")
    uuid = store.uuid
    await store.objects.close()
    store.close()
    store.close()
    store = opened(two, one)
    assert (store.uuid, store.home) == (uuid, one)
    reader = await store.objects.open("bucket", "key", store.objects.lookup("bucket", "key"))
    assert read(reader) == b"data"
    store.close()
    with pytest.raises(StoreUnusable, match="missing"):
        opened(one)


OTHER = """
import sys
from pathlib import Path
from s3verbs.storage.opening import open_store
store = open_store([Path(sys.argv[1])], map_bytes=1 << 24, boot_id=b"boot")
print(store.objects.bucket("bucket").owner, flush=True)
sys.stdin.read()
store.close()
"""


@contextmanager
def other_process(data: Path) -> Iterator[str]:
    """A process that has the store open; what it found there."""
    environment = {**os.environ, "PYTHONPATH": str(Path(s3verbs.__file__).parents[1])}
    command = [sys.executable, "-c", OTHER, str(data)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate("")
    assert process.returncode == 0


async def test_several_processes_share_a_store_and_one_may_have_it_alone(tmp_path: Path) -> None:
    store = opened(tmp_path)
    await store.objects.create_bucket("bucket", owner="me")
    with other_process(tmp_path) as owner:
        assert owner == "me"
        store.close()
        with pytest.raises(StoreUnusable, match="another process"):
            opened(tmp_path, exclusive=True)
    alone = opened(tmp_path, exclusive=True)
    with pytest.raises(StoreUnusable, match="another process"):
        opened(tmp_path, exclusive=True)
    alone.close()
    opened(tmp_path).close()


def test_processes_that_make_a_store_at_once_make_one(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from s3verbs.storage.opening import open_store
sys.stdin.read(1)
store = open_store([Path(folder) for folder in sys.argv[1:]], map_bytes=1 << 24)
print(store.uuid)
store.close()
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(s3verbs.__file__).parents[1])}
    command = [sys.executable, "-c", script, str(tmp_path / "one"), str(tmp_path / "two")]
    makers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
        for _ in range(4)
    ]
    for maker in makers:
        assert maker.stdin is not None
        maker.stdin.write("x")
        maker.stdin.flush()
    said = {maker.communicate()[0] for maker in makers}
    assert [maker.returncode for maker in makers] == [0] * 4
    assert len(said) == 1


async def test_only_the_last_process_notes_a_clean_stop(tmp_path: Path) -> None:
    def marked() -> bool:
        seen = opened(tmp_path, read_only=True)
        with seen.metadata.read() as transaction:
            found = epochs.marked(transaction)
        seen.close()
        return found

    store = open_store([tmp_path], map_bytes=MAP, boot_id=b"boot")
    await store.objects.create_bucket("bucket", owner="me", durability=Durability.RELAXED)
    writer = store.objects.create_payload(100, durable=False)
    writer.write(memoryview(bytes(100)))
    await store.objects.publish(
        "bucket",
        "key",
        payload=writer.seal(durable=False),
        etag="e",
        attributes=NO_ATTRIBUTES,
        checksum=None,
    )
    await store.objects.close()
    with other_process(tmp_path):
        store.close()
        assert marked()
    assert not marked()


def test_an_open_waits_for_the_one_that_is_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = opened(tmp_path, exclusive=True)
    monkeypatch.setattr(opening, "LOCK_WAIT_SECONDS", 0.1)
    with pytest.raises(StoreUnusable, match="wait"):
        opened(tmp_path)
    monkeypatch.setattr(opening, "LOCK_WAIT_SECONDS", 30.0)
    timer = threading.Timer(0.2, alone.close)
    timer.start()
    opened(tmp_path).close()
    timer.join()


async def test_a_store_that_is_read_only_is_not_changed(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="no store"):
        opened(tmp_path, read_only=True)
    with pytest.raises(StoreUnusable, match="does not exist"):
        opened(tmp_path / "none", read_only=True)
    store = opened(tmp_path)
    await store.objects.create_bucket("bucket", owner="me")
    store.close()
    store = opened(tmp_path, read_only=True)
    assert store.objects.bucket("bucket").owner == "me"
    with pytest.raises(StoreUnusable):
        await store.objects.create_bucket("other", owner="me")
    store.close()


def test_what_is_no_store_is_refused_with_what_to_change(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="--data"):
        open_store([])
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(StoreUnusable, match="directory"):
        opened(file)
    one, two, three = tmp_path / "one", tmp_path / "two", tmp_path / "three"
    opened(one, three).close()
    opened(two).close()
    with pytest.raises(StoreUnusable, match="one store"):
        opened(one, two)
    with pytest.raises(StoreUnusable, match="missing --data"):
        opened(three)
    marker = three / "s3verbs-payloads.json"
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"store": "00000000-0000-4000-8000-000000000000"}))
    with pytest.raises(StoreUnusable):
        opened(one, three)


def test_a_store_of_a_later_format_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.metadata.write_now(lambda transaction: transaction.put(Table.STORE, opening.FORMAT_KEY, b"99"))
    store.close()
    for read_only in (False, True):
        with pytest.raises(StoreUnusable, match="format 99"):
            opened(tmp_path, read_only=read_only)


def test_a_failed_open_leaves_no_lock(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    opened(one, two).close()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises(StoreUnusable):
        opened(one)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    opened(one, two, exclusive=True).close()


# -- the orphan sweep --


async def test_the_sweep_takes_only_old_files_that_nobody_knows(store: StoreUnderTest) -> None:
    await store.put("key", os.urandom(20_000))
    upload = await store.create_upload("key")
    await store.put_part(upload, 1, os.urandom(20_000))
    await store.put("replaced", os.urandom(20_000))
    reader = await store.objects.open("bucket", "key", store.objects.lookup("bucket", "key"))
    known = store.files()
    orphans = {store.file(b"orphan").id for _ in range(5)}
    newest = max(file.mtime_ns for number in store.payloads.directories for file in store.payloads.files(number))
    assert store.sweep(now_ns=newest + MINIMUM_AGE_NS - 10_000_000_000).unlinked == 0
    assert store.files() == known | orphans
    swept = store.sweep(now_ns=newest + MINIMUM_AGE_NS + 1)
    assert (swept.examined, swept.unlinked, swept.finished) == (8, 5, True)
    assert swept.freed_bytes >= 5 * len(b"orphan")
    assert store.files() == known
    reader.close()


async def test_the_sweep_leaves_what_waits_for_reclaim(store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s3verbs.storage.uploads.MIN_PART_SIZE", 1)
    upload = await store.create_upload("key")
    parts = [await store.put_part(upload, number, os.urandom(20_000)) for number in (1, 2)]
    reader = await store.objects.open("bucket", "key", await store.complete(upload, parts))
    await store.objects.delete("bucket", "key")
    await store.objects.reclaim()
    assert store.sweep().unlinked == 0
    assert len(read(reader)) == 40_000
    reader.close()


async def test_one_process_sweeps_at_a_time(store: StoreUnderTest, tmp_path: Path) -> None:
    class Sweeping(MemoryPayloadStore):
        def remove_unsealed(self) -> int:
            other = sweep_orphans(store.metadata, store.payloads, now_ns=1 << 62, lock=lock)
            assert not other.finished
            return super().remove_unsealed()

    lock = tmp_path / "sweep.lock"
    assert sweep_orphans(store.metadata, Sweeping(), now_ns=0, lock=lock).finished
    assert store.sweep(lock=lock).finished


async def test_a_sweep_stops_when_told(store: StoreUnderTest) -> None:
    for _ in range(3):
        store.file(b"orphan")
    stop = threading.Event()
    stop.set()
    swept = store.sweep(stop=stop)
    assert not swept.finished
    store.sweep()
