"""RDMA for one request: what its token asks for, whether this server can give it, and what the answer says.

    no token          no lane: an ordinary request
    a bad token       400 InvalidArgument, before any other work
    no transport      declined: the object comes by HTTP, or 501 where the client would not understand that
    a transport       the payload moves beside HTTP; the head goes out after the last completion

Source: docs/wire-format.md.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from s3verbs.gateway import transfer
from s3verbs.gateway.auth.authenticator import Verified
from s3verbs.gateway.auth.payload_hash import PayloadKind, PayloadMode
from s3verbs.gateway.chunk_ingest import ingest_chunks
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http import headers as names
from s3verbs.gateway.operations.base import Content
from s3verbs.gateway.storing import Storing
from s3verbs.gateway.transfer import PayloadSink
from s3verbs.rdma import headers as rdma
from s3verbs.rdma import token as tokens
from s3verbs.rdma.admission import peer_of
from s3verbs.rdma.errors import Decline, Declined, Failure, MalformedToken, PeerUnreachable, TransferFailed
from s3verbs.rdma.fabric import Fabric, RegisteredBuffer, RemoteRegion
from s3verbs.rdma.source import RdmaSource
from s3verbs.rdma.staging import StagingPool
from s3verbs.rdma.token import Token, Transport
from s3verbs.storage.model import Payload

DATA_OPERATIONS = frozenset({"GetObject", "PutObject", "UploadPart"})
"""The operations whose payload can go beside HTTP; all others ignore a token."""

_EMPTY_SHA256 = bytes.fromhex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")


class RegionSink(PayloadSink, Protocol):
    """A PayloadSink that fills a RemoteRegion. `close` ends what is on its way, whatever state it is in."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Route:
    """How one transport is served: who opens its regions, and what fills them."""

    fabric: Fabric
    sink: Callable[[RemoteRegion, Token], RegionSink]
    timed: bool = True
    """Whether `sink` and source go through the time limit. The same host needs none: a copy in memory does not wait."""


@dataclass(slots=True)
class Lane:
    """One request's way beside HTTP; read by the logs and metrics at the end.

    `moved` counts payload bytes, `seconds` the time from the opening of the region to the last completion. `outcome` is
    "" until it is known, then moved, declined or failed, with `reason` for the last two.
    """

    dialect: rdma.Dialect
    token: Token
    lanes: "Lanes"
    device: str = ""
    moved: int = 0
    seconds: float = 0.0
    outcome: str = ""
    reason: str = ""

    @property
    def declined(self) -> bool:
        return self.outcome == "declined"

    def decline(self, reason: Decline) -> None:
        """Note it; `check` is due."""
        self.outcome, self.reason = "declined", reason.value

    def check(self, *, reads_bodies: bool) -> None:
        """Raises S3Error NotImplemented when it is declined and the answer cannot be the object in the HTTP body."""
        if self.declined and not (reads_bodies and self.dialect.reads_bodies):
            raise S3Error(
                "NotImplemented",
                "This endpoint has no RDMA transport for the given token.",
                headers={rdma.REPLY: rdma.DECLINED},
            )

    async def pull(self, storing: Storing) -> Payload:
        """Client memory into storage, as `ingest_chunks`. Nothing is kept when it raises: RdmaError, StorageError,
        and what the verification raises."""
        with self._transfer():
            region = await self.lanes.open(self)
            try:
                source = RdmaSource(region, self.token.size, self.lanes.pool, peer=peer_of(self.token))
                payload = await ingest_chunks(source, storing)
            finally:
                await region.close()
        self.outcome, self.moved = "moved", self.token.size
        return payload

    async def push(self, content: Content) -> bool:
        """Object bytes into client memory. False when the request is declined after all and the object must go by
        HTTP. The reader stays the caller's. Raises S3Error, TransferFailed, StorageError, OSError, EOFError."""
        if content.length > self.token.size:
            raise S3Error(
                "InvalidArgument",
                "The selected range is larger than the buffer that the RDMA token describes.",
                details={"SelectedBytes": str(content.length), "BufferBytes": str(self.token.size)},
            )
        if content.length == 0:
            self.outcome = "moved"
            return True
        try:
            with self._transfer():
                await self._push(content)
        except Declined:
            self.check(reads_bodies=True)
            return False
        self.outcome, self.moved = "moved", content.length
        return True

    @contextmanager
    def _transfer(self) -> Iterator[None]:
        """Time what is done within, and note how it failed."""
        begun = perf_counter()
        try:
            yield
        except Declined as error:
            self.decline(error.reason)
            raise
        except TransferFailed as error:
            self.outcome, self.reason = "failed", error.reason.value
            raise
        finally:
            self.seconds = perf_counter() - begun

    async def _push(self, content: Content) -> None:
        region = await self.lanes.open(self)
        try:
            sink = self.lanes.routes[self.token.transport].sink(region, self.token)
            try:
                await transfer.deliver(content.reader, content.offset, content.length, b"", sink)
            finally:
                await sink.close()
        finally:
            await region.close()

    def reply_headers(self, status: int) -> dict[str, str]:
        """What a successful answer says about the payload's way."""
        if self.outcome != "moved":
            return {rdma.REPLY: rdma.DECLINED}
        return {rdma.REPLY: str(status), rdma.BYTES_TRANSFERRED: str(self.moved)}


