"""Full drives, on small file systems of their own (skipped where mounting is not allowed), and every error number."""

import errno
import os
import re
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from s3verbs.storage import payload_writer
from s3verbs.storage.errors import StorageBusy, StorageError, StorageFull, StoreUnusable
from s3verbs.storage.model import FilePayload
from s3verbs.storage.nvme_store import NvmePayloadStore

MIB = 1 << 20


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{command[0]} is not possible here: {done.stderr.strip()}")


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    mounted: list[Path] = []

    def attach(kind: str, options: str = "") -> Path:
        if os.geteuid() != 0:
            pytest.skip("only root may mount")
        point = tmp_path / f"mount{len(mounted)}"
        point.mkdir()
        if kind == "tmpfs":
            _run("mount", "-t", "tmpfs", "-o", options or "size=16m", "tmpfs", str(point))
        else:
            image = tmp_path / f"image{len(mounted)}"
            with image.open("wb") as file:
                file.truncate(48 * MIB)
            try:
                _run("mkfs.ext4", "-q", "-F", str(image))
                _run("mount", "-o", "loop", str(image), str(point))
            except FileNotFoundError:
                pytest.skip("mkfs.ext4 is not installed: apt-get install e2fsprogs")
        mounted.append(point)
        return point

    yield attach
    for point in mounted:
        subprocess.run(["umount", str(point)], check=True)


def opened(*paths: Path, reserve: int = 0) -> NvmePayloadStore:
    return NvmePayloadStore(paths, store_id=bytes(16), new_id=lambda: os.urandom(16), reserve_bytes=reserve)


def put(store: NvmePayloadStore, size: int, *, hint: int | None = None, durable: bool = True) -> FilePayload:
    writer = store.create(size if hint is None else hint, durable=durable)
    for start in range(0, size, MIB):
        writer.write(memoryview(bytearray(min(MIB, size - start))))
    return writer.seal(durable=durable)


