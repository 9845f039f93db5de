"""The metadata store on a disk that has no room left."""

import asyncio
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3verbs.storage import disk_reserve
from s3verbs.storage.disk_reserve import DiskReserve
from s3verbs.storage.errors import StorageFull
from s3verbs.storage.lmdb_store import LmdbMetadataStore
from s3verbs.storage.metadata import Table, WriteTransaction

DISK = 16 << 20
RESERVE = 2 << 20
PATIENCE_S = 20.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "s3verbs-test", str(mount)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as failure:
        pytest.skip(f"a small tmpfs cannot be mounted: {failure}")
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


@pytest.fixture
def store(disk: Path) -> Iterator[LmdbMetadataStore]:
    opened = LmdbMetadataStore(disk / "metadata", map_bytes=1 << 30, reserve_bytes=RESERVE)
    yield opened
    opened.close()


def free(disk: Path) -> int:
    status = os.statvfs(disk)
    return status.f_bavail * status.f_frsize


def fill_up(disk: Path, leave: int = 0) -> Path:
    """What payloads do: take everything that is left, but for `leave` bytes."""
    junk = disk / "junk"
    with junk.open("wb", buffering=0) as file:
        while free(disk) > leave:
            file.write(bytes(4096))
    assert free(disk) == leave
    return junk


def put(store: LmdbMetadataStore, number: int, size: int = 50_000) -> None:
    store.write_now(lambda transaction: transaction.put(Table.INLINE, b"%06d" % number, b"x" * size))


def delete(store: LmdbMetadataStore, number: int) -> bool:
    return store.write_now(lambda transaction: transaction.delete(Table.INLINE, b"%06d" % number), frees_space=True)


def present(store: LmdbMetadataStore) -> list[int]:
    with store.read() as snapshot:
        return [int(key) for key, _ in snapshot.scan(Table.INLINE)]


@pytest.fixture
def checked_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_reserve, "CHECK_INTERVAL_S", 0.0)


@pytest.fixture
def checked_never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_reserve, "CHECK_INTERVAL_S", 1e9)
    monkeypatch.setattr(disk_reserve, "REFILL_INTERVAL_S", 1e9)


def written_until_full(store: LmdbMetadataStore) -> int:
    for number in range(10_000):
        try:
            put(store, number)
        except StorageFull:
            return number
    raise AssertionError("the disk never became full")


@pytest.mark.usefixtures("checked_always")
def test_changes_that_take_space_leave_the_reserve(disk: Path, store: LmdbMetadataStore) -> None:
    count = written_until_full(store)
    assert count > 100
    assert present(store) == list(range(count))
    assert RESERVE - 200_000 < free(disk) < RESERVE
    assert (disk / "metadata" / "reserve").stat().st_blocks * 512 == RESERVE


@pytest.mark.usefixtures("checked_never_again")
@pytest.mark.parametrize("leave", [0, 4096, 40960])
def test_a_disk_that_fills_between_two_checks_fails_the_change_and_nothing_else(
    disk: Path, store: LmdbMetadataStore, leave: int
) -> None:
    put(store, 0)
    # With some pages left a write comes out short, which LMDB reports in another way.
    junk = fill_up(disk, leave)
    for _ in range(3):
        with pytest.raises(StorageFull):
            put(store, 1, size=1 << 20)
    assert present(store) == [0]
    junk.unlink()
    put(store, 1, size=1 << 20)
    assert present(store) == [0, 1]


