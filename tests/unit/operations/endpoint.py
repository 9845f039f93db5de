"""Operations over in-memory stores, called as the request lifecycle calls them."""

import base64
import hashlib
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from s3verbs.gateway.auth.authorizer import Authorizer
from s3verbs.gateway.auth.principal import Principal
from s3verbs.gateway.checksums import Claims, Digests, verify
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.request import S3Request, Scope, Target
from s3verbs.gateway.operations.base import Call, Reply
from s3verbs.gateway.operations.registry import find
from s3verbs.gateway.transfer import Ingested, PayloadSource
from s3verbs.gateway.xml.responses import write
from s3verbs.storage.memory import MemoryMetadataStore, MemoryPayloadStore
from s3verbs.storage.model import INLINE_LIMIT, Durability
from s3verbs.storage.objects import ObjectStore

OWNER = Principal(id="owner-id", display_name="owner", access_key="AKIAOWNER")
OTHER = Principal(id="other-id", display_name="other", access_key="AKIAOTHER")

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
START_DATE = "Tue, 14 Nov 2023 22:13:20 GMT"


class Body:
    """A request's body, read as a document or as a payload; `taken` tells whether anyone did."""

    def __init__(self, data: bytes, headers: Mapping[str, str], trailers: Mapping[str, str]) -> None:
        self.data = data
        self.taken = False
        self._headers = headers
        self._trailers = trailers

    async def read_document(self, limit: int, *, checksums: bool = True) -> bytes:
        self.taken = True
        if len(self.data) > limit:
            raise S3Error("MaxMessageLengthExceeded")
        if checksums:
            self.check()
        return self.data

    @property
    def claims_md5(self) -> bool:
        return "content-md5" in self._headers

    def check(self) -> Digests:
        claims = Claims.from_headers(self._headers)
        digests = Digests(claims.algorithms, md5=True)
        digests.update(memoryview(self.data))
        verify(claims, digests.results(), digests.md5(), self._trailers)
        return digests


class MemoryIngest:
    """An Ingest that reads a source in chunks of `chunk` bytes."""

    def __init__(self, body: Body, objects: ObjectStore, chunk: int) -> None:
        self._body = body
        self._objects = objects
        self._chunk = chunk
        self.durability: Durability | None = None

    async def __call__(
        self,
        *,
        algorithms: frozenset[str] = frozenset(),
        md5: bool = True,
        durability: Durability = Durability.STRICT,
        source: PayloadSource | None = None,
        limit: int = 5 << 30,
    ) -> Ingested:
        self.durability = durability
        if source is None:
            self._body.taken = True
            self._body.check()
            data = self._body.data
        else:
            data = await self._drain(source)
        if len(data) > limit:
            raise S3Error("EntityTooLarge")
        digests = Digests(algorithms | {"CRC64NVME"}, md5=md5 or self._body.claims_md5)
        digests.update(memoryview(data))
        if len(data) <= INLINE_LIMIT:
            payload = self._objects.inline_payload(data)
        else:
            writer = self._objects.create_payload(len(data))
            writer.write(memoryview(data))
            payload = writer.seal(durable=durability is Durability.STRICT)
        return Ingested(len(data), payload, digests.md5(), digests.results(), {})

    async def _drain(self, source: PayloadSource) -> bytes:
        chunk = memoryview(bytearray(self._chunk))
        data = bytearray()
        while count := await source.receive(chunk):
            data += chunk[:count]
        assert len(data) == source.length
        return bytes(data)


@dataclass
class Endpoint:
    """One endpoint with in-memory stores and a clock that the test sets."""

    settings: dict[str, object] = field(default_factory=dict)
    chunk: int = 1 << 16

    def __post_init__(self) -> None:
        self.now = START
        identities = itertools.count(1)
        self.payloads = MemoryPayloadStore()
        self.objects = ObjectStore(
            MemoryMetadataStore(),
            self.payloads,
            clock=lambda: self.now,
            new_id=lambda: next(identities).to_bytes(16, "big"),
        )
        self.last: Call | None = None

    def call(
        self,
        bucket: str = "",
        key: str = "",
        *,
        query: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        trailers: Mapping[str, str] | None = None,
        principal: Principal = OWNER,
        secure: bool = False,
    ) -> Call:
        scope = Scope.OBJECT if key else Scope.BUCKET if bucket else Scope.SERVICE
        path = f"/{bucket}/{key}" if key else f"/{bucket}"
        sent = dict(headers or {})
        request = S3Request(
            method="",
            target=Target(path, path, tuple(query), bucket, key, scope),
            headers=sent,
            host="s3.test:9000",
            remote="192.0.2.1",
            request_id="REQUEST",
            secure=secure,
        )
        reading = Body(body, sent, trailers or {})
        return Call(
            request=request,
            principal=principal,
            bucket=bucket,
            key=key,
            body=reading,
            ingest=MemoryIngest(reading, self.objects, self.chunk),
            objects=self.objects,
            clock=lambda: self.now,
            settings=self.settings,
            authorize=lambda action, bucket, key: Authorizer(self.objects.bucket).check(principal, action, bucket, key),
        )

    async def run(
        self,
        name: str,
        bucket: str = "",
        key: str = "",
        *,
        query: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        trailers: Mapping[str, str] | None = None,
        principal: Principal = OWNER,
        secure: bool = False,
    ) -> Reply:
        """The reply of one request, its document known to be writable; `last` is its call."""
        self.last = self.call(
            bucket, key, query=query, headers=headers, body=body, trailers=trailers, principal=principal, secure=secure
        )
        reply = await find(name).handler(self.last)
        if reply.document is not None:
            write(reply.document)
        return reply

    async def put(self, key: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Reply:
        return await self.run("PutObject", "bucket", key, body=body, headers=headers)

    async def get(
        self, key: str, headers: Mapping[str, str] | None = None, query: Sequence[tuple[str, str]] = ()
    ) -> tuple[Reply, bytes]:
        """GetObject's reply, and the bytes that would be delivered; HeadObject must agree with it."""
        reply = await self.run("GetObject", "bucket", key, headers=headers, query=query)
        data = content(reply)
        head = await self.run("HeadObject", "bucket", key, headers=headers, query=query)
        assert (head.status, head.headers, head.content) == (reply.status, reply.headers, None)
        if reply.status != 304:
            assert head.content_length == len(data)
        return reply, data

    async def fails(self, code: str, name: str, *args: object, **kwargs: object) -> S3Error:
        """The S3Error of that code that the request must end in."""
        with pytest.raises(S3Error) as caught:
            await self.run(name, *args, **kwargs)
        assert caught.value.code == code, (caught.value.code, caught.value.message)
        return caught.value

    def body_taken(self) -> bool:
        assert self.last is not None
        assert isinstance(self.last.body, Body)
        return self.last.body.taken


def content(reply: Reply) -> bytes:
    """The bytes of a reply, its reader closed."""
    if reply.content is None:
        return b""
    reader = reply.content.reader
    data = bytearray()
    for segment in reader.segments(reply.content.offset, reply.content.length):
        if segment.data is not None:
            data += (
                segment.data[segment.offset :][: segment.length] if len(segment.data) > segment.length else segment.data
            )
        else:
            data += os.pread(segment.fd, segment.length, segment.offset)
    reader.close()
    return bytes(data)


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def md5_hex(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def sha256_b64(data: bytes) -> str:
    return b64(hashlib.sha256(data).digest())
