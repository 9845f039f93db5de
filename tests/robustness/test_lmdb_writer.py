"""Group commit, growth of the map and errors of the LMDB store within one process."""

import asyncio
import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from s3verbs.storage import lmdb_environment, writer
from s3verbs.storage.errors import StorageError, StoreUnusable
from s3verbs.storage.lmdb_store import LmdbMetadataStore
from s3verbs.storage.metadata import Table, WriteTransaction
from s3verbs.storage.writer import Change, GroupCommitter

PATIENCE_S = 20.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbMetadataStore]:
    opened = LmdbMetadataStore(tmp_path / "metadata", map_bytes=1 << 20, reserve_bytes=0)
    yield opened
    opened.close()


class Gate:
    """A change that keeps the writer thread until it is let go, so that what is written meanwhile queues up."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, transaction: WriteTransaction) -> None:
        self.entered.set()
        assert self.opened.wait(PATIENCE_S)


async def test_changes_that_wait_share_one_commit(store: LmdbMetadataStore) -> None:
    gate = Gate()
    first = asyncio.create_task(store.write(gate))
    await asyncio.to_thread(gate.entered.wait, PATIENCE_S)
    waiting = [
        asyncio.create_task(store.write(lambda transaction, n=n: transaction.put(Table.OBJECTS, b"%d" % n, b"v")))
        for n in range(100)
    ]
    await asyncio.sleep(0)
    before = store.commits
    gate.opened.set()
    await asyncio.gather(first, *waiting)
    assert store.commits == before + 1


async def test_a_group_has_a_limit(store: LmdbMetadataStore) -> None:
    gate = Gate()
    first = asyncio.create_task(store.write(gate))
    await asyncio.to_thread(gate.entered.wait, PATIENCE_S)
    waiting = [
        asyncio.create_task(store.write(lambda transaction: transaction.put(Table.OBJECTS, b"k", b"v")))
        for _ in range(2 * writer.MAX_GROUP + 1)
    ]
    await asyncio.sleep(0)
    gate.opened.set()
    await asyncio.gather(first, *waiting)
    assert store.commits == 3


async def test_a_change_that_writes_nothing_commits_nothing(store: LmdbMetadataStore) -> None:
    assert await store.write(lambda transaction: transaction.get(Table.OBJECTS, b"k")) is None
    assert not await store.write(lambda transaction: transaction.delete(Table.OBJECTS, b"k"))
    assert store.commits == 0


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (SystemExit(3), SystemExit),
        (StopIteration(), RuntimeError),
        (KeyError("k"), KeyError),
        (MemoryError(), MemoryError),
    ],
)
def test_the_writer_outlives_what_a_change_raises(
    store: LmdbMetadataStore, raised: BaseException, expected: type[BaseException]
) -> None:
    def change(transaction: WriteTransaction) -> None:
        transaction.put(Table.OBJECTS, b"k", b"v")
        raise raised

    async def run(function: object) -> None:
        await store.write(function)  # type: ignore[arg-type]

    with pytest.raises(expected):
        asyncio.run(run(change))
    asyncio.run(run(lambda transaction: transaction.put(Table.OBJECTS, b"after", b"v")))
    with store.read() as snapshot:
        assert [key for key, _ in snapshot.scan(Table.OBJECTS)] == [b"after"]


def test_a_change_that_hides_an_error_of_the_map_is_still_run_again(store: LmdbMetadataStore) -> None:
    def change(transaction: WriteTransaction) -> int:
        hidden = 0
        for number in range(300):
            try:
                transaction.put(Table.INLINE, b"%d" % number, b"x" * 16_000)
            except Exception:  # noqa: BLE001
                hidden += 1
        return hidden

    assert store.write_now(change) == 0
    with store.read() as snapshot:
        assert sum(1 for _ in snapshot.scan(Table.INLINE)) == 300


def test_a_key_that_does_not_fit_is_refused_and_harms_nothing(store: LmdbMetadataStore) -> None:
    for key in (b"", b"k" * 512):
        with pytest.raises(ValueError, match="does not fit"):
            store.write_now(lambda transaction, key=key: transaction.put(Table.OBJECTS, key, b"v"))
    store.write_now(lambda transaction: transaction.put(Table.OBJECTS, b"k" * 511, b"v"))


def test_writes_of_several_loops_and_threads_mix(store: LmdbMetadataStore) -> None:
    def work(name: int) -> None:
        async def run() -> None:
            for number in range(20):
                key = b"%d-%d" % (name, number)
                await store.write(lambda transaction, key=key: transaction.put(Table.OBJECTS, key, b"v"))
                store.write_now(lambda transaction, key=key: transaction.put(Table.INLINE, key, b"v"))
                with store.read() as snapshot:
                    assert snapshot.get(Table.OBJECTS, key) == snapshot.get(Table.INLINE, key) == b"v"

        asyncio.run(run())

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    with store.read() as snapshot:
        assert sum(1 for _ in snapshot.scan(Table.OBJECTS)) == 80


def test_a_change_whose_loop_is_gone_is_committed(store: LmdbMetadataStore) -> None:
    gate = Gate()

    async def abandon() -> None:
        for change in (gate, lambda transaction: transaction.put(Table.OBJECTS, b"k", b"v")):
            asyncio.ensure_future(store.write(change)).add_done_callback(lambda task: task.cancelled())
            await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(abandon())
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()
    gate.opened.set()
    store.close()
    again = LmdbMetadataStore(store._environment.path, map_bytes=1 << 20, reserve_bytes=0)
    with again.read() as snapshot:
        assert snapshot.get(Table.OBJECTS, b"k") == b"v"
    again.close()


async def test_an_error_of_the_commit_itself_reaches_every_change() -> None:
    def commit(changes: object) -> None:
        raise OSError("the disk is gone")

    committer = GroupCommitter(commit)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            await committer.run(lambda transaction: None)
    committer.close()


async def test_what_comes_after_close_is_refused() -> None:
    ran: list[Change] = []
    committer = GroupCommitter(ran.extend)
    await committer.run(lambda transaction: None)
    committer.close()
    with pytest.raises(StorageError, match="closed"):
        await committer.run(lambda transaction: None)
    assert len(ran) == 1


def test_a_closed_store_gives_no_snapshot_and_takes_no_change(store: LmdbMetadataStore) -> None:
    store.close()
    with pytest.raises(StorageError, match="closed"), store.read():
        pass
    with pytest.raises(StorageError, match="closed"):
        store.write_now(lambda transaction: None)


def test_the_map_grows_once_the_snapshots_of_the_process_have_ended(store: LmdbMetadataStore) -> None:
    store.write_now(lambda transaction: transaction.put(Table.OBJECTS, b"k", b"old"))
    reading, done = threading.Event(), threading.Event()
    seen: list[bytes | None] = []

    def read() -> None:
        with store.read() as snapshot:
            reading.set()
            done.wait(0.3)
            seen.append(snapshot.get(Table.OBJECTS, b"k"))

    thread = threading.Thread(target=read)
    thread.start()
    assert reading.wait(PATIENCE_S)

    def change(transaction: WriteTransaction) -> None:
        transaction.put(Table.OBJECTS, b"k", b"new")
        transaction.put(Table.INLINE, b"k", b"x" * (5 << 20))

    store.write_now(change)
    assert seen == [b"old"]
    thread.join(PATIENCE_S)
    with store.read() as snapshot:
        assert snapshot.get(Table.OBJECTS, b"k") == b"new"
        assert snapshot.get(Table.INLINE, b"k") == b"x" * (5 << 20)


def test_a_snapshot_that_does_not_end_fails_the_growth_and_nothing_else(
    store: LmdbMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_environment, "RESIZE_TIMEOUT_S", 0.1)
    failures: list[BaseException] = []

    def write() -> None:
        try:
            store.write_now(lambda transaction: transaction.put(Table.INLINE, b"k", b"x" * (5 << 20)))
        except StorageError as failure:
            failures.append(failure)

    with store.read() as snapshot:
        thread = threading.Thread(target=write)
        thread.start()
        thread.join(PATIENCE_S)
        assert [str(failure) for failure in failures] == ["the map cannot change size: a snapshot stayed open for 0 s"]
        assert snapshot.get(Table.INLINE, b"k") is None
    write()
    assert len(failures) == 1
    with store.read() as snapshot:
        assert snapshot.get(Table.INLINE, b"k") == b"x" * (5 << 20)


def test_the_number_of_an_error_is_read_from_its_code_or_its_text() -> None:
    coded, bare = lmdb.Error("mdb_txn_commit"), lmdb.Error(f"mdb_txn_commit: {os.strerror(errno.ENOSPC)}")
    coded.code = errno.EIO  # type: ignore[misc]
    assert lmdb_environment.error_number(coded) == errno.EIO
    assert lmdb_environment.error_number(bare) == errno.ENOSPC
    assert lmdb_environment.error_number(lmdb.Error("something else")) == 0


# -- opening --


def test_a_store_is_open_once_in_a_process(store: LmdbMetadataStore) -> None:
    path = store._environment.path
    with pytest.raises(StoreUnusable, match="open in this process"):
        LmdbMetadataStore(path, map_bytes=1 << 20)
    alias = path.with_name("alias")
    alias.symlink_to(path)
    with pytest.raises(StoreUnusable, match="open in this process"):
        LmdbMetadataStore(alias, map_bytes=1 << 20)
    store.close()
    LmdbMetadataStore(path, map_bytes=1 << 20, reserve_bytes=0).close()


def test_the_lock_file_has_no_holes(store: LmdbMetadataStore) -> None:
    status = (store._environment.path / "lock.mdb").stat()
    assert status.st_blocks * 512 >= status.st_size > 2048 * 64


def test_nobody_but_the_owner_may_read_the_files(store: LmdbMetadataStore) -> None:
    path = store._environment.path
    assert [oct(file.stat().st_mode & 0o077) for file in (path, *path.iterdir())] == ["0o0"] * 4


def test_opening_waits_for_another_process_that_opens(tmp_path: Path) -> None:
    path = tmp_path / "metadata"
    path.mkdir()
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    opened: list[float] = []

    def open_it() -> None:
        store = LmdbMetadataStore(path, map_bytes=1 << 20, reserve_bytes=0)
        opened.append(time.monotonic())
        store.close()

    thread = threading.Thread(target=open_it)
    thread.start()
    time.sleep(0.1)
    released = time.monotonic()
    os.close(descriptor)
    thread.join(PATIENCE_S)
    assert opened[0] >= released


def test_a_read_only_store_reads_and_refuses_changes(store: LmdbMetadataStore) -> None:
    store.write_now(lambda transaction: transaction.put(Table.OBJECTS, b"k", b"v"))
    path = store._environment.path
    store.close()
    reader = LmdbMetadataStore(path, map_bytes=1 << 20, read_only=True)
    with reader.read() as snapshot:
        assert snapshot.get(Table.OBJECTS, b"k") == b"v"
    with pytest.raises(StoreUnusable, match="reading only"):
        reader.write_now(lambda transaction: None)
    reader.close()
    assert not (path / "reserve").exists()


def test_what_is_no_store_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="missing"):
        LmdbMetadataStore(tmp_path / "missing", map_bytes=1 << 20, read_only=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreUnusable, match="no metadata store"):
        LmdbMetadataStore(tmp_path / "empty", map_bytes=1 << 20, read_only=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnusable, match="file"):
        LmdbMetadataStore(tmp_path / "file", map_bytes=1 << 20)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "data.mdb").write_bytes(b"something else" * 1000)
    for _ in range(2):
        with pytest.raises(StoreUnusable, match="not an LMDB file"):
            LmdbMetadataStore(tmp_path / "other", map_bytes=1 << 20)