def fill(store: NvmePayloadStore, size: int, **how: Any) -> list[FilePayload]:
    payloads: list[FilePayload] = []
    try:
        while True:
            payloads.append(put(store, size, **how))
    except StorageFull:
        return payloads


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _entries(path: Path) -> list[Path]:
    return [entry for entry in path.rglob("*") if entry.is_file() and len(entry.name) >= 32]


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "relaxed"])
@pytest.mark.parametrize("hint", [None, 0], ids=["size known", "size unknown"])
@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_full_drive_keeps_what_it_has_and_can_delete(
    mount: Callable[..., Path], kind: str, hint: int | None, durable: bool
) -> None:
    path = mount(kind)
    store = opened(path)
    before = descriptors()
    payloads = fill(store, 3 * MIB, hint=hint, durable=durable)
    assert len(payloads) >= 3
    assert descriptors() == before
    assert len(_entries(path)) == len(payloads)
    for payload in payloads:
        reader = store.open(payload)
        reader.verify()
        reader.close()
    fill(store, 4096, durable=durable)

    store = opened(path)
    assert store.delete(payloads[:2]) == payloads[:2]
    replaced = put(store, 3 * MIB, durable=durable)
    reader = store.open(replaced)
    reader.verify()
    reader.close()


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_known_size_is_refused_before_a_byte_is_written(mount: Callable[..., Path], kind: str) -> None:
    path = mount(kind)
    store = opened(path)
    free = store.free_bytes()
    for size in (free + 1, 5 << 30):
        with pytest.raises(StorageFull):
            store.create(size)
    assert store.free_bytes() == free
    writer = store.create(free // 2)
    with pytest.raises(StorageFull):
        store.create(free // 2 + MIB)
    writer.discard()
    assert store.free_bytes() >= free - MIB
    put(store, free // 2 + MIB)


@pytest.mark.parametrize("hint", [None, 0], ids=["size known", "size unknown"])
def test_the_reserve_stays_free(mount: Callable[..., Path], hint: int | None) -> None:
    path = mount("tmpfs")
    store = opened(path, reserve=6 * MIB)
    fill(store, MIB, hint=hint)
    # The footer of the last payload may reach one page into it.
    assert 6 * MIB - 8192 <= store.free_bytes() < 8 * MIB


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_full_directory_is_passed_over(mount: Callable[..., Path], tmp_path: Path, kind: str) -> None:
    path = mount(kind)
    store = opened(path, tmp_path / "roomy")
    (path / "stuff").write_bytes(bytes(store.usage()[0].free_bytes - 64 * 1024))
    assert {put(store, MIB).directory for _ in range(30)} == {1}


def test_inodes_run_out_and_come_back(mount: Callable[..., Path]) -> None:
    path = mount("tmpfs", "size=64m,nr_inodes=400")
    store = opened(path)
    before = descriptors()
    payloads = fill(store, 5000)
    assert 50 < len(payloads) < 400
    assert store.free_bytes() > 32 * MIB
    assert descriptors() == before
    assert store.delete([payloads[0]]) == [payloads[0]]
    put(store, 5000)


def test_a_directory_without_inodes_is_passed_over(mount: Callable[..., Path], tmp_path: Path) -> None:
    path = mount("tmpfs", "size=500g,nr_inodes=262")
    store = opened(path, tmp_path / "roomy")
    payloads = [put(store, 5000) for _ in range(40)]
    assert {payload.directory for payload in payloads[10:]} == {1}


def test_a_store_cannot_begin_on_a_full_drive(mount: Callable[..., Path]) -> None:
    path = mount("tmpfs", "size=16m,nr_inodes=100")
    with pytest.raises(StorageFull):
        opened(path)


STEPS = ["open", "preallocate", "pwrite", "ftruncate", "link", "fdatasync", "fsync"]
ERRORS: list[tuple[int, type[StorageError]]] = [
    (errno.ENOSPC, StorageFull),
    (errno.EDQUOT, StorageFull),
    (errno.EFBIG, StorageFull),
    (errno.EMFILE, StorageBusy),
    (errno.ENFILE, StorageBusy),
    (errno.ENOMEM, StorageBusy),
    (errno.EIO, StoreUnusable),
    (errno.EROFS, StoreUnusable),
]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("number", "expected"), ERRORS, ids=[errno.errorcode[number] for number, _ in ERRORS])
def test_every_error_has_its_meaning_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int, expected: type[StorageError]
) -> None:
    store = opened(tmp_path)
    before = descriptors()

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    writers = []

    def write() -> None:
        writers.append(store.create(2 * MIB))
        writers[0].write(memoryview(bytearray(MIB)))
        writers[0].seal(durable=True)

    with monkeypatch.context() as patch:
        if step == "preallocate":
            patch.setattr(payload_writer, "preallocate", fail)
        else:
            patch.setattr(os, step, fail)
        with pytest.raises(StorageError, match=re.escape(str(tmp_path))) as raised:
            write()
    assert type(raised.value) is expected
    assert descriptors() == before
    assert _entries(tmp_path) == []
    for writer in writers:
        with pytest.raises(ValueError, match="sealed or discarded"):
            writer.write(memoryview(b"more"))
        writer.discard()
    put(store, MIB)


def test_a_process_out_of_descriptors_is_busy_and_recovers(tmp_path: Path) -> None:
    store = opened(tmp_path)
    payload = put(store, 100)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 8, hard))
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        with pytest.raises(StorageBusy):
            store.create(100)
        with pytest.raises(StorageBusy):
            store.open(payload)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)
    store.open(payload).close()
    put(store, 100)


def test_a_failed_read_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    reader = store.open(put(store, 5000))

    def fail(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        reader.read_into(0, memoryview(bytearray(100)))
    with pytest.raises(StorageError, match="Input/output error"):
        reader.verify()
    reader.close()
