"""The object store: what the gateway calls. Publish order: payload durable, metadata commit, old payload reclaimed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from s3verbs.storage.metadata import MetadataStore
from s3verbs.storage.model import (
    Attributes,
    Bucket,
    Checksum,
    CompletedPart,
    Durability,
    FilePayload,
    Listing,
    Part,
    Payload,
    Upload,
    UploadListing,
    Version,
    WriteCondition,
)
from s3verbs.storage.payload import PayloadStore, PayloadWriter


@dataclass(frozen=True, slots=True)
class Segment:
    """A contiguous run of an object's bytes: either `data`, or `length` bytes at `offset` of descriptor `fd`."""

    offset: int
    length: int
    data: bytes | None = None
    fd: int = -1


class ObjectReader(Protocol):
    """An object opened for reading: holds its payload against reclaim until `close`."""

    version: Version

    def segments(self, offset: int, length: int) -> Iterable[Segment]:
        """The runs that make up [offset, offset + length), in order. Opening a part's file may raise PayloadDamaged."""

    def close(self) -> None: ...


class ObjectStore:
    """Buckets, objects and multipart uploads over a MetadataStore and a PayloadStore. One per process.

    Reading methods are synchronous and take microseconds; writing ones wait for a commit.
    """

    def __init__(self, metadata: MetadataStore, payloads: PayloadStore, *, clock: Callable[[], int], new_id: Callable[[], bytes], epoch: int = 0) -> None:
        ...

    # -- buckets --
    def bucket(self, name: str) -> Bucket:
        """Raises BucketNotFound."""
        ...

    def buckets(self, prefix: str = "", start_after: str = "", limit: int = 10_000) -> tuple[list[Bucket], bool]:
        """A page in name order, and whether there are more."""
        ...

    async def create_bucket(self, name: str, *, owner: str, durability: Durability = Durability.STRICT, region: str = "") -> Bucket:
        """Raises BucketExists."""
        ...

    async def update_bucket(self, name: str, *, durability: Durability) -> Bucket:
        """Raises BucketNotFound."""
        ...

    async def delete_bucket(self, name: str) -> None:
        """Raises BucketNotFound, BucketNotEmpty. Uploads in progress are aborted with the bucket, as AWS refuses only objects."""
        ...

    # -- writing a payload --
    def create_payload(self, size_hint: int = 0) -> PayloadWriter:
        """A payload for more than INLINE_LIMIT bytes. Raises StorageFull."""
        ...

    def inline_payload(self, data: bytes) -> Payload:
        """A payload of at most INLINE_LIMIT bytes."""
        ...

    # -- objects --
    def lookup(self, bucket: str, key: str) -> Version:
        """Raises BucketNotFound, ObjectNotFound. Inline payload bytes are not loaded."""
        ...

    async def open(self, bucket: str, key: str, version: Version) -> ObjectReader:
        """Open what lookup gave. When the object was replaced in between, the new one is opened: use `reader.version`.
        Raises ObjectNotFound when it was deleted, PayloadDamaged when its bytes are gone or wrong."""
        ...

    async def publish(self, bucket: str, key: str, *, payload: Payload, etag: str, attributes: Attributes, checksum: Checksum | None, condition: WriteCondition | None = None) -> Version:
        """Make the payload the object. Conditions are decided inside the write transaction.

        Takes ownership of the payload: on any error it is reclaimed. Raises BucketNotFound, ConditionFailed,
        ObjectNotFound (If-Match on an absent object), StorageFull.
        """
        ...

    async def delete(self, bucket: str, key: str, condition: WriteCondition | None = None) -> bool:
        """False when there was no such object. Raises BucketNotFound, ConditionFailed."""
        ...

    async def delete_many(self, bucket: str, keys: Sequence[str], conditions: Sequence[WriteCondition | None] = ()) -> list[Exception | None]:
        """One transaction for all; an entry per key: None, or why it failed."""
        ...

    def list_objects(self, bucket: str, *, prefix: str = "", delimiter: str = "", start_after: str = "", limit: int = 1000) -> Listing:
        """Keys strictly after `start_after`, in UTF-8 byte order. When `start_after` is a common prefix (it starts
        with `prefix` and ends with the delimiter), everything below it is skipped. limit 0 gives an empty page
        that is not truncated."""
        ...

    # -- multipart --
    async def create_upload(self, bucket: str, key: str, *, initiator: str, attributes: Attributes, checksum_algorithm: str = "", checksum_kind: str = "") -> Upload: ...

    def upload(self, bucket: str, key: str, upload_id: str) -> Upload:
        """Raises BucketNotFound, UploadNotFound."""
        ...

    async def put_part(self, bucket: str, key: str, upload_id: str, part: Part) -> None:
        """Record a part, replacing one of the same number. Takes ownership of its payload. Raises UploadNotFound."""
        ...

    def parts(self, bucket: str, key: str, upload_id: str, *, after: int = 0, limit: int = 1000) -> tuple[list[Part], bool]:
        """A page in part order, and whether there are more. Raises UploadNotFound."""
        ...

    async def complete_upload(
        self,
        bucket: str,
        key: str,
        upload_id: str,
        parts: Sequence[CompletedPart],
        *,
        describe: Callable[[Upload, Sequence[Part]], tuple[str, Checksum | None]],
        condition: WriteCondition | None = None,
    ) -> Version:
        """Publish the listed parts as the object, in one transaction; no byte is copied.

        `describe` gives ETag and checksum of the whole from its parts (and may raise, which changes nothing).
        Parts that are not listed are reclaimed. Raises UploadNotFound, InvalidPart, PartTooSmall, ConditionFailed,
        ObjectNotFound.
        """
        ...

    async def abort_upload(self, bucket: str, key: str, upload_id: str) -> None:
        """Raises UploadNotFound."""
        ...

    def list_uploads(self, bucket: str, *, prefix: str = "", delimiter: str = "", key_marker: str = "", upload_id_marker: str = "", limit: int = 1000) -> UploadListing: ...

    # -- upkeep --
    async def reclaim(self, payloads: Iterable[FilePayload] = ()) -> int:
        """Unlink what is waiting to be reclaimed and is not held; how many files went."""
        ...

    async def close(self) -> None: ...
