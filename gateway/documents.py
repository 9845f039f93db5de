"""The documents of the S3 API as values. `xml.requests` reads the request ones, `xml.responses` writes the others.

Field names follow the XML elements. Times are nanoseconds since the epoch; ETags are without quotes and written
with them; `encoding_type` "url" makes the writer percent-encode keys, prefixes, delimiters and markers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from s3verbs.storage.model import Bucket, Checksum, CompletedPart, Part, Upload, Version


@dataclass(frozen=True, slots=True)
class Owner:
    id: str
    display_name: str


# -- requests --


@dataclass(frozen=True, slots=True)
class CreateBucketConfiguration:
    location_constraint: str = ""


@dataclass(frozen=True, slots=True)
class DeleteEntry:
    key: str
    version_id: str = ""
    etag: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    objects: Sequence[DeleteEntry]
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """`grantee` is a canonical user id, or "" when the grantee is not named by one."""

    grantee: str
    permission: str


@dataclass(frozen=True, slots=True)
class AccessControlPolicy:
    owner: str
    grants: Sequence[Grant]


@dataclass(frozen=True, slots=True)
class CompleteMultipartUpload:
    parts: Sequence[CompletedPart]


# -- responses --


@dataclass(frozen=True, slots=True)
class ErrorDocument:
    """`details` are extra elements in order."""

    code: str
    message: str
    resource: str
    request_id: str
    host_id: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ListAllMyBucketsResult:
    owner: Owner
    buckets: Sequence[Bucket]
    prefix: str = ""
    continuation_token: str = ""


@dataclass(frozen=True, slots=True)
class LocationConstraint:
    """us-east-1 is written as an empty element."""

    region: str


@dataclass(frozen=True, slots=True)
class ListBucketResult:
    """ListObjects (version 1). `next_marker` is written when truncated and a delimiter was given."""

    name: str
    prefix: str
    marker: str
    delimiter: str
    max_keys: int
    truncated: bool
    next_marker: str
    versions: Sequence[Version]
    common_prefixes: Sequence[str]
    owner: Owner
    encoding_type: str = ""


@dataclass(frozen=True, slots=True)
class ListBucketV2Result:
    """ListObjectsV2. `owner` is None unless fetch-owner=true."""

    name: str
    prefix: str
    delimiter: str
    max_keys: int
    key_count: int
    truncated: bool
    continuation_token: str
    next_continuation_token: str
    start_after: str
    versions: Sequence[Version]
    common_prefixes: Sequence[str]
    owner: Owner | None = None
    encoding_type: str = ""
    continuation_given: bool = False


@dataclass(frozen=True, slots=True)
class ListVersionsResult:
    """ListObjectVersions. Every version is the latest of its key. The next markers are written when truncated."""

    name: str
    prefix: str
    key_marker: str
    version_id_marker: str
    delimiter: str
    max_keys: int
    truncated: bool
    next_key_marker: str
    next_version_id_marker: str
    versions: Sequence[Version]
    common_prefixes: Sequence[str]
    owner: Owner
    encoding_type: str = ""


@dataclass(frozen=True, slots=True)
class ObjectParts:
    """A page of the parts of a completed upload, and how many it has. They are numbered from 1, as GetObject's
    partNumber counts them: `parts` begins with number `part_number_marker` + 1."""

    count: int
    parts: Sequence[Part]
    part_number_marker: int
    max_parts: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class GetObjectAttributesResponse:
    """The attributes that were asked for; the others are "" or None. The ETag is written without quotes here."""

    etag: str = ""
    checksum: Checksum | None = None
    parts: ObjectParts | None = None
    storage_class: str = ""
    size: int | None = None


@dataclass(frozen=True, slots=True)
class OwnerFullControl:
    """AccessControlPolicy: the only access control list there is, full control for the owner."""

    owner: Owner


@dataclass(frozen=True, slots=True)
class CopyObjectResult:
    etag: str
    last_modified_ns: int
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True)
class CopyPartResult:
    etag: str
    last_modified_ns: int
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True)
class InitiateMultipartUploadResult:
    bucket: str
    key: str
    upload_id: str


@dataclass(frozen=True, slots=True)
class CompleteMultipartUploadResult:
    location: str
    bucket: str
    key: str
    etag: str
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True)
class ListPartsResult:
    bucket: str
    key: str
    upload: Upload
    parts: Sequence[Part]
    part_number_marker: int
    next_part_number_marker: int
    max_parts: int
    truncated: bool
    owner: Owner
    initiator: Owner
    encoding_type: str = ""


@dataclass(frozen=True, slots=True)
class ListMultipartUploadsResult:
    bucket: str
    prefix: str
    delimiter: str
    key_marker: str
    upload_id_marker: str
    next_key_marker: str
    next_upload_id_marker: str
    max_uploads: int
    truncated: bool
    uploads: Sequence[Upload]
    common_prefixes: Sequence[str]
    owner: Owner
    encoding_type: str = ""


@dataclass(frozen=True, slots=True)
class Deleted:
    key: str
    version_id: str = ""


@dataclass(frozen=True, slots=True)
class DeleteError:
    key: str
    code: str
    message: str
    version_id: str = ""


@dataclass(frozen=True, slots=True)
class DeleteResult:
    deleted: Sequence[Deleted]
    errors: Sequence[DeleteError]
