"""The values that the storage engine keeps and gives: buckets, object versions, payload references, uploads.

All are immutable. Sizes are bytes, times are nanoseconds since the epoch (UTC), ETags are without quotes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

MAX_KEY_BYTES = 1024
"""S3's limit on an object key, in bytes of its UTF-8 form."""

INLINE_LIMIT = 16 * 1024
"""Payloads of at most this many bytes live in the metadata store and have no file."""

BLOCK_SIZE = 1 << 20
"""Bytes covered by one stored CRC32C."""

MIN_PART_SIZE = 5 << 20
MAX_PARTS = 10_000

NULL_VERSION = "null"

_EMPTY: Mapping[str, str] = MappingProxyType({})


def _empty() -> Mapping[str, str]:
    # A factory: Python 3.11 takes a MappingProxyType, which has no hash there, for a mutable default.
    return _EMPTY


class Durability(StrEnum):
    """What a 200 promises. STRICT: on stable storage. RELAXED: whole or absent after a power cut."""

    STRICT = "strict"
    RELAXED = "relaxed"


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket. `id` (8 bytes) prefixes its objects' keys, so a bucket made again never sees old entries."""

    name: str
    id: bytes
    created_ns: int
    owner: str
    durability: Durability = Durability.STRICT
    region: str = ""
    tags: Mapping[str, str] = field(default_factory=_empty)


BucketName = str | Bucket
"""Which bucket: by its name, or that very bucket. Whoever decided something about a bucket, that the caller may write
to it above all, gives the bucket: when it was deleted meanwhile, one that another account made of its name is not
found instead."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """An S3 checksum as it travels: `algorithm` CRC32 | CRC32C | CRC64NVME | SHA1 | SHA256,
    `kind` FULL_OBJECT | COMPOSITE, `value` base64, with a `-N` suffix when it is composite."""

    algorithm: str
    kind: str
    value: str


@dataclass(frozen=True, slots=True)
class InlinePayload:
    """A payload kept in the metadata store under `id` (16 bytes). `data` is set while it is being published
    and after it was loaded; it is None in a record read for listing."""

    id: bytes
    length: int
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class FilePayload:
    """A sealed payload file: `directory` is the number of its payload directory, `id` (16 bytes) names the file.

    `durable` says how it was sealed and counts only on its way to a record, where the epoch of its part takes over.
    """

    id: bytes
    directory: int
    length: int
    crc64nvme: int
    durable: bool = field(default=True, compare=False)


Payload = InlinePayload | FilePayload


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an upload, or of the object it became. `etag` is as for an object of its bytes.

    `epoch` is the store's epoch when its payload file was written without a sync, 0 when the payload is durable. The
    store sets it.
    """

    number: int
    payload: Payload
    etag: str
    modified_ns: int
    checksum: Checksum | None = None
    epoch: int = 0

    @property
    def size(self) -> int:
        return self.payload.length


@dataclass(frozen=True, slots=True)
class Attributes:
    """What a client may set on an object when it writes it.

    `headers` are the system headers that S3 stores and returns verbatim, lower-case names (`content-type`,
    `cache-control`, `content-disposition`, `content-encoding`, `content-language`, `expires`,
    `x-amz-website-redirect-location`, `x-amz-storage-class`); `metadata` is user metadata without `x-amz-meta-`.
    """

    headers: Mapping[str, str] = field(default_factory=_empty)
    metadata: Mapping[str, str] = field(default_factory=_empty)
    tags: Mapping[str, str] = field(default_factory=_empty)


@dataclass(frozen=True, slots=True)
class Version:
    """An object as a reader sees it. `parts` has one entry for a plain PUT and N for a completed upload.

    `epoch` is the earliest epoch of its parts that are not durable: payloads of an epoch that ended in an unclean stop
    are verified before their first read. 0 means durable.
    """

    key: str
    modified_ns: int
    size: int
    etag: str
    parts: tuple[Part, ...]
    multipart: bool = False
    version_id: str = NULL_VERSION
    attributes: Attributes = field(default_factory=Attributes)
    checksum: Checksum | None = None
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload in progress. `checksum_algorithm` and `checksum_kind` are what the client declared, or ""."""

    key: str
    id: str
    initiated_ns: int
    initiator: str
    attributes: Attributes = field(default_factory=Attributes)
    checksum_algorithm: str = ""
    checksum_kind: str = ""


@dataclass(frozen=True, slots=True)
class WriteCondition:
    """Conditions decided inside the write transaction. ETags are without quotes, "*" matches any object."""

    if_match: str | None = None
    if_none_match: str | None = None


@dataclass(frozen=True, slots=True)
class CompletedPart:
    """One line of a CompleteMultipartUpload request. `checksum` is None when the client gave none."""

    number: int
    etag: str
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of keys. `common_prefixes` and `versions` are each in UTF-8 byte order;
    `next_marker` is the last key or common prefix of the page when `truncated`."""

    versions: tuple[Version, ...]
    common_prefixes: tuple[str, ...]
    truncated: bool
    next_marker: str = ""


@dataclass(frozen=True, slots=True)
class UploadListing:
    """A page of uploads, ordered by key, then by initiation."""

    uploads: tuple[Upload, ...]
    common_prefixes: tuple[str, ...]
    truncated: bool
    next_key_marker: str = ""
    next_upload_id_marker: str = ""
