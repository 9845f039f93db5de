"""Writers used by many threads, and given up in the middle of a call."""

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from s3verbs.storage.errors import StorageError
from s3verbs.storage.model import FilePayload
from s3verbs.storage.nvme_store import NvmePayloadStore
from s3verbs.storage.payload_writer import NvmePayloadWriter

MIB = 1 << 20


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture
def store(tmp_path: Path) -> NvmePayloadStore:
    return NvmePayloadStore(
        [tmp_path / "a", tmp_path / "b"], store_id=bytes(16), new_id=lambda: os.urandom(16), reserve_bytes=0
    )


def test_payloads_written_at_once_are_kept_apart(store: NvmePayloadStore) -> None:
    def write(number: int) -> tuple[bytes, FilePayload]:
        data = random.Random(number).randbytes(MIB + number * 1001)
        writer = store.create(len(data), durable=number % 2 == 0)
        for start in range(0, len(data), 300_000):
            writer.write(memoryview(bytearray(data[start : start + 300_000])))
        return data, writer.seal(durable=number % 2 == 0)

    before = descriptors()
    with ThreadPoolExecutor(16) as threads:
        results = list(threads.map(write, range(64)))
    assert descriptors() == before
    for data, payload in results:
        reader = store.open(payload)
        into = bytearray(len(data))
        assert reader.read_into(0, memoryview(into)) == len(data)
        assert into == data
        reader.verify()
        reader.close()


class _Gate:
    """Makes one system call wait, so that a test can act while it runs."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str) -> None:
        self.entered = threading.Event()
        self.leave = threading.Event()
        real = getattr(os, name)

        def call(*args: Any) -> Any:
            self.entered.set()
            assert self.leave.wait(10)
            return real(*args)

        patch.setattr(os, name, call)


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_a_discard_during_a_call_takes_effect_when_the_call_ends(
    store: NvmePayloadStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    before = descriptors()
    writer: NvmePayloadWriter = store.create(MIB)
    chunk = memoryview(bytearray(MIB))
    if call == "fdatasync":
        writer.write(chunk)
    gate = _Gate(monkeypatch, call)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            if call == "pwrite":
                writer.write(chunk)
            else:
                writer.seal(durable=True)
        except StorageError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert gate.entered.wait(10)
    writer.discard()
    assert descriptors() == before + 1
    gate.leave.set()
    thread.join()
    assert descriptors() == before
    assert [path for path in tmp_path.rglob("*") if path.is_file() and len(path.name) >= 32] == []
    assert len(failures) == (call == "fdatasync")
    with pytest.raises(ValueError, match="sealed or discarded"):
        writer.seal(durable=True)
