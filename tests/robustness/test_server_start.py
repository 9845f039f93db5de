"""Starting with very many objects: nothing is scanned, so the time does not grow with them."""

import ctypes
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from s3verbs.storage.payload_file import parse_name
from tests.integration.endpoint import BUCKET, Endpoint
from tests.robustness.many_objects import BODY, fill_store, name
from tests.robustness.server_state import kill_whole

MIB = 1 << 20

IN_ACCESS, IN_OPEN, IN_ISDIR = 0x1, 0x20, 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def opened_files(folders: list[Path]) -> Iterator[list[str]]:
    """The names of files that any process opens or reads in the folders; complete when the block has ended."""
    watch = _libc.inotify_init1(os.O_NONBLOCK)
    assert watch >= 0
    names: list[str] = []
    try:
        for folder in folders:
            assert _libc.inotify_add_watch(watch, str(folder).encode(), IN_ACCESS | IN_OPEN) >= 0
        yield names
        events = b""
        while True:
            try:
                events += os.read(watch, 1 << 16)
            except BlockingIOError:
                break
        while events:
            _, mask, _, length = struct.unpack_from("iIII", events)
            if not mask & IN_ISDIR:
                names.append(events[16 : 16 + length].rstrip(b"\0").decode())
            events = events[16 + length :]
    finally:
        os.close(watch)


def mapped(pid: int, file: Path) -> int:
    """Bytes of a file's mapping that a process has touched."""
    total, inside = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.split()[0] and not line.split()[0].endswith(":"):
            inside = line.endswith(str(file))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_a_start_reads_neither_payload_files_nor_the_metadata_of_objects(tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill_store(data, 50_000, files=500)
    metadata = data / "metadata" / "data.mdb"
    assert metadata.stat().st_size > 16 * MIB
    folders = [data / f"{number:02x}" for number in range(256)]
    with opened_files(folders) as opened:
        endpoint = Endpoint(data, workers=2)
        endpoint.start()
    try:
        touched = {pid: mapped(pid, metadata) for pid in endpoint.worker_pids}
        assert all(0 < count < 2 * MIB for count in touched.values()), touched
        # What the drive can do is tried with a file of the server's own.
        assert opened
        assert [name for name in opened if parse_name(name) is not None] == []
        with endpoint.connect() as wire:
            assert wire.request("GET", f"/{BUCKET}/{name(31_415)}").body == BODY
            assert len(wire.request("GET", f"/{BUCKET}/file/00000100").body) == 20_000
    finally:
        endpoint.stop()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_store_of_a_million_objects_serves_within_five_seconds(tmp_path: Path) -> None:
    data = tmp_path / "data"
    started = time.monotonic()
    fill_store(data, 1_000_000)
    print(f"\nfilled in {time.monotonic() - started:.0f} s")
    for how in ("after a clean stop", "after a kill"):
        started = time.monotonic()
        endpoint = Endpoint(data, workers=2)
        endpoint.start()
        ready = time.monotonic() - started
        with endpoint.connect() as wire:
            assert wire.request("GET", f"/{BUCKET}/{name(314_159)}").body == BODY
            answered = time.monotonic() - started
            print(f"{how}: ready after {ready:.2f} s, first 200 after {answered:.2f} s")
            page = wire.request("GET", f"/{BUCKET}?list-type=2&prefix=model%2F50%2F&max-keys=1000")
            assert page.body.count(b"<Key>") == 1000
        assert answered < 5
        kill_whole(endpoint)
