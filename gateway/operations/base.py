"""What an operation is: a name, an action, and an async function from a Call to a Reply."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from s3verbs.gateway.auth.principal import Principal
from s3verbs.gateway.http.request import S3Request
from s3verbs.gateway.transfer import Ingest
from s3verbs.storage.objects import ObjectReader, ObjectStore


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of a GET: [offset, offset + length) of an open object. The lifecycle delivers and closes it."""

    reader: ObjectReader
    offset: int
    length: int


@dataclass(slots=True)
class Reply:
    """The outcome of an operation.

    `document` is a value of `gateway.documents` that `xml.responses` can write, `content` an object's bytes; at most
    one of them is set. `content_length` is what a HEAD reports. Headers are in wire form (`ETag` with quotes).
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    document: object | None = None
    content: Content | None = None
    content_length: int | None = None


class RequestBody(Protocol):
    """A request's body, for operations that read a document."""

    async def read_document(self, limit: int, *, checksums: bool = True) -> bytes:
        """The whole body, verified (payload hash, Content-MD5, x-amz-checksum-*); b"" when there is none.

        With `checksums` False the x-amz-checksum-* headers are not compared: those of CompleteMultipartUpload are
        about the object. Raises S3Error: MaxMessageLengthExceeded above `limit` bytes, BadDigest,
        XAmzContentSHA256Mismatch, IncompleteBody."""


@dataclass(slots=True)
class Call:
    """All that an operation may use. `ingest` reads the request's payload, whatever transport brings it.

    The principal is authorized for the operation's action on bucket and key. `authorize(action, bucket, key)` checks
    another resource, the source of a copy; it raises S3Error AccessDenied.
    """

    request: S3Request
    principal: Principal
    bucket: str
    key: str
    body: RequestBody
    ingest: Ingest
    objects: ObjectStore
    clock: Callable[[], int]
    settings: Mapping[str, Any]
    authorize: Callable[[str, str, str], None]


Handler = Callable[[Call], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Operation:
    """`name` is S3's own ("UploadPart"), `action` IAM's ("s3:PutObject"). `slow` operations keep the connection alive
    with white space before their document."""

    name: str
    action: str
    handler: Handler
    slow: bool = False

    def __post_init__(self) -> None:
        if not self.action.startswith("s3:"):
            raise ValueError(f"operation {self.name} has no IAM action")
