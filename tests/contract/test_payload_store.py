"""What every PayloadStore does, whatever keeps its bytes."""

import errno
import itertools
import mmap
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from awscrt.checksums import crc64nvme

from s3verbs.storage import payload_directory
from s3verbs.storage.errors import PayloadDamaged
from s3verbs.storage.memory import MemoryPayloadStore
from s3verbs.storage.model import FilePayload
from s3verbs.storage.nvme_store import NvmePayloadStore
from s3verbs.storage.payload import PayloadStore

MIB = 1 << 20
SIZES = [1, 4095, 4096, 4097, MIB - 1, MIB, MIB + 1, 8 * MIB, 17 * MIB + 3]


@dataclass
class Kept:
    """A store, and how to flip a bit of what it keeps."""

    store: PayloadStore
    flip: Callable[[FilePayload, int], None]


def _counter() -> Callable[[], bytes]:
    numbers = itertools.count(1)
    return lambda: next(numbers).to_bytes(8, "big") + random.randbytes(8)


def _nvme(path: Path) -> Kept:
    store = NvmePayloadStore([path / "a", path / "b"], store_id=bytes(16), new_id=_counter(), reserve_bytes=0)

    def flip(payload: FilePayload, offset: int) -> None:
        name = payload.id.hex()
        with (store.directories[payload.directory] / name[-2:] / name).open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 0x10]))

    return Kept(store, flip)


def _memory() -> Kept:
    store = MemoryPayloadStore(new_id=_counter())

    def flip(payload: FilePayload, offset: int) -> None:
        data = bytearray(store.disk.files[payload.directory, payload.id].data)
        data[offset] ^= 0x10
        store.damage(payload, bytes(data))

    return Kept(store, flip)


def _without(monkeypatch: pytest.MonkeyPatch, flag: int, number: int) -> None:
    """A file system that refuses to open with `flag`."""
    real = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & flag == flag:
            raise OSError(number, os.strerror(number))
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)


@pytest.fixture(params=["nvme", "without O_DIRECT", "without O_TMPFILE", "without fallocate", "memory"])
def kept(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    match request.param:
        case "memory":
            kept = _memory()
        case "without O_DIRECT":
            _without(monkeypatch, os.O_DIRECT, errno.EINVAL)
            kept = _nvme(tmp_path)
        case "without O_TMPFILE":
            _without(monkeypatch, os.O_TMPFILE, errno.EOPNOTSUPP)
            kept = _nvme(tmp_path)
        case "without fallocate":
            monkeypatch.setattr(payload_directory, "preallocate", lambda descriptor, size: False)
            kept = _nvme(tmp_path)
        case _:
            kept = _nvme(tmp_path)
    yield kept
    kept.store.close()


def put(
    store: PayloadStore, data: bytes, *, chunk: int = MIB, hint: int | None = None, durable: bool = True
) -> FilePayload:
    """Write through a page-aligned buffer, as a staging buffer is."""
    writer = store.create(len(data) if hint is None else hint, durable=durable)
    buffer = mmap.mmap(-1, max(chunk, 4096))
    with memoryview(buffer) as view:
        for start in range(0, len(data), chunk):
            piece = data[start : start + chunk]
            view[: len(piece)] = piece
            writer.write(view[: len(piece)])
            view[: len(piece)] = bytes(len(piece))
    return writer.seal(durable=durable)


def get(store: PayloadStore, payload: FilePayload, offset: int = 0, length: int | None = None) -> bytes:
    reader = store.open(payload)
    try:
        into = bytearray(payload.length if length is None else length)
        count = reader.read_into(offset, memoryview(into))
        return bytes(into[:count])
    finally:
        reader.close()


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "relaxed"])
@pytest.mark.parametrize("size", SIZES)
def test_bytes_come_back(kept: Kept, size: int, durable: bool) -> None:
    data = random.Random(size).randbytes(size)
    payload = put(kept.store, data, durable=durable)
    assert (payload.length, payload.crc64nvme) == (size, crc64nvme(data))
    assert get(kept.store, payload) == data
    reader = kept.store.open(payload)
    reader.verify()
    assert reader.length == size
    assert os.pread(reader.fileno(), size, 0) == data
    reader.close()


@pytest.mark.parametrize("chunk", [1000, 4096, 0xFFF4, 65536, MIB + 4096, 3 * MIB])
@pytest.mark.parametrize("hint", [0, 100, 2 * MIB + 77, 64 * MIB])
def test_any_chunk_size_and_any_size_hint_give_the_same_payload(kept: Kept, chunk: int, hint: int) -> None:
    data = random.Random(chunk).randbytes(2 * MIB + 77)
    payload = put(kept.store, data, chunk=chunk, hint=hint)
    assert payload.crc64nvme == crc64nvme(data)
    assert get(kept.store, payload) == data
    reader = kept.store.open(payload)
    reader.verify()
    reader.close()


