"""Fills a store with very many small objects, straight through the storage engine."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

from s3verbs.storage.errors import BucketExists
from s3verbs.storage.metadata import WriteTransaction
from s3verbs.storage.model import Attributes, InlinePayload, Part, Payload, Version
from s3verbs.storage.opening import Store, new_id, open_store
from s3verbs.storage.publishing import find_bucket, put_version
from tests.integration.endpoint import BUCKET

GROUP = 5000
"""Objects of one transaction."""

BODY = b"one of very many "
NOW_NS = 1_700_000_000_000_000_000
ETAG = "0" * 32


def name(number: int) -> str:
    return f"model/{number % 97:02d}/{number:08x}"


def fill_store(data: Path, objects: int, *, files: int = 0) -> None:
    """`objects` with inline payloads in BUCKET, and beside them `files` with payload files of 20,000 bytes."""
    store = open_store([data], map_bytes=1 << 30)
    try:
        asyncio.run(_make_bucket(store))
        for start in range(0, objects, GROUP):
            group = range(start, min(start + GROUP, objects))
            store.metadata.write_now(lambda transaction, group=group: _put(transaction, _inline(group)))  # type: ignore[misc]
        for start in range(0, files, GROUP):
            group = range(start, min(start + GROUP, files))
            payloads = [_file(store) for _ in group]
            entries = [(f"file/{number:08x}", payload) for number, payload in zip(group, payloads, strict=True)]
            store.metadata.write_now(lambda transaction, entries=entries: _put(transaction, iter(entries)))  # type: ignore[misc]
    finally:
        store.close()


async def _make_bucket(store: Store) -> None:
    try:
        await store.objects.create_bucket(BUCKET, owner="root")
    except BucketExists:
        return
    finally:
        await store.objects.close()


def _inline(group: range) -> Iterator[tuple[str, Payload]]:
    for number in group:
        yield name(number), InlinePayload(new_id(), len(BODY), BODY)


def _file(store: Store) -> Payload:
    writer = store.payloads.create(20_000, durable=False)
    writer.write(memoryview(bytes(20_000)))
    return writer.seal(durable=False)


def _put(transaction: WriteTransaction, entries: Iterator[tuple[str, Payload]]) -> None:
    bucket = find_bucket(transaction, BUCKET)
    for key, payload in entries:
        stored = InlinePayload(payload.id, payload.length) if isinstance(payload, InlinePayload) else payload
        parts = (Part(1, stored, ETAG, NOW_NS, None),)
        version = Version(
            key=key,
            modified_ns=NOW_NS,
            size=payload.length,
            etag=ETAG,
            parts=parts,
            attributes=Attributes(),
            checksum=None,
            epoch=0,  # on stable storage, as far as the store is told
        )
        put_version(transaction, bucket.id, version, (payload,), replaced=None)
