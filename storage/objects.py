"""The object store: what the gateway calls. Publish order: payload durable, metadata commit, old payload reclaimed."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial

from s3verbs.storage import buckets, keys, listing, uploads
from s3verbs.storage.commits import Commits, Outcome
from s3verbs.storage.epochs import Epoch, make_durable
from s3verbs.storage.errors import ObjectNotFound
from s3verbs.storage.metadata import MetadataStore, Table, WriteTransaction
from s3verbs.storage.model import (
    INLINE_LIMIT,
    Attributes,
    Bucket,
    BucketName,
    Checksum,
    CompletedPart,
    Durability,
    FilePayload,
    InlinePayload,
    Listing,
    Part,
    Payload,
    Upload,
    UploadListing,
    Version,
    WriteCondition,
)
from s3verbs.storage.payload import PayloadStore, PayloadWriter
from s3verbs.storage.publishing import (
    Arrival,
    check_condition,
    find_bucket,
    find_version,
    put_version,
    remove_version,
    remove_versions,
)
from s3verbs.storage.reader import ObjectReader, Opener, Segment, same_payloads
from s3verbs.storage.reclaim import Reclaimer
from s3verbs.storage.records import decode_version

__all__ = ["ObjectReader", "ObjectStore", "Segment"]

_log = logging.getLogger(__name__)

LARGE_RECORD = 4096
"""Versions of so many parts that they are remembered, a few: 10,000 parts take 50 ms to decode."""

_decode_large_version = lru_cache(maxsize=8)(decode_version)


class ObjectStore:
    """Buckets, objects and multipart uploads over a MetadataStore and a PayloadStore. One per process.

    Reading methods are synchronous and take microseconds; writing ones wait for a commit. All are for one event loop.
    A write whose await is cancelled goes on and is settled when it has finished: its payload is either published or
    reclaimed.

    `clock` gives nanoseconds since the epoch. `new_id` gives 16 bytes that are never given again, the last 8 of them
    random. `epoch` is what `epochs.begin` gave; the default keeps no epochs.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        payloads: PayloadStore,
        *,
        clock: Callable[[], int],
        new_id: Callable[[], bytes],
        epoch: Epoch = Epoch(),  # noqa: B008 - immutable
    ) -> None:
        self._metadata = metadata
        self._payloads = payloads
        self._clock = clock
        self._new_id = new_id
        self._epoch = epoch
        self._reclaimer = Reclaimer(metadata, payloads)
        self._commits = Commits(
            metadata, self._reclaimer, lambda parts: make_durable(payloads, parts, self._epoch.number)
        )
        self._opener = Opener(
            metadata,
            payloads,
            epoch=epoch.number,
            lookup=self.lookup,
            remove_damaged=self._remove_damaged,
            closed=self._reclaimer.reader_closed,
        )
        self.damaged_relaxed = 0
        """Relaxed objects that this process found damaged and removed."""

    # -- buckets --
    def bucket(self, name: str) -> Bucket:
        """Raises BucketNotFound."""
        with self._metadata.read() as transaction:
            return find_bucket(transaction, name)

    def buckets(
        self, prefix: str = "", start_after: str = "", limit: int = 10_000, *, owner: str = ""
    ) -> tuple[list[Bucket], bool]:
        """A page in name order, and whether there are more; with `owner`, only that owner's buckets."""
        with self._metadata.read() as transaction:
            return listing.list_buckets(transaction, prefix=prefix, start_after=start_after, limit=limit, owner=owner)

    async def create_bucket(
        self, name: str, *, owner: str, durability: Durability = Durability.STRICT, region: str = ""
    ) -> Bucket:
        """Raises BucketExists."""
        bucket = Bucket(name, self._new_id()[-keys.BUCKET_ID_BYTES :], self._clock(), owner, durability, region)

        await self._commits.commit(partial(buckets.create, bucket))
        return bucket

    async def update_bucket(self, bucket: BucketName, *, durability: Durability) -> Bucket:
        """A write under way is judged by what the bucket is when it commits: nothing that is not on stable storage gets
        into one that is strict by then. Objects that are there stay as they were written. Raises BucketNotFound."""
        return await self._commits.commit(partial(buckets.update, bucket, durability))

    async def delete_bucket(self, bucket: BucketName) -> None:
        """Raises BucketNotFound, BucketNotEmpty. Uploads in progress are aborted with the bucket, as AWS refuses only
        objects; very many of them in several transactions."""
        found = self.bucket(bucket) if isinstance(bucket, str) else bucket
        while not await self._commits.commit(partial(buckets.delete, found), frees_space=True):
            pass

    # -- writing a payload --
    def create_payload(self, size_hint: int = 0, *, durable: bool = True) -> PayloadWriter:
        """A payload for more than INLINE_LIMIT bytes; arguments and errors as in PayloadStore.create."""
        return self._payloads.create(size_hint, durable=durable)

    def inline_payload(self, data: bytes) -> Payload:
        """A payload of at most INLINE_LIMIT bytes."""
        if len(data) > INLINE_LIMIT:
            raise ValueError(f"an inline payload has at most {INLINE_LIMIT} bytes, not {len(data)}")
        return InlinePayload(self._new_id(), len(data), data)

    # -- objects --
    def lookup(self, bucket: BucketName, key: str) -> Version:
        """Raises BucketNotFound, ObjectNotFound. Inline payload bytes are not loaded."""
        with self._metadata.read() as transaction:
            bucket_id = find_bucket(transaction, bucket).id
            record = transaction.get(Table.OBJECTS, keys.object_key(bucket_id, key))
        if record is None:
            raise ObjectNotFound(key)
        return decode_version(record) if len(record) < LARGE_RECORD else _decode_large_version(record)

    async def open(self, bucket: BucketName, key: str, version: Version) -> ObjectReader:
        """Open what lookup gave. When the object was replaced in between, the new one is opened: use `reader.version`.

        Raises ObjectNotFound when it was deleted, or when it is relaxed and damaged (it is removed then);
        PayloadDamaged when the bytes of a strict one are gone or wrong.
        """
        return await self._opener.open(bucket, key, version)

    async def publish(
        self,
        bucket: BucketName,
        key: str,
        *,
        payload: Payload,
        etag: str,
        attributes: Attributes,
        checksum: Checksum | None,
        condition: WriteCondition | None = None,
    ) -> Version:
        """Make the payload the object. Conditions are decided inside the write transaction.

        Takes ownership of the payload: on any error it is reclaimed. Raises BucketNotFound, ConditionFailed,
        ObjectNotFound (If-Match on an absent object), StorageFull.
        """
        modified_ns = self._clock()
        stored = InlinePayload(payload.id, payload.length) if isinstance(payload, InlinePayload) else payload
        arrival = self._arrival(Part(1, stored, etag, modified_ns, checksum))

        def change(transaction: WriteTransaction) -> Outcome[Version]:
            found = find_bucket(transaction, bucket)
            current = find_version(transaction, found.id, key)
            check_condition(condition, current)
            epoch = arrival.admit(transaction, found)
            version = Version(
                key=key,
                modified_ns=modified_ns,
                size=payload.length,
                etag=etag,
                parts=(replace(arrival.part, epoch=epoch),),
                attributes=attributes,
                checksum=checksum,
                epoch=epoch,
            )
            return version, put_version(transaction, found.id, version, (payload,), replaced=current)

        return await self._commits.commit(change, owned=payload)

    async def delete(self, bucket: BucketName, key: str, condition: WriteCondition | None = None) -> bool:
        """False when there was no such object. Raises BucketNotFound, ConditionFailed."""

        def change(transaction: WriteTransaction) -> Outcome[bool]:
            bucket_id = find_bucket(transaction, bucket).id
            version = find_version(transaction, bucket_id, key)
            if version is None:
                return False, []
            check_condition(condition, version)
            return True, remove_version(transaction, bucket_id, version)

        return await self._commits.commit(change, frees_space=True)

    async def delete_many(
        self, bucket: BucketName, names: Sequence[str], conditions: Sequence[WriteCondition | None] = ()
    ) -> list[Exception | None]:
        """One transaction for all; an entry per key: None, or why it failed. Raises BucketNotFound, StorageFull."""

        def change(transaction: WriteTransaction) -> Outcome[list[Exception | None]]:
            return remove_versions(transaction, bucket, names, conditions)

        return await self._commits.commit(change, frees_space=True)

    def list_objects(
        self, bucket: BucketName, *, prefix: str = "", delimiter: str = "", start_after: str = "", limit: int = 1000
    ) -> Listing:
        """Keys and common prefixes strictly after `start_after`, in UTF-8 byte order. So when `start_after` is a common
        prefix or lies below one, everything below it is skipped. limit 0 gives an empty page that is not truncated.

        The versions have no parts, and attributes only when these name a storage class: to open one, look it up.
        """
        with self._metadata.read() as transaction:
            return listing.list_objects(
                transaction,
                find_bucket(transaction, bucket).id,
                prefix=prefix,
                delimiter=delimiter,
                start_after=start_after,
                limit=limit,
            )

    # -- multipart --
    async def create_upload(
        self,
        bucket: BucketName,
        key: str,
        *,
        initiator: str,
        attributes: Attributes,
        checksum_algorithm: str = "",
        checksum_kind: str = "",
    ) -> Upload:
        """Raises BucketNotFound, StorageFull."""
        now = self._clock()
        upload_id = keys.upload_id_text(keys.time_ordered_id(now, self._new_id()[-8:]))
        upload = Upload(key, upload_id, now, initiator, attributes, checksum_algorithm, checksum_kind)

        def change(transaction: WriteTransaction) -> Outcome[Upload]:
            uploads.create_upload(transaction, bucket, upload)
            return upload, []

        return await self._commits.commit(change)

    def upload(self, bucket: BucketName, key: str, upload_id: str) -> Upload:
        """Raises BucketNotFound, UploadNotFound."""
        with self._metadata.read() as transaction:
            return uploads.find_upload(transaction, find_bucket(transaction, bucket).id, key, upload_id)[0]

    async def put_part(self, bucket: BucketName, key: str, upload_id: str, part: Part) -> None:
        """Record a part, replacing one of the same number. Takes ownership of its payload.

        Raises BucketNotFound, UploadNotFound, StorageFull.
        """
        arrival = self._arrival(part)

        def change(transaction: WriteTransaction) -> Outcome[None]:
            return None, uploads.put_part(transaction, bucket, key, upload_id, arrival)

        await self._commits.commit(change, owned=part.payload)

    def parts(
        self, bucket: BucketName, key: str, upload_id: str, *, after: int = 0, limit: int = 1000
    ) -> tuple[list[Part], bool]:
        """A page in part order, and whether there are more. Raises BucketNotFound, UploadNotFound."""
        with self._metadata.read() as transaction:
            _, raw = uploads.find_upload(transaction, find_bucket(transaction, bucket).id, key, upload_id)
            return listing.list_parts(transaction, raw, after=after, limit=limit)

    async def complete_upload(
        self,
        bucket: BucketName,
        key: str,
        upload_id: str,
        parts: Sequence[CompletedPart],
        *,
        describe: Callable[[Upload, Sequence[Part]], tuple[str, Checksum | None]],
        condition: WriteCondition | None = None,
    ) -> Version:
        """Publish the listed parts as the object, in one transaction; no byte is copied.

        `describe` gives ETag and checksum of the whole from its parts (and may raise, which changes nothing). It runs
        on the writer thread, perhaps more than once. Parts that are not listed are reclaimed. Raises BucketNotFound,
        UploadNotFound, InvalidPart, PartTooSmall, ConditionFailed, ObjectNotFound, StorageFull.
        """
        modified_ns = self._clock()
        synced: set[bytes] = set()

        def change(transaction: WriteTransaction) -> Outcome[Version]:
            return uploads.complete_upload(
                transaction,
                bucket,
                key,
                upload_id,
                parts,
                describe=describe,
                condition=condition,
                modified_ns=modified_ns,
                synced=synced,
            )

        return await self._commits.commit(change)

    async def abort_upload(self, bucket: BucketName, key: str, upload_id: str) -> None:
        """Raises BucketNotFound, UploadNotFound."""

        def change(transaction: WriteTransaction) -> Outcome[None]:
            return None, uploads.abort_upload(transaction, bucket, key, upload_id)

        await self._commits.commit(change, frees_space=True)

    def list_uploads(
        self,
        bucket: BucketName,
        *,
        prefix: str = "",
        delimiter: str = "",
        key_marker: str = "",
        upload_id_marker: str = "",
        limit: int = 1000,
    ) -> UploadListing:
        """Uploads by key, then by initiation; markers and common prefixes as in `list_objects`."""
        with self._metadata.read() as transaction:
            return listing.list_uploads(
                transaction,
                find_bucket(transaction, bucket).id,
                prefix=prefix,
                delimiter=delimiter,
                key_marker=key_marker,
                upload_id_marker=upload_id_marker,
                limit=limit,
            )

    # -- upkeep --
    async def abort_stale_uploads(self, older_than_ns: int) -> int:
        """Abort the uploads that were initiated more than `older_than_ns` ago; how many."""
        return await uploads.abort_stale(
            self._metadata, self._commits, initiated_before_ns=self._clock() - older_than_ns
        )

    async def reclaim(self, payloads: Iterable[FilePayload] = ()) -> int:
        """Unlink the given payloads, which the caller owns and did not publish. Without any, unlink all that waits to
        be reclaimed, also from other processes, and is not held. How many files went."""
        given = list(payloads)
        return await (self._reclaimer.unlink(given) if given else self._reclaimer.run())

    async def close(self) -> None:
        """Wait for writes and for queued reclaim; what could not be unlinked stays queued in the store."""
        await self._commits.settle()
        await self._reclaimer.close()

    def _arrival(self, part: Part) -> Arrival:
        return Arrival(part, self._epoch, self._payloads.exists)

    async def _remove_damaged(self, bucket: BucketName, key: str, version: Version) -> bool:
        """Remove a relaxed object whose bytes are lost, unless it was replaced meanwhile."""

        def change(transaction: WriteTransaction) -> Outcome[bool]:
            bucket_id = find_bucket(transaction, bucket).id
            current = find_version(transaction, bucket_id, key)
            if current is None or not same_payloads(current, version):
                return False, []
            return True, remove_version(transaction, bucket_id, current)

        removed = await self._commits.commit(change, frees_space=True)
        if removed:
            self.damaged_relaxed += 1
            name = bucket if isinstance(bucket, str) else bucket.name
            _log.warning("relaxed object %s/%s was damaged by an unclean stop and is gone", name, key)
        return removed
