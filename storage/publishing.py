"""What a write transaction does to an object: find, check the condition, replace or remove, and keep the books.

Every payload that a record refers to has a row: INLINE holds the bytes of an inline payload, PAYLOADS names the owner
of a payload file. The transaction that drops a reference drops the row, and puts the files in RECLAIM: one row per
dropped record, under the id of its first file, with all its files in the order of the parts. So at every commit each
file is owned by exactly one record or waits in RECLAIM.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from s3verbs.storage import keys
from s3verbs.storage.epochs import Epoch, NotDurable
from s3verbs.storage.errors import BucketNotFound, ConditionFailed, ObjectNotFound, StorageError
from s3verbs.storage.metadata import ReadTransaction, Table, WriteTransaction
from s3verbs.storage.model import (
    Bucket,
    BucketName,
    Durability,
    FilePayload,
    InlinePayload,
    Part,
    Payload,
    Version,
    WriteCondition,
)
from s3verbs.storage.records import (
    PayloadOwner,
    decode_bucket,
    decode_version,
    encode_owner,
    encode_payloads,
    encode_version,
)

Released = tuple[FilePayload, ...]
"""The files of one RECLAIM row; its key is the id of the first."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """The payload of a new part, on its way into a record. `exists` is the payload store's."""

    part: Part
    epoch: Epoch
    exists: Callable[[FilePayload], bool]
    synced: set[bytes] = field(default_factory=set)

    def admit(self, transaction: WriteTransaction, bucket: Bucket) -> int:
        """The epoch of the part in `bucket`; the store is marked when its file is not durable.

        Raises, before anything is written, NotDurable when the bucket is strict and the file was not synced, and
        StorageError when the file is gone: the sweep takes files that nobody has recorded for an hour, and a process
        may have been suspended for longer.
        """
        payload = self.part.payload
        if not isinstance(payload, FilePayload):
            return 0
        if not self.exists(payload):
            raise StorageError(f"payload file {payload.id.hex()} is gone before it was recorded")
        if payload.durable or payload.id in self.synced:
            return 0
        if bucket.durability is Durability.STRICT:
            raise NotDurable([replace(self.part, epoch=self.epoch.number)], self.synced)
        self.epoch.mark(transaction)
        return self.epoch.number


def find_bucket(transaction: ReadTransaction, bucket: BucketName) -> Bucket:
    """Raises BucketNotFound."""
    name = bucket if isinstance(bucket, str) else bucket.name
    record = transaction.get(Table.BUCKETS, name.encode())
    if record is None:
        raise BucketNotFound(name)
    found = decode_bucket(record)
    if not isinstance(bucket, str) and bucket.id != found.id:
        raise BucketNotFound(name)
    return found


def find_version(transaction: ReadTransaction, bucket_id: bytes, key: str) -> Version | None:
    record = transaction.get(Table.OBJECTS, keys.object_key(bucket_id, key))
    return None if record is None else decode_version(record)


def check_condition(condition: WriteCondition | None, current: Version | None) -> None:
    """Raises ConditionFailed, and ObjectNotFound for an If-Match where there is no object."""
    if condition is None:
        return
    wanted, unwanted = condition.if_match, condition.if_none_match
    if wanted is not None:
        if current is None:
            raise ObjectNotFound("If-Match on an object that does not exist")
        if wanted not in ("*", current.etag):
            raise ConditionFailed("If-Match")
    if unwanted is not None and current is not None and unwanted in ("*", current.etag):
        raise ConditionFailed("If-None-Match")


def put_version(
    transaction: WriteTransaction,
    bucket_id: bytes,
    version: Version,
    payloads: Sequence[Payload],
    *,
    replaced: Version | None,
) -> list[Released]:
    """Make `version` the object of its key, `payloads` being its own, with the bytes of those that are new and inline.
    What `replaced` held is released. Raises ValueError before anything is written."""
    record = encode_version(version)
    released = [] if replaced is None else release(transaction, version_payloads(replaced))
    place = keys.object_key(bucket_id, version.key)
    owner = PayloadOwner(Table.OBJECTS, place)
    for payload in payloads:
        adopt(transaction, payload, owner)
    transaction.put(Table.OBJECTS, place, record)
    return released


def remove_version(transaction: WriteTransaction, bucket_id: bytes, version: Version) -> list[Released]:
    """Remove the object that `version` is."""
    transaction.delete(Table.OBJECTS, keys.object_key(bucket_id, version.key))
    return release(transaction, version_payloads(version))


def remove_versions(
    transaction: WriteTransaction, bucket: BucketName, names: Sequence[str], conditions: Sequence[WriteCondition | None]
) -> tuple[list[Exception | None], list[Released]]:
    """Remove many objects; for each None or why it was not removed. Raises BucketNotFound."""
    bucket_id = find_bucket(transaction, bucket).id
    outcomes: list[Exception | None] = [None] * len(names)
    released: list[Released] = []
    for index, key in enumerate(names):
        version = find_version(transaction, bucket_id, key)
        if version is None:
            continue
        try:
            check_condition(conditions[index] if index < len(conditions) else None, version)
        except StorageError as error:
            outcomes[index] = error
            continue
        released += remove_version(transaction, bucket_id, version)
    return outcomes, released


def adopt(transaction: WriteTransaction, payload: Payload, owner: PayloadOwner) -> None:
    """Note that the record `owner` refers to `payload`; bytes of an inline payload are stored when it has them."""
    place = keys.payload_key(payload.id)
    if isinstance(payload, FilePayload):
        transaction.put(Table.PAYLOADS, place, encode_owner(owner))
    elif payload.data is not None:
        transaction.put(Table.INLINE, place, payload.data)


def release(transaction: WriteTransaction, payloads: Sequence[Payload]) -> list[Released]:
    """Drop the references of one record: its inline bytes go, its files wait for reclaim in one row."""
    for payload in payloads:
        table = Table.INLINE if isinstance(payload, InlinePayload) else Table.PAYLOADS
        transaction.delete(table, keys.payload_key(payload.id))
    files = file_payloads(payloads)
    if not files:
        return []
    transaction.put(Table.RECLAIM, keys.payload_key(files[0].id), encode_payloads(files))
    return [files]


def version_payloads(version: Version) -> list[Payload]:
    return [part.payload for part in version.parts]


def file_payloads(payloads: Sequence[Payload]) -> Released:
    return tuple([payload for payload in payloads if isinstance(payload, FilePayload)])