def test_chunks_from_read_only_and_unaligned_memory_are_taken(kept: Kept) -> None:
    data = random.Random(1).randbytes(3 * MIB)
    writer = kept.store.create()
    writer.write(memoryview(data)[:MIB])
    writer.write(memoryview(bytearray(data))[MIB : 2 * MIB])
    writer.write(memoryview(b""))
    writer.write(memoryview(data)[2 * MIB :])
    assert get(kept.store, writer.seal(durable=True)) == data


def test_an_empty_payload_is_a_payload(kept: Kept) -> None:
    payload = kept.store.create().seal(durable=True)
    assert payload.length == 0
    assert get(kept.store, payload, 0, 10) == b""


def test_reads_stop_at_the_end(kept: Kept) -> None:
    data = random.Random(2).randbytes(5000)
    payload = put(kept.store, data)
    assert get(kept.store, payload, 4990, 100) == data[4990:]
    assert get(kept.store, payload, 5000, 100) == b""
    assert get(kept.store, payload, 6000, 100) == b""
    assert get(kept.store, payload, 17, 1) == data[17:18]


def test_ids_differ(kept: Kept) -> None:
    assert len({put(kept.store, b"x").id for _ in range(50)}) == 50


def test_a_writer_ends_once(kept: Kept) -> None:
    writer = kept.store.create()
    writer.write(memoryview(b"abc"))
    payload = writer.seal(durable=False)
    for use in (lambda: writer.write(memoryview(b"d")), lambda: writer.seal(durable=False)):
        with pytest.raises(ValueError, match="sealed or discarded"):
            use()
    writer.discard()
    assert get(kept.store, payload) == b"abc"
    writer = kept.store.create()
    writer.discard()
    writer.discard()
    with pytest.raises(ValueError, match="sealed or discarded"):
        writer.seal(durable=True)


def test_a_deleted_payload_is_gone_but_an_open_reader_reads_on(kept: Kept) -> None:
    data = random.Random(3).randbytes(2 * MIB)
    payload = put(kept.store, data)
    reader = kept.store.open(payload)
    assert kept.store.delete([payload]) == [payload]
    with pytest.raises(FileNotFoundError):
        kept.store.open(payload)
    into = bytearray(len(data))
    assert reader.read_into(0, memoryview(into)) == len(data)
    assert into == data
    assert not reader.hold()
    reader.close()
    assert kept.store.delete([payload]) == [payload]
    assert kept.store.delete([]) == []


def test_a_held_payload_of_several_files_is_not_deleted(kept: Kept) -> None:
    parts = [put(kept.store, bytes([number]) * 100) for number in range(3)]
    first, second = kept.store.open(parts[0]), kept.store.open(parts[0])
    assert first.hold()
    assert second.hold()
    assert kept.store.delete(parts) == []
    first.close()
    assert kept.store.delete(parts) == []
    assert [get(kept.store, part) for part in parts] == [bytes([number]) * 100 for number in range(3)]
    second.close()
    assert set(kept.store.delete(parts)) == set(parts)
    for part in parts:
        with pytest.raises(FileNotFoundError):
            kept.store.open(part)
    assert set(kept.store.delete(parts)) == set(parts)


@pytest.mark.parametrize("size", [1, 4096, 3 * MIB + 5])
def test_a_flipped_bit_is_found(kept: Kept, size: int) -> None:
    for offset in {0, size // 2, size - 1}:
        payload = put(kept.store, random.Random(size).randbytes(size))
        kept.flip(payload, offset)
        reader = kept.store.open(payload)
        with pytest.raises(PayloadDamaged):
            reader.verify()
        with pytest.raises(PayloadDamaged):
            reader.verify_range(offset, 1)
        reader.close()


def test_a_range_is_verified_without_the_rest(kept: Kept) -> None:
    payload = put(kept.store, random.Random(4).randbytes(4 * MIB + 9))
    kept.flip(payload, 2 * MIB)
    reader = kept.store.open(payload)
    reader.verify_range(0, 2 * MIB)
    reader.verify_range(3 * MIB, 2 * MIB)
    reader.verify_range(2 * MIB, 0)
    for offset, length in ((2 * MIB - 1, 2), (2 * MIB, 1), (3 * MIB - 1, 1), (0, 5 * MIB)):
        with pytest.raises(PayloadDamaged):
            reader.verify_range(offset, length)
    reader.close()
