"""Multipart uploads: what their write transactions do.

An upload is open from create to complete or abort, and both end it for good: whoever comes later finds no upload.
Complete publishes the listed parts as one version whose payload is the list of theirs; no byte is copied.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from s3verbs.storage import keys
from s3verbs.storage.commits import Commits, Outcome
from s3verbs.storage.epochs import NotDurable, earliest
from s3verbs.storage.errors import InvalidPart, PartTooSmall, UploadNotFound
from s3verbs.storage.metadata import MetadataStore, ReadTransaction, Table, WriteTransaction
from s3verbs.storage.model import (
    MIN_PART_SIZE,
    BucketName,
    Checksum,
    CompletedPart,
    Durability,
    Part,
    Upload,
    Version,
    WriteCondition,
)
from s3verbs.storage.publishing import (
    Arrival,
    Released,
    adopt,
    check_condition,
    find_bucket,
    find_version,
    put_version,
    release,
    version_payloads,
)
from s3verbs.storage.records import (
    PayloadOwner,
    decode_part,
    decode_part_run,
    decode_upload,
    encode_part,
    encode_upload,
)

STALE_BATCH = 1000
"""Uploads that are looked at between two turns of the event loop."""

Describe = Callable[[Upload, Sequence[Part]], tuple[str, Checksum | None]]


def find_upload(transaction: ReadTransaction, bucket_id: bytes, key: str, upload_id: str) -> tuple[Upload, bytes]:
    """The upload and its id as bytes. Raises UploadNotFound."""
    raw = keys.upload_id_bytes(upload_id)
    record = None if raw is None else transaction.get(Table.UPLOADS, keys.upload_key(bucket_id, key, raw))
    if raw is None or record is None:
        raise UploadNotFound(upload_id)
    return decode_upload(record), raw


def create_upload(transaction: WriteTransaction, bucket: BucketName, upload: Upload) -> None:
    """Raises BucketNotFound."""
    place = keys.upload_key(find_bucket(transaction, bucket).id, upload.key, bytes.fromhex(upload.id))
    transaction.put(Table.UPLOADS, place, encode_upload(upload))


def put_part(
    transaction: WriteTransaction, bucket: BucketName, key: str, upload_id: str, arrival: Arrival
) -> list[Released]:
    """Record a part; one of the same number is released. Raises BucketNotFound, UploadNotFound, NotDurable."""
    found = find_bucket(transaction, bucket)
    _, raw = find_upload(transaction, found.id, key, upload_id)
    part = replace(arrival.part, epoch=arrival.admit(transaction, found))
    place = keys.part_key(raw, part.number)
    record = encode_part(part)
    replaced = transaction.get(Table.PARTS, place)
    released = [] if replaced is None else release(transaction, [decode_part(replaced).payload])
    adopt(transaction, part.payload, PayloadOwner(Table.PARTS, place))
    transaction.put(Table.PARTS, place, record)
    return released


def complete_upload(
    transaction: WriteTransaction,
    bucket: BucketName,
    key: str,
    upload_id: str,
    listed: Sequence[CompletedPart],
    *,
    describe: Describe,
    condition: WriteCondition | None,
    modified_ns: int,
    synced: set[bytes],
) -> tuple[Version, list[Released]]:
    """Publish the listed parts and end the upload.

    Raises BucketNotFound, UploadNotFound, InvalidPart, PartTooSmall, ConditionFailed, ObjectNotFound, NotDurable (the
    bucket is strict, and parts were written while it was relaxed), and what `describe` raises.
    """
    found = find_bucket(transaction, bucket)
    bucket_id = found.id
    upload, raw = find_upload(transaction, bucket_id, key, upload_id)
    parts = _listed_parts(transaction, raw, listed)
    etag, checksum = describe(upload, parts)
    current = find_version(transaction, bucket_id, key)
    check_condition(condition, current)
    if found.durability is Durability.STRICT and earliest(parts):
        unsynced = [part for part in parts if part.epoch and part.payload.id not in synced]
        if unsynced:
            raise NotDurable(unsynced, synced)
        parts = [replace(part, epoch=0) for part in parts]
    version = Version(
        key=key,
        modified_ns=modified_ns,
        size=sum(part.size for part in parts),
        etag=etag,
        parts=tuple(parts),
        multipart=True,
        attributes=upload.attributes,
        checksum=checksum,
        epoch=earliest(parts),
    )
    released = put_version(transaction, bucket_id, version, version_payloads(version), replaced=current)
    released += _remove_upload(transaction, bucket_id, key, raw, keep={part.number for part in parts})
    return version, released


def abort_upload(transaction: WriteTransaction, bucket: BucketName, key: str, upload_id: str) -> list[Released]:
    """Raises BucketNotFound, UploadNotFound."""
    bucket_id = find_bucket(transaction, bucket).id
    _, raw = find_upload(transaction, bucket_id, key, upload_id)
    return _remove_upload(transaction, bucket_id, key, raw)


def abort_uploads(transaction: WriteTransaction, bucket_id: bytes, rows: int) -> tuple[list[Released], bool]:
    """Abort uploads of a bucket until `rows` parts went, at least one upload; and whether there are none left."""
    released: list[Released] = []
    removed = 0
    while removed < rows:
        # A new scan each time: the table changes under it.
        entry = next(iter(transaction.scan(Table.UPLOADS, *keys.upload_range(bucket_id))), None)
        if entry is None:
            return released, True
        upload = decode_upload(entry[1])
        gone = _remove_upload(transaction, bucket_id, upload.key, bytes.fromhex(upload.id))
        removed += 1 + len(gone)
        released += gone
    return released, False


async def abort_stale(metadata: MetadataStore, commits: Commits, *, initiated_before_ns: int) -> int:
    """Abort every upload that was initiated earlier, some at a time; how many."""
    aborted = 0
    start = b""
    while True:
        stale: list[tuple[bytes, Upload]] = []
        seen = 0
        with metadata.read() as transaction:
            for place, record in transaction.scan(Table.UPLOADS, start):
                start = place + b"\0"
                seen += 1
                upload = decode_upload(record)
                if upload.initiated_ns < initiated_before_ns:
                    stale.append((place[: keys.BUCKET_ID_BYTES], upload))
                if seen == STALE_BATCH:
                    break
        for bucket_id, upload in stale:
            aborted += await commits.commit(partial(_abort_if_open, bucket_id, upload), frees_space=True)
        if seen < STALE_BATCH:
            return aborted
        await asyncio.sleep(0)


def _abort_if_open(bucket_id: bytes, upload: Upload, transaction: WriteTransaction) -> Outcome[int]:
    raw = bytes.fromhex(upload.id)
    if transaction.get(Table.UPLOADS, keys.upload_key(bucket_id, upload.key, raw)) is None:
        return 0, []
    return 1, _remove_upload(transaction, bucket_id, upload.key, raw)


def _listed_parts(transaction: ReadTransaction, upload_id: bytes, listed: Sequence[CompletedPart]) -> list[Part]:
    records: list[bytes] = []
    previous = 0
    for wanted in listed:
        number = wanted.number
        record = transaction.get(Table.PARTS, keys.part_key(upload_id, number)) if previous < number <= 0xFFFF else None
        if record is None:
            raise InvalidPart(f"part {number} was not uploaded, or is listed out of order", number)
        records.append(record)
        previous = number
    parts = decode_part_run(records)
    for part, wanted in zip(parts, listed, strict=True):
        if part.etag != wanted.etag.strip('"'):
            raise InvalidPart(f"part {part.number} has another ETag", part.number)
        if wanted.checksum is not None and not _same_checksum(wanted.checksum, part.checksum):
            raise InvalidPart(f"part {part.number} has another checksum", part.number)
    if not parts:
        raise InvalidPart("no part is listed", 0)
    for part in parts[:-1]:
        if part.size < MIN_PART_SIZE:
            raise PartTooSmall(f"part {part.number} has {part.size} bytes", part.number, part.size, part.etag)
    return parts


def _same_checksum(given: Checksum, stored: Checksum | None) -> bool:
    return stored is not None and (given.algorithm, given.value) == (stored.algorithm, stored.value)


def _remove_upload(
    transaction: WriteTransaction, bucket_id: bytes, key: str, upload_id: bytes, keep: set[int] | None = None
) -> list[Released]:
    """Remove the upload and its parts; payloads of the parts in `keep` have found another owner."""
    released: list[Released] = []
    for place, record in list(transaction.scan(Table.PARTS, *keys.part_range(upload_id))):
        transaction.delete(Table.PARTS, place)
        if keep is None or keys.part_number(place) not in keep:
            released += release(transaction, [decode_part(record).payload])
    transaction.delete(Table.UPLOADS, keys.upload_key(bucket_id, key, upload_id))
    return released