@pytest.mark.usefixtures("checked_always")
def test_everything_can_be_deleted_from_a_full_disk_and_puts_come_back(
    disk: Path, store: LmdbMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (disk / "payloads").write_bytes(bytes(2 * RESERVE))
    count = written_until_full(store)
    fill_up(disk)
    with pytest.raises(StorageFull):
        store.write_now(lambda transaction: transaction.delete(Table.INLINE, b"000000"))
    # While a snapshot keeps every old page, each delete has to find new ones.
    reading, done = threading.Event(), threading.Event()
    seen: list[int] = []

    def read() -> None:
        with store.read() as snapshot:
            reading.set()
            done.wait(PATIENCE_S)
            seen.extend(len(value) for _, value in snapshot.scan(Table.INLINE))

    reader = threading.Thread(target=read)
    reader.start()
    assert reading.wait(PATIENCE_S)
    assert all(delete(store, number) for number in range(20))
    assert (disk / "metadata" / "reserve").stat().st_size == 0
    done.set()
    reader.join(PATIENCE_S)
    assert seen == [50_000] * count
    assert all(delete(store, number) for number in range(20, count))
    assert present(store) == []
    # The file has not become smaller; what is free inside takes puts again, and still leaves the reserve.
    again = written_until_full(store)
    assert again > 50
    assert all(delete(store, number) for number in range(again))

    (disk / "payloads").unlink()
    monkeypatch.setattr(disk_reserve, "REFILL_INTERVAL_S", 0.0)
    put(store, 0)
    assert (disk / "metadata" / "reserve").stat().st_blocks * 512 == RESERVE
    assert present(store) == [0]


@pytest.mark.usefixtures("checked_never_again")
async def test_deletes_of_a_group_commit_when_its_puts_find_no_room(disk: Path, store: LmdbMetadataStore) -> None:
    for number in range(8):
        put(store, number)
    fill_up(disk)
    gate = threading.Event()
    first = asyncio.create_task(store.write(lambda transaction: gate.wait(PATIENCE_S)))
    await asyncio.sleep(0.05)

    def change(number: int) -> object:
        key = b"%06d" % number

        def run(transaction: WriteTransaction) -> object:
            if number % 2:
                return transaction.delete(Table.INLINE, key)
            return transaction.put(Table.INLINE, key, b"y" * (1 << 20))

        return run

    tasks = [asyncio.create_task(store.write(change(n), frees_space=bool(n % 2))) for n in range(8)]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    gate.set()
    results = await asyncio.gather(first, *tasks, return_exceptions=True)
    assert [result is True for result in results[1:]] == [bool(n % 2) for n in range(8)]
    assert all(isinstance(result, StorageFull) for result in results[1::2])
    with store.read() as snapshot:
        assert {(int(key), value[:1]) for key, value in snapshot.scan(Table.INLINE)} == {
            (n, b"x") for n in (0, 2, 4, 6)
        }


def test_a_store_opens_on_a_full_disk(disk: Path, store: LmdbMetadataStore) -> None:
    put(store, 0)
    store.close()
    fill_up(disk)
    again = LmdbMetadataStore(disk / "metadata", map_bytes=1 << 30, reserve_bytes=RESERVE)
    assert present(again) == [0]
    with pytest.raises(StorageFull):
        put(again, 1)
    assert delete(again, 0)
    again.close()


def test_a_store_is_not_made_on_a_full_disk(disk: Path) -> None:
    (disk / "metadata").mkdir()
    junk = fill_up(disk)
    with pytest.raises(StorageFull):
        LmdbMetadataStore(disk / "metadata", map_bytes=1 << 30, reserve_bytes=RESERVE)
    junk.unlink()
    LmdbMetadataStore(disk / "metadata", map_bytes=1 << 30, reserve_bytes=RESERVE).close()


def test_many_snapshots_can_be_opened_on_a_full_disk(disk: Path, store: LmdbMetadataStore) -> None:
    put(store, 0)
    fill_up(disk)
    # Each takes a slot of the lock file, which is written through a mapping.
    snapshots = [store.read() for _ in range(1000)]
    for snapshot in snapshots:
        snapshot.__enter__()
    for snapshot in snapshots:
        snapshot.__exit__()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_reserve_is_taken_when_there_is_room_and_given_back_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, room = Clock(), [0]
    reserve = DiskReserve(tmp_path, 1 << 20, monotonic=clock)
    monkeypatch.setattr(reserve, "_free", lambda: room[0])
    reserve.refill()
    assert not reserve.release()
    assert reserve.low()
    room[0] = 2 << 20
    assert reserve.low()  # looked at a moment ago
    clock.now += 1.5
    assert not reserve.low()
    reserve.refill()
    room[0] -= 1 << 20
    clock.now += 0.2
    assert not reserve.low()
    assert reserve.release()
    assert not reserve.release()
    assert reserve.low()
    clock.now += 0.5
    room[0] = 2 << 20
    reserve.refill()
    assert not reserve.release()  # too soon after it was given back
    clock.now += 1
    reserve.refill()
    assert reserve.release()


def test_a_reserve_that_cannot_be_made_does_not_fail_what_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_reserve, "REFILL_INTERVAL_S", 0.0)
    opened = LmdbMetadataStore(tmp_path / "metadata", map_bytes=1 << 20, reserve_bytes=4096)
    (tmp_path / "metadata" / "reserve").unlink()
    (tmp_path / "metadata" / "reserve").mkdir()
    monkeypatch.setattr(DiskReserve, "_held", lambda _: 0)
    put(opened, 0)
    assert present(opened) == [0]
    opened.close()


def test_no_reserve_refuses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = DiskReserve(tmp_path, 0)
    monkeypatch.setattr(reserve, "_free", lambda: 0)
    reserve.refill()
    assert not reserve.low()
    assert not reserve.release()
    assert list(tmp_path.iterdir()) == []
