"""Several payload directories: claiming, order, growth, refusal, choice by room, shared use, set-aside files."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from s3verbs.storage.errors import PayloadDamaged, StoreUnusable
from s3verbs.storage.model import FilePayload
from s3verbs.storage.nvme_store import FAILURE_PAUSE, NvmePayloadStore
from s3verbs.storage.payload_directory import DirectoryUsage, PayloadDirectory
from s3verbs.storage.payload_marker import MARKER_NAME

SCRIPT = Path(__file__).with_name("payload_writers.py")
SOURCE = Path(__file__).parents[2] / "src"
ID = bytes(range(16))


def opened(*paths: Path, store_id: bytes = ID, read_only: bool = False) -> NvmePayloadStore:
    return NvmePayloadStore(
        paths, store_id=store_id, new_id=lambda: os.urandom(16), reserve_bytes=0, read_only=read_only
    )


def put(store: NvmePayloadStore, data: bytes) -> FilePayload:
    writer = store.create(len(data))
    writer.write(memoryview(data))
    return writer.seal(durable=True)


def test_payloads_are_found_whatever_the_order_of_the_directories(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    store = opened(*paths)
    payloads = [put(store, bytes([number]) * 100) for number in range(40)]
    assert {payload.directory for payload in payloads} == {0, 1, 2}
    store = opened(paths[2], paths[0], paths[1])
    assert store.directories == dict(enumerate(paths))
    for payload in payloads:
        store.open(payload).close()


def test_a_store_grows_by_a_directory(tmp_path: Path) -> None:
    opened(tmp_path / "b")
    store = opened(tmp_path / "a", tmp_path / "b")
    assert store.directories == {0: tmp_path / "b", 1: tmp_path / "a"}
    with pytest.raises(StoreUnusable, match="number 1 is missing"):
        opened(tmp_path / "b")
    with pytest.raises(StoreUnusable, match="number 0 is missing"):
        opened(tmp_path / "a")


def test_a_store_whose_making_was_cut_short_is_finished(tmp_path: Path) -> None:
    store = opened(tmp_path / "a")
    payload = put(store, b"kept")
    (tmp_path / "b" / "00").mkdir(parents=True)
    store = opened(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert sorted(store.directories) == [0, 1, 2]
    store.open(payload).close()


def test_an_unmounted_drive_is_not_written_to(tmp_path: Path) -> None:
    opened(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b").rename(tmp_path / "elsewhere")
    (tmp_path / "b").mkdir()
    with pytest.raises(StoreUnusable, match="is its drive mounted"):
        opened(tmp_path / "a", tmp_path / "b")
    assert list((tmp_path / "b").iterdir()) == []


def test_another_stores_directory_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "a")
    with pytest.raises(StoreUnusable, match="belongs to store 00010203-0405-0607-0809-0a0b0c0d0e0f"):
        opened(tmp_path / "a", store_id=bytes(16))


def test_payloads_without_a_marker_are_not_claimed(tmp_path: Path) -> None:
    store = opened(tmp_path / "a")
    put(store, b"data")
    (tmp_path / "a" / MARKER_NAME).unlink()
    with pytest.raises(StoreUnusable, match="holds payload files but no"):
        opened(tmp_path / "a")


def test_the_same_directory_twice_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(StoreUnusable, match="given twice"):
        opened(tmp_path / "a", tmp_path / "link")
    with pytest.raises(StoreUnusable, match="given twice"):
        opened(tmp_path / "new", tmp_path / "x" / ".." / "new")


def test_reading_only_claims_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="not a payload directory"):
        opened(tmp_path / "a", read_only=True)
    assert not (tmp_path / "a").exists()
    payload = put(opened(tmp_path / "a"), b"data")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    store = opened(tmp_path / "a", read_only=True)
    store.open(payload).close()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_processes_that_start_together_agree_and_share(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in "abc"]
    command = [sys.executable, str(SCRIPT), "25"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    children = [
        subprocess.Popen([*command, *names[turn:], *names[:turn]], env=environment, stdout=subprocess.PIPE, text=True)
        for turn in (0, 0, 0)
    ]
    reports = [json.loads(child.communicate(timeout=60)[0]) for child in children]
    assert all(child.returncode == 0 for child in children)
    assert reports[0]["directories"] == reports[1]["directories"] == reports[2]["directories"]
    payloads = [
        FilePayload(bytes.fromhex(payload_id), directory, length, crc)
        for report in reports
        for payload_id, directory, length, crc in report["payloads"]
    ]
    store = opened(*(tmp_path / name for name in "cba"), store_id=bytes(16))
    for payload in payloads:
        reader = store.open(payload)
        reader.verify()
        reader.close()
    found = {file.id for number in store.directories for file in store.files(number)}
    assert found == {payload.id for payload in payloads}
    assert len(found) == 75


def test_emptier_directories_get_more_in_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    free = {0: 300 << 30, 1: 100 << 30, 2: 0}
    monkeypatch.setattr(
        PayloadDirectory, "usage", lambda self: DirectoryUsage(self.number, self.path, 1 << 40, free[self.number])
    )
    chosen: Counter[int] = Counter()
    for _ in range(800):
        writer = store.create()
        chosen[writer.seal(durable=False).directory] += 1
    assert chosen[2] == 0
    assert 500 < chosen[0] < 700


def test_a_directory_that_fails_is_left_alone_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    store = NvmePayloadStore(
        [tmp_path / "a", tmp_path / "b"],
        store_id=ID,
        new_id=lambda: os.urandom(16),
        reserve_bytes=0,
        monotonic=lambda: now,
    )
    broken = str(tmp_path / "a")
    real = os.open

    def fail(path: object, flags: int, *rest: int) -> int:
        if str(path).startswith(broken) and flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(5, "Input/output error")
        return real(path, flags, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        assert {put(store, b"x").directory for _ in range(40)} == {1}
    assert {put(store, b"x").directory for _ in range(40)} == {1}
    now += FAILURE_PAUSE + 1
    assert {put(store, b"x").directory for _ in range(40)} == {0, 1}


def test_subdirectories_lost_in_a_copy_are_made_again(tmp_path: Path) -> None:
    store = opened(tmp_path / "a")
    for path in (tmp_path / "a").iterdir():
        if path.is_dir():
            path.rmdir()
    payload = put(store, b"data")
    store.open(payload).close()
    (tmp_path / "a" / MARKER_NAME).unlink()
    (tmp_path / "a").rename(tmp_path / "gone")
    (tmp_path / "a").mkdir()
    with pytest.raises(StoreUnusable, match="mount"):
        store.create()
    assert list((tmp_path / "a").iterdir()) == []


def test_files_are_listed_with_size_and_time(tmp_path: Path) -> None:
    store = opened(tmp_path / "a")
    started = time.time_ns() - 1_000_000_000
    payloads = {put(store, bytes(size)).id: size for size in (1, 5000, 70000)}
    (tmp_path / "a" / "00" / "notes.txt").write_text("not a payload")
    (tmp_path / "a" / "00" / ("ab" * 16)).write_text("a payload's name in another's place")
    files = list(store.files(0))
    assert {file.id for file in files} == set(payloads)
    for file in files:
        assert file.size == file.path.stat().st_size > payloads[file.id]
        assert started < file.mtime_ns < time.time_ns() + 1_000_000_000


def test_a_damaged_file_is_named_and_set_aside(tmp_path: Path) -> None:
    store = opened(tmp_path / "a")
    payload = put(store, bytes(range(256)) * 100)
    (file,) = store.files(0)
    assert store.inspect(file.path) == payload
    with file.path.open("r+b") as handle:
        handle.seek(100)
        handle.write(b"\xff")
    assert store.inspect(file.path, data=False) == payload
    with pytest.raises(PayloadDamaged, match=rf"{file.path.name}: block 0"):
        store.inspect(file.path)
    content = file.path.read_bytes()
    for expected in (file.path.name, f"{file.path.name}.1"):
        moved = store.quarantine(file.path)
        assert moved == tmp_path / "a" / "quarantine" / expected
        assert moved.read_bytes() == content
        assert list(store.files(0)) == []
        file.path.write_bytes(content)
    with pytest.raises(ValueError, match="none of the payload directories"):
        store.quarantine(tmp_path / "b" / "00" / file.path.name)


def test_a_file_under_another_payloads_name_is_damaged(tmp_path: Path) -> None:
    store = opened(tmp_path / "a")
    payload = put(store, b"data" * 100)
    (file,) = store.files(0)
    other = FilePayload(b"\xff" * 15 + payload.id[-1:], 0, payload.length, payload.crc64nvme)
    target = file.path.with_name(other.id.hex())
    file.path.rename(target)
    with pytest.raises(PayloadDamaged, match="holds payload"):
        store.inspect(target)
    reader = store.open(other)
    with pytest.raises(PayloadDamaged, match="another payload"):
        reader.verify()
    reader.close()


@pytest.mark.parametrize("cut", [1, 4096, 8192, 10**6])
def test_a_truncated_file_is_found_when_it_is_opened(tmp_path: Path, cut: int) -> None:
    store = opened(tmp_path / "a")
    payload = put(store, bytes(20_000))
    (file,) = store.files(0)
    os.truncate(file.path, max(0, file.size - cut))
    with pytest.raises(PayloadDamaged, match="a payload of 20000 takes"):
        store.open(payload)
    with pytest.raises(PayloadDamaged):
        store.inspect(file.path)


def test_a_file_cut_while_it_is_read_is_damaged(tmp_path: Path) -> None:
    store = opened(tmp_path / "a")
    payload = put(store, bytes(20_000))
    (file,) = store.files(0)
    reader = store.open(payload)
    os.truncate(file.path, 10_000)
    with pytest.raises(PayloadDamaged, match="ends at 10000"):
        reader.read_into(0, memoryview(bytearray(20_000)))
    with pytest.raises(PayloadDamaged):
        reader.verify()
    reader.close()


def test_space_is_counted_once_for_a_shared_file_system(tmp_path: Path) -> None:
    store = opened(tmp_path / "a", tmp_path / "b")
    state = os.statvfs(tmp_path)
    assert store.capacity_bytes() == state.f_blocks * state.f_frsize
    assert abs(store.free_bytes() - state.f_bavail * state.f_frsize) < 1 << 30
    assert [usage.number for usage in store.usage()] == [0, 1]
