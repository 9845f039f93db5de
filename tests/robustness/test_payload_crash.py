"""kill -9 before each system call of a write: no name is left, or a name with the whole payload under it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from s3verbs.storage.nvme_store import NvmePayloadStore

SCRIPT = Path(__file__).with_name("payload_crash.py")
SOURCE = Path(__file__).parents[2] / "src"


def _deaths(directory: Path, *, durable: bool, unnamed: bool) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(directory), str(int(durable)), str(int(unnamed))],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    deaths = json.loads(done.stdout)
    assert isinstance(deaths, list)
    return deaths


@pytest.mark.parametrize("unnamed", [True, False], ids=["O_TMPFILE", "named"])
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "relaxed"])
def test_a_killed_writer_leaves_nothing_or_a_whole_payload(tmp_path: Path, durable: bool, unnamed: bool) -> None:
    deaths = _deaths(tmp_path / "p", durable=durable, unnamed=unnamed)
    naming = "link" if unnamed else "rename"
    assert {"open", "fallocate", "pwrite", "ftruncate", naming, "close"} <= set(deaths)
    assert ("fdatasync" in deaths) is durable
    assert ("fsync" in deaths) is durable

    store = NvmePayloadStore([tmp_path / "p"], store_id=bytes(16), new_id=lambda: os.urandom(16), reserve_bytes=0)
    whole = [store.inspect(file.path) for file in store.files(0)]
    assert {payload.length for payload in whole} == {(2 << 20) + 77}
    # Every child that passed the naming call left a payload, and no other did.
    assert len(whole) == len(deaths) - deaths.index(naming) - 1

    entries = [path for path in (tmp_path / "p").rglob("*") if path.is_file()]
    left = [path for path in entries if path.name.endswith(".unsealed")]
    assert len(entries) == len(whole) + len(left) + 1
    assert bool(left) is not unnamed
    assert store.remove_unsealed() == len(left)
    assert store.remove_unsealed() == 0
    assert len(list(store.files(0))) == len(whole)


def test_the_file_of_a_live_writer_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    store = NvmePayloadStore([tmp_path], store_id=bytes(16), new_id=lambda: os.urandom(16), reserve_bytes=0)
    writer = store.create(10)
    writer.write(memoryview(b"0123456789"))
    assert store.remove_unsealed() == 0
    payload = writer.seal(durable=True)
    assert store.inspect(next(store.files(0)).path) == payload
    assert store.remove_unsealed() == 0
