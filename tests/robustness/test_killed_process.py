"""kill -9 of a process that writes as fast as it can: what it acknowledged is there and whole, the store is clean."""

import os
import random
import select
import subprocess
import sys
import time
from pathlib import Path

import s3verbs
from s3verbs.storage.check import check_store
from s3verbs.storage.errors import ObjectNotFound
from s3verbs.storage.opening import Store, open_store
from s3verbs.storage.sweep import sweep_orphans
from tests.storage_fixtures import read

WORKERS = 8
ROUNDS = 5

# Each worker owns one key. It says what it begins and what was acknowledged, in one write each.
WRITER = """
import asyncio, os, sys
from pathlib import Path
from s3verbs.storage import uploads
from s3verbs.storage.model import Attributes, CompletedPart, Part
from s3verbs.storage.opening import open_store

uploads.MIN_PART_SIZE = 1

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def content(key, number, size):
    piece = f"{key}:{number};".encode()
    return (piece * (size // len(piece) + 1))[:size]

async def worker(store, key, number):
    objects = store.objects
    def seal(data):
        writer = objects.create_payload(len(data))
        writer.write(memoryview(data))
        return writer.seal(durable=True)
    while True:
        number += 1
        kind = number % 4
        say("begin", key, number)
        if kind == 0:
            await objects.delete("bucket", key)
        elif kind == 1:
            data = content(key, number, 300)
            payload = objects.inline_payload(data)
            await objects.publish("bucket", key, payload=payload, etag="e", attributes=Attributes(), checksum=None)
        elif kind == 2:
            payload = await asyncio.to_thread(seal, content(key, number, 40_000))
            await objects.publish("bucket", key, payload=payload, etag="e", attributes=Attributes(), checksum=None)
        else:
            data = content(key, number, 40_000)
            upload = await objects.create_upload("bucket", key, initiator="me", attributes=Attributes())
            for part, piece in ((1, data[:20_000]), (2, data[20_000:39_000]), (3, data[39_000:])):
                payload = objects.inline_payload(piece) if part == 3 else await asyncio.to_thread(seal, piece)
                await objects.put_part("bucket", key, upload.id, Part(part, payload, str(part), 1))
            await objects.complete_upload("bucket", key, upload.id, [CompletedPart(n, str(n)) for n in (1, 2, 3)],
                                          describe=lambda upload, parts: ("e-3", None))
        say("done", key, number)

async def main():
    store = open_store([Path(folder) for folder in sys.argv[2:]], map_bytes=1 << 24)
    say("open")
    start = int(sys.argv[1])
    await asyncio.gather(*(worker(store, f"key{n}", start) for n in range(8)))

asyncio.run(main())
"""


def content(key: str, number: int, size: int) -> bytes:
    piece = f"{key}:{number};".encode()
    return (piece * (size // len(piece) + 1))[:size]


def wanted(key: str, number: int) -> bytes | None:
    kind = number % 4
    if number == 0 or kind == 0:
        return None
    return content(key, number, 300 if kind == 1 else 40_000)


def write_until_killed(data: list[Path], start: int, seconds: float) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(s3verbs.__file__).parents[1])}
    command = [sys.executable, "-c", WRITER, str(start), *map(str, data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        output = os.fdopen(os.dup(process.stdout.fileno()), "rb", buffering=0)
        said = b""
        until = time.monotonic() + 60
        while b"open\n" not in said:
            assert time.monotonic() < until
            said += output.read(65536)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([output], [], [], left)[0]:
                piece = output.read(65536)
                assert piece, "the writer ended by itself"
                said += piece
        process.kill()
        while piece := output.read(65536):
            said += piece
        output.close()
    return said.decode()


async def stored(store: Store, key: str) -> bytes | None:
    try:
        reader = await store.objects.open("bucket", key, store.objects.lookup("bucket", key))
    except ObjectNotFound:
        return None
    try:
        return read(reader)
    finally:
        reader.close()


async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    chance = random.Random(20)
    data = [tmp_path / "one", tmp_path / "two"]
    store = open_store(data, map_bytes=1 << 24)
    await store.objects.create_bucket("bucket", owner="me")
    await store.objects.close()
    store.close()
    state: dict[str, set[int]] = {f"key{number}": {0} for number in range(WORKERS)}
    acknowledged = start = 0
    for _ in range(ROUNDS):
        for line in write_until_killed(data, start, chance.uniform(0.05, 0.8)).splitlines():
            what, *rest = line.split()
            if what == "open":
                continue
            key, number = rest[0], int(rest[1])
            if what == "begin":
                state[key].add(number)
            else:
                state[key] = {number}
                acknowledged += 1
        store = open_store(data, map_bytes=1 << 24, exclusive=True)
        for key, numbers in state.items():
            found = await stored(store, key)
            matching = {number for number in numbers if wanted(key, number) == found}
            assert matching, f"{key} is none of {numbers}"
            state[key] = {max(matching)}
        await store.objects.reclaim()
        assert {finding.kind for finding in check_store(store, read_payloads=True, repair=False).findings} <= {
            "orphan-file"
        }
        sweep_orphans(store.metadata, store.payloads, now_ns=1 << 62, lock=store.sweep_lock)
        report = check_store(store, read_payloads=True, repair=False)
        assert report.findings == []
        assert report.counts["waiting_files"] == 0
        await store.objects.close()
        store.close()
        start += 100_000
    assert acknowledged > 20
