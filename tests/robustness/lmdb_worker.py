"""A process that uses a metadata store: run as `python lmdb_worker.py TASK DIRECTORY ARGUMENT`.

It tells its parent what it has done in lines on stdout."""

import asyncio
import itertools
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from s3verbs.storage.lmdb_store import LmdbMetadataStore
from s3verbs.storage.metadata import ReadTransaction, Table, WriteTransaction

ACCOUNTS = 50
TOTAL = 1000 * ACCOUNTS


def value_of(key: bytes) -> bytes:
    """The value that `append` gives a key: 4 KiB in which a page that went astray shows."""
    return key * (4096 // len(key))


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def total(snapshot: ReadTransaction) -> int:
    return sum(int(value) for _, value in snapshot.scan(Table.OBJECTS, b"account", b"accounu"))


def transfer(store: LmdbMetadataStore, argument: str) -> None:
    """Move amounts between accounts while snapshots check that their sum stays the same."""
    chance = random.Random(argument)

    def move(transaction: WriteTransaction) -> None:
        source, target = (b"account%02d" % number for number in chance.sample(range(ACCOUNTS), 2))
        have, amount = int(transaction.get(Table.OBJECTS, source) or 0), chance.randrange(100)
        transaction.put(Table.OBJECTS, source, b"%d" % (have - amount))
        transaction.put(Table.OBJECTS, target, b"%d" % (int(transaction.get(Table.OBJECTS, target) or 0) + amount))
        moves = int(transaction.get(Table.STORE, b"moves") or 0)
        transaction.put(Table.STORE, b"moves", b"%d" % (moves + 1))

    async def task() -> None:
        for _ in range(25):
            await store.write(move)
            with store.read() as snapshot:
                found = total(snapshot)
            if found != TOTAL:
                raise SystemExit(f"a snapshot holds {found}")

    async def run() -> None:
        await asyncio.gather(*(task() for _ in range(8)))

    asyncio.run(run())
    say(f"commits {store.commits}")


def append(store: LmdbMetadataStore, argument: str) -> None:
    """Write for ever, and name each key once it is acknowledged."""

    async def task(number: int) -> None:
        for sequence in itertools.count():
            key = b"%s-%02d-%06d" % (argument.encode(), number, sequence)

            def change(transaction: WriteTransaction, key: bytes = key) -> None:
                transaction.put(Table.OBJECTS, key, b"twin")
                transaction.put(Table.INLINE, key, value_of(key))

            await store.write(change)
            say(key.decode())

    async def run() -> None:
        await asyncio.gather(*(task(number) for number in range(8)))

    asyncio.run(run())


def hold_write(store: LmdbMetadataStore, _: str) -> None:
    """Stay inside a change that has written."""

    def change(transaction: WriteTransaction) -> None:
        for number in range(1000):
            transaction.put(Table.OBJECTS, b"half-%04d" % number, b"x" * 1000)
        say("inside")
        time.sleep(600)

    store.write_now(change)


def hold_read(store: LmdbMetadataStore, _: str) -> None:
    """Stay inside a snapshot."""
    with store.read() as snapshot:
        snapshot.get(Table.OBJECTS, b"any")
        say("inside")
        time.sleep(600)


def fill(store: LmdbMetadataStore, argument: str) -> None:
    """Write far more than the map holds, and read it all back as it goes."""

    async def run() -> None:
        for number in range(60):
            key = b"%s-%04d" % (argument.encode(), number)
            await store.write(lambda transaction, key=key: transaction.put(Table.INLINE, key, key * 8000))
            with store.read() as snapshot:
                for found, value in snapshot.scan(Table.INLINE):
                    if value != found * 8000:
                        raise SystemExit(f"{found!r} is not whole")

    asyncio.run(run())
    say("filled")


TASKS: dict[str, Callable[[LmdbMetadataStore, str], None]] = {
    "transfer": transfer,
    "append": append,
    "hold_write": hold_write,
    "hold_read": hold_read,
    "fill": fill,
}

if __name__ == "__main__":
    opened = LmdbMetadataStore(Path(sys.argv[2]), map_bytes=1 << 20, reserve_bytes=0)
    TASKS[sys.argv[1]](opened, sys.argv[3])
    opened.close()