class Lanes:
    """What all requests of a process share. `off` says why there is no RDMA at all, `missing` what there is not beside
    the routes; both may be empty."""

    def __init__(
        self,
        routes: Mapping[Transport, Route],
        pool: StagingPool | None,
        *,
        transfer_timeout: float,
        off: str = "",
        missing: str = "",
    ) -> None:
        self.routes = routes
        self.transfer_timeout = transfer_timeout
        self.off = off
        self._missing = missing
        self._pool = pool

    @property
    def pool(self) -> StagingPool:
        assert self._pool is not None, "there is a pool wherever there is a route"
        return self._pool

    @property
    def fabrics(self) -> Sequence[Fabric]:
        """Each once, in the order of the transports."""
        return list(dict.fromkeys(route.fabric for route in self.routes.values()))

    def lane(self, operation: str, headers: Mapping[str, str], verified: Verified) -> Lane | None:
        """None for an ordinary request. What is known to be declined is marked so. Raises S3Error: InvalidArgument,
        AccessDenied, XAmzContentSHA256Mismatch.

        The authenticator has seen to it that the token is signed.
        """
        if operation not in DATA_OPERATIONS or rdma.TOKEN_HEADERS.isdisjoint(headers):
            return None
        lane = self._parse(headers)
        if verified.principal.anonymous:
            raise S3Error("AccessDenied")
        _check_body(headers, verified.payload)
        reason = self._known_decline(headers, lane.token)
        if reason is not None:
            lane.decline(reason)
        return lane

    def _parse(self, headers: Mapping[str, str]) -> Lane:
        try:
            dialect = rdma.dialect_of(headers)
            assert dialect is not None
        except MalformedToken as error:
            raise _invalid(str(error), ", ".join(sorted(rdma.TOKEN_HEADERS)), "") from None
        try:
            token = tokens.parse(headers[dialect.token_header])
        except MalformedToken as error:
            # The value is not repeated: it may hold a good nonce.
            raise _invalid(str(error), dialect.token_header, "") from None
        return Lane(dialect, token, self)

    def _known_decline(self, headers: Mapping[str, str], token: Token) -> Decline | None:
        if self.off:
            return Decline.OFF
        if headers.get(rdma.AGENT, "cuobj").lower() not in rdma.AGENTS:
            return Decline.AGENT
        if token.transport not in self.routes:
            return Decline.NO_TRANSPORT
        return None

    async def open(self, lane: Lane) -> RemoteRegion:
        """The client's buffer, with the time limit on whatever waits for the client. Raises RdmaError."""
        route = self.routes[lane.token.transport]
        if not route.timed:
            return await route.fabric.open(lane.token)
        async with _limit(self.transfer_timeout):
            region = await route.fabric.open(lane.token)
        lane.device = region.device
        return _TimedRegion(region, self.transfer_timeout)

    @property
    def connections(self) -> int:
        """Open RDMA connections of this process."""
        return sum(fabric.connections for fabric in self.fabrics)

    def describe(self) -> str:
        """One line: the transports there are, or why there is none."""
        if self.off:
            return f"off: {self.off}"
        return "; ".join([*(fabric.describe() for fabric in self.fabrics), *([self._missing] if self._missing else [])])

    async def close(self) -> None:
        for fabric in self.fabrics:
            await fabric.close()


@asynccontextmanager
async def _limit(seconds: float) -> AsyncIterator[None]:
    """`asyncio.timeout` whose error is the data plane's own."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise PeerUnreachable(Failure.TIMEOUT) from error


class _TimedRegion:
    """A RemoteRegion each of whose reads and writes must be over within `seconds`."""

    def __init__(self, region: RemoteRegion, seconds: float) -> None:
        self._region = region
        self._seconds = seconds
        self.size = region.size
        self.transport = region.transport
        self.device = region.device

    async def read(self, offset: int, into: RegisteredBuffer, length: int) -> None:
        async with _limit(self._seconds):
            await self._region.read(offset, into, length)

    async def write(self, offset: int, data: RegisteredBuffer, length: int, start: int = 0) -> None:
        async with _limit(self._seconds):
            await self._region.write(offset, data, length, start)

    async def close(self) -> None:
        await self._region.close()


def _check_body(headers: Mapping[str, str], payload: PayloadMode) -> None:
    if payload.streaming or "aws-chunked" in headers.get("content-encoding", "").lower():
        raise _invalid("A request with an RDMA token cannot be aws-chunked.", names.X_AMZ_CONTENT_SHA256, "")
    length = headers.get(names.CONTENT_LENGTH, "0")
    if length.strip("0") or names.TRANSFER_ENCODING in headers:
        raise _invalid("A request with an RDMA token has no body.", names.CONTENT_LENGTH, length)
    if payload.kind is PayloadKind.EXACT and payload.sha256 != _EMPTY_SHA256:
        raise S3Error(
            "XAmzContentSHA256Mismatch",
            details={
                "ClientComputedContentSHA256": (payload.sha256 or b"").hex(),
                "S3ComputedContentSHA256": _EMPTY_SHA256.hex(),
            },
        )


def _invalid(message: str, argument: str, value: str) -> S3Error:
    return S3Error("InvalidArgument", message, details={"ArgumentName": argument, "ArgumentValue": value})
