"""Chooses where a request's payload comes from and goes to, and checks it against what the request said.

The only place that knows both ways: the HTTP body, and the lane beside it of a request with an RDMA token.
"""

from collections.abc import Mapping
from concurrent.futures import Executor

from s3verbs.gateway import transfer
from s3verbs.gateway.auth.authenticator import Verified
from s3verbs.gateway.buffers import BufferPool
from s3verbs.gateway.checksums import Claims, Digests, verify
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http import headers as names
from s3verbs.gateway.http.aws_chunked import AwsChunkedDecoder
from s3verbs.gateway.http.body import AwsChunkedBody, Incoming, PlainBody, read_all
from s3verbs.gateway.http.exchange import Exchange
from s3verbs.gateway.http.request import S3Request
from s3verbs.gateway.http.respond import HttpSink
from s3verbs.gateway.operations.base import Content
from s3verbs.gateway.rdma_lane import Lanes
from s3verbs.gateway.storing import Storing
from s3verbs.gateway.transfer import Ingested, PayloadSource
from s3verbs.storage.model import Durability
from s3verbs.storage.objects import ObjectStore


class Datapath:
    """What all requests of a process share. `body_timeout` is seconds, as `Exchange.allow` counts them."""

    def __init__(
        self, objects: ObjectStore, pool: BufferPool, executor: Executor, body_timeout: float, lanes: Lanes
    ) -> None:
        self.objects = objects
        self.pool = pool
        self.executor = executor
        self.body_timeout = body_timeout
        self.lanes = lanes

    def open_lane(self, exchange: Exchange, request: S3Request, verified: Verified) -> None:
        """Give the exchange of a routed request its lane, when it carries an RDMA token. Raises S3Error: what
        `Lanes.lane` raises, and NotImplemented for a decline that the client can only understand as an error."""
        lane = exchange.lane = self.lanes.lane(exchange.operation, request.headers, verified)
        if lane is not None:
            lane.check(reads_bodies=exchange.operation == "GetObject")

    def body(self, exchange: Exchange, request: S3Request, verified: Verified) -> "RequestBody":
        return RequestBody(self, exchange, request, verified)

    async def deliver(self, exchange: Exchange, content: Content, head: bytes) -> None:
        """Send an object's bytes; the reader stays the caller's."""
        sink = HttpSink(exchange, self.executor, self.body_timeout)
        await transfer.deliver(content.reader, content.offset, content.length, head, sink)


class RequestBody:
    """What comes with one request, for operations: a document in the body, or a payload for `ingest`."""

    __slots__ = ("_datapath", "_exchange", "_request", "_verified")

    def __init__(self, datapath: Datapath, exchange: Exchange, request: S3Request, verified: Verified) -> None:
        self._datapath = datapath
        self._exchange = exchange
        self._request = request
        self._verified = verified

    async def read_document(self, limit: int, *, checksums: bool = True) -> bytes:
        """See `operations.base.RequestBody`."""
        headers = self._request.headers
        if not checksums:
            headers = {name: headers[name] for name in (names.CONTENT_MD5,) if name in headers}
        claims = Claims.from_headers(headers)
        mode = self._verified.payload
        source: Incoming | AwsChunkedBody
        source = self._aws_chunked() if mode.streaming else self._incoming()
        document = await read_all(source, limit)
        check = PayloadCheck(claims, mode.sha256)
        digests = check.digests(frozenset(), md5=False)
        digests.update(memoryview(document))
        check(digests, source.trailers if checksums and isinstance(source, AwsChunkedBody) else {})
        return document

    async def ingest(
        self,
        *,
        algorithms: frozenset[str] = frozenset(),
        md5: bool = True,
        durability: Durability = Durability.STRICT,
        source: PayloadSource | None = None,
        limit: int = 5 << 30,
    ) -> Ingested:
        """See `transfer.Ingest`."""
        lane = self._exchange.lane if source is None else None
        if lane is not None:
            # The signed hash is that of the empty body; the claims are about what is pulled.
            check = PayloadCheck(Claims.from_headers(self._request.headers), None)
            length = lane.token.size
        elif source is None:
            check = PayloadCheck(Claims.from_headers(self._request.headers), self._verified.payload.sha256)
            source = self._source()
            length = source.length
        else:
            check = PayloadCheck(Claims(), None)
            length = source.length
        if length > limit:
            raise S3Error("EntityTooLarge", details={"ProposedSize": str(length), "MaxSizeAllowed": str(limit)})
        path = self._datapath
        storing = Storing(
            length,
            check.digests(algorithms | {"CRC64NVME"}, md5=md5),
            check,
            path.objects,
            path.executor,
            durability,
        )
        if lane is not None:
            return Ingested(length, await lane.pull(storing), check.md5, check.results, {})
        assert source is not None
        payload = await transfer.ingest(source, storing, pool=path.pool)
        return Ingested(length, payload, check.md5, check.results, source.trailers)

    def _incoming(self) -> Incoming:
        length = self._request.headers.get(names.CONTENT_LENGTH)
        if length is None and names.TRANSFER_ENCODING not in self._request.headers:
            length = "0"
        return Incoming(self._exchange, None if length is None else int(length), self._datapath.body_timeout)

    def _source(self) -> PayloadSource:
        if self._verified.payload.streaming:
            return self._aws_chunked()
        headers = self._request.headers
        length = headers.get(names.CONTENT_LENGTH)
        if length is None and names.TRANSFER_ENCODING in headers:
            length = headers.get(names.X_AMZ_DECODED_CONTENT_LENGTH)
        if length is None:
            raise S3Error("MissingContentLength")
        return PlainBody(self._incoming(), _size(length))

    def _aws_chunked(self) -> AwsChunkedBody:
        length = self._request.headers.get(names.X_AMZ_DECODED_CONTENT_LENGTH)
        if length is None:
            raise S3Error("MissingContentLength")
        size = _size(length)
        mode = self._verified.payload
        decoder = AwsChunkedDecoder(decoded_length=size, verifier=self._verified.verifier, trailer=mode.trailer)
        return AwsChunkedBody(self._incoming(), decoder, size)


class PayloadCheck:
    """What a request claims about its payload against what came. `results` and `md5` are set by the call."""

    __slots__ = ("_claims", "_sha256", "md5", "results")

    def __init__(self, claims: Claims, sha256: bytes | None) -> None:
        self._claims = claims
        self._sha256 = sha256
        self.md5: bytes | None = None
        self.results: Mapping[str, bytes] = {}

    def digests(self, algorithms: frozenset[str], *, md5: bool) -> Digests:
        """Digests of `algorithms` and of all that the claims need."""
        claims = self._claims
        return Digests(
            algorithms | claims.algorithms, md5=md5 or claims.md5 is not None, sha256=self._sha256 is not None
        )

    def __call__(self, digests: Digests, trailers: Mapping[str, str]) -> None:
        """Raises S3Error XAmzContentSHA256Mismatch, BadDigest, MalformedTrailerError."""
        self.md5 = digests.md5()
        self.results = digests.results()
        if self._sha256 is not None and self.results["SHA256"] != self._sha256:
            raise S3Error(
                "XAmzContentSHA256Mismatch",
                details={
                    "ClientComputedContentSHA256": self._sha256.hex(),
                    "S3ComputedContentSHA256": self.results["SHA256"].hex(),
                },
            )
        verify(self._claims, self.results, self.md5, trailers)


def _size(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise S3Error(
            "InvalidArgument", details={"ArgumentName": names.X_AMZ_DECODED_CONTENT_LENGTH, "ArgumentValue": text}
        )
    return int(text)
