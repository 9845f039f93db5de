"""Several processes over one metadata store, and processes that are killed."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import s3verbs
from s3verbs.storage.lmdb_store import LmdbMetadataStore
from s3verbs.storage.metadata import Table, WriteTransaction
from tests.robustness.lmdb_worker import ACCOUNTS, TOTAL, total, value_of

WORKER = Path(__file__).with_name("lmdb_worker.py")
Process = subprocess.Popen[bytes]
Starter = Callable[..., Process]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "metadata"


@pytest.fixture
def store(directory: Path) -> Iterator[LmdbMetadataStore]:
    opened = LmdbMetadataStore(directory, map_bytes=1 << 20, reserve_bytes=0)
    yield opened
    opened.close()


@pytest.fixture
def start(directory: Path) -> Iterator[Starter]:
    """Starts a worker on the store."""
    processes: list[Process] = []

    def run(task: str, argument: object = "") -> Process:
        environment = dict(os.environ, PYTHONPATH=str(Path(s3verbs.__file__).parents[1]))
        command = [sys.executable, str(WORKER), task, str(directory), str(argument)]
        processes.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, bufsize=0)
        )
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def finish(processes: list[Process]) -> list[str]:
    outputs = []
    for process in processes:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
        outputs.append(output.decode())
    return outputs


def kill(process: Process) -> list[str]:
    process.kill()
    output, _ = process.communicate(timeout=30)
    # A line that was cut off was not said.
    return output.decode().split("\n")[:-1]


def wait_for(process: Process, line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().decode().strip() == line


def test_four_processes_change_one_store_and_every_snapshot_is_consistent(
    directory: Path, store: LmdbMetadataStore, start: Starter
) -> None:
    def open_accounts(transaction: WriteTransaction) -> None:
        for number in range(ACCOUNTS):
            transaction.put(Table.OBJECTS, b"account%02d" % number, b"1000")

    store.write_now(open_accounts)
    commits = sum(int(output.split()[1]) for output in finish([start("transfer", n) for n in range(4)]))
    with store.read() as snapshot:
        assert total(snapshot) == TOTAL
        assert snapshot.get(Table.STORE, b"moves") == b"800"
    # Eight tasks in each process: the changes of one process share commits.
    assert commits < 800


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_writer_loses_nothing_that_was_acknowledged(directory: Path, start: Starter, seed: int) -> None:
    chance = random.Random(seed)
    writers = [start("append", f"{seed}{name}") for name in "ab"]
    first = [writer.stdout.readline() for writer in writers if writer.stdout is not None]
    assert all(first)
    time.sleep(chance.uniform(0.05, 0.4))
    acknowledged = [key.strip() for key in first]
    acknowledged += [key.encode() for writer in writers for key in kill(writer)]

    store = LmdbMetadataStore(directory, map_bytes=1 << 20, reserve_bytes=0)
    try:
        began = time.monotonic()
        store.write_now(lambda transaction: transaction.put(Table.STORE, b"after", b"kill"))
        assert time.monotonic() - began < 5
        with store.read() as snapshot:
            for key in acknowledged:
                assert snapshot.get(Table.INLINE, key) == value_of(key)
            # What was not acknowledged is there whole or not at all.
            values = dict(snapshot.scan(Table.INLINE))
            assert {key for key, _ in snapshot.scan(Table.OBJECTS)} == set(values)
            assert all(value == value_of(key) for key, value in values.items())
    finally:
        store.close()


def test_the_lock_of_a_writer_that_was_killed_inside_a_change_is_free(
    directory: Path, store: LmdbMetadataStore, start: Starter
) -> None:
    store.write_now(lambda transaction: transaction.put(Table.OBJECTS, b"before", b"1"))
    holder = start("hold_write")
    wait_for(holder, "inside")
    with store.read() as snapshot:
        assert [key for key, _ in snapshot.scan(Table.OBJECTS)] == [b"before"]
    kill(holder)
    began = time.monotonic()
    store.write_now(lambda transaction: transaction.put(Table.OBJECTS, b"past", b"2"))
    assert time.monotonic() - began < 5
    with store.read() as snapshot:
        assert list(snapshot.scan(Table.OBJECTS)) == [(b"before", b"1"), (b"past", b"2")]


def test_old_pages_held_by_a_killed_reader_are_used_again(
    directory: Path, store: LmdbMetadataStore, start: Starter
) -> None:
    def rewrite(transaction: WriteTransaction) -> None:
        transaction.put(Table.INLINE, b"k", os.urandom(100_000))

    store.write_now(rewrite)
    reader = start("hold_read")
    wait_for(reader, "inside")
    kill(reader)
    size = directory.joinpath("data.mdb").stat().st_size
    for _ in range(100):
        store.write_now(rewrite)
    # Ten megabytes went through a map of one, which did not grow: the dead reader's slot was cleared first.
    assert directory.joinpath("data.mdb").stat().st_size <= max(size, 1 << 20)


def test_the_slot_of_a_killed_reader_is_cleared_once(directory: Path, store: LmdbMetadataStore, start: Starter) -> None:
    reader = start("hold_read")
    wait_for(reader, "inside")
    assert store._environment.clear_stale_readers() == 0
    kill(reader)
    assert store._environment.clear_stale_readers() == 1
    assert store._environment.clear_stale_readers() == 0


def test_two_processes_outgrow_their_map_and_read_each_other(
    directory: Path, store: LmdbMetadataStore, start: Starter
) -> None:
    finish([start("fill", name) for name in "ab"])
    with store.read() as snapshot:
        entries = list(snapshot.scan(Table.INLINE))
    assert [key for key, _ in entries] == [b"%c-%04d" % (name, n) for name in b"ab" for n in range(60)]
    assert all(value == key * 8000 for key, value in entries)
    assert directory.joinpath("data.mdb").stat().st_size > 5 << 20
