"""The life of a request, from its head to the log line. `Lifecycle._serve` is the sequence; each step is a method.

    read head -> route -> authenticate -> authorize -> operation -> respond -> logs and metrics

An error of any step becomes a response in one place, `_fail`. After the first byte of a response is out, an error
can only cut the connection.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from s3verbs.gateway.auth.authenticator import Authenticator, Verified
from s3verbs.gateway.auth.authorizer import Authorizer
from s3verbs.gateway.auth.principal import ANONYMOUS
from s3verbs.gateway.datapath import Datapath
from s3verbs.gateway.documents import ErrorDocument
from s3verbs.gateway.errors import S3Error, from_rdma, from_storage, from_system
from s3verbs.gateway.http import headers as names
from s3verbs.gateway.http.body import CONTINUE
from s3verbs.gateway.http.connection import CLOSE, KEEP, Connection
from s3verbs.gateway.http.exchange import Exchange, Wait
from s3verbs.gateway.http.forwarded import Forwarded
from s3verbs.gateway.http.headers import fold_headers
from s3verbs.gateway.http.request import S3Request, Scope
from s3verbs.gateway.http.respond import XML, drained, make_head, write
from s3verbs.gateway.http.target import parse_target
from s3verbs.gateway.observe import Observer, RequestIds
from s3verbs.gateway.operations.base import Call, Operation, Reply
from s3verbs.gateway.routing import RouteTable
from s3verbs.gateway.slow import SlowReply
from s3verbs.gateway.watchdog import Watchdog
from s3verbs.gateway.xml import responses
from s3verbs.rdma.errors import RdmaError
from s3verbs.storage.errors import StorageError

FIRST_BYTE_SECONDS = 2.5
"""A GET that has not begun to answer by then is told SlowDown: clients of this kind give up after 3 s."""

_OBJECT_READS = frozenset({"GetObject", ""})
"""Operations whose answer a client may take for object bytes; "" is a GET that failed before it was routed."""

DRAIN_BYTES = 1 << 20
"""An unread body of at most this much is read and dropped, so that the connection can be kept."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the steps call. Built by `app`; `draining` tells whether the worker is stopping."""

    ids: RequestIds
    host_id: str
    domains: tuple[str, ...]
    forwarded: Forwarded | None
    routes: RouteTable
    authenticator: Authenticator
    authorizer: Authorizer
    find_operation: Callable[[str], Operation]
    datapath: Datapath
    observer: Observer
    watchdog: Watchdog
    clock: Callable[[], int]
    settings: Mapping[str, Any]
    draining: Callable[[], bool]


class Lifecycle:
    """Answers requests; given to aiohttp as its handler."""

    def __init__(self, parts: Parts, loop: asyncio.AbstractEventLoop) -> None:
        self._parts = parts
        self._loop = loop
        self.host_id = parts.host_id
        self.body_timeout = parts.datapath.body_timeout

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Never raises but for cancellation, when the client has gone."""
        parts = self._parts
        exchange = Exchange(request, parts.ids.next(), self._loop)
        exchange.task = asyncio.current_task()
        parts.watchdog.exchanges.add(exchange)
        parts.observer.started()
        exchange.connection.fail_broken_body(request)
        try:
            await self._run(exchange)
        finally:
            if exchange.direct is not None:
                exchange.direct.close()
            parts.watchdog.exchanges.discard(exchange)
            parts.observer.finished(exchange)
        return KEEP if exchange.keep_alive else CLOSE

    def refuse(self, connection: Connection, code: str, message: str) -> bytes:
        """The response to what could not be parsed as a request; it closes the connection."""
        error = S3Error(code, message or None)
        request_id = self._parts.ids.next()
        self._parts.observer.refused(connection.remote, request_id, error.status, code)
        return b"".join(self._error_response(error, "", request_id, keep_alive=False))

    async def _run(self, exchange: Exchange) -> None:
        try:
            await self._serve(exchange)
        except asyncio.CancelledError:
            error = _timeout(exchange)
            if error is None:
                exchange.status = exchange.status or 499
                raise
            await self._fail(exchange, error)
        except (ConnectionError, BrokenPipeError):
            exchange.status = exchange.status or 499
            exchange.abort()
        except Exception as error:  # noqa: BLE001  the boundary: whatever it is becomes InternalError
            await self._fail(exchange, error)

    async def _serve(self, exchange: Exchange) -> None:
        request = self._read_head(exchange)
        operation = self._route(exchange, request)
        verified = self._authenticate(exchange, operation, request)
        self._authorize(exchange, operation, verified, request)
        call = self._call(exchange, request, verified)
        self._parts.datapath.open_lane(exchange, request, verified)
        if operation.slow:
            await SlowReply(self, exchange, request).answer(operation.handler(call))
            return
        if exchange.method == "GET":
            exchange.allow(Wait.FIRST_BYTE, FIRST_BYTE_SECONDS)
        reply = await operation.handler(call)
        exchange.deadline = 0.0
        await self.respond(exchange, reply)

    # -- the steps --

    def _read_head(self, exchange: Exchange) -> S3Request:
        message = exchange.request
        headers = fold_headers(message.raw_headers)
        host = headers.get(names.HOST, "")
        forwarded = self._parts.forwarded
        if forwarded is not None and forwarded.trusts(exchange.remote):
            host = forwarded.apply(exchange, headers, host)
        exchange.host = host
        exchange.user_agent = headers.get(names.USER_AGENT, "")
        expect = headers.get(names.EXPECT)
        if expect is not None:
            _expect(exchange, expect, headers)
        target = parse_target(message.raw_path, host, self._parts.domains)
        exchange.bucket = target.bucket
        exchange.key = target.key
        return S3Request(exchange.method, target, headers, host, exchange.remote, exchange.id, exchange.secure_client)

    def _route(self, exchange: Exchange, request: S3Request) -> Operation:
        target = request.target
        if request.method == "OPTIONS":
            raise _no_cors(request)
        name = self._parts.routes.resolve(request.method, target.scope, target, request.headers)
        exchange.operation = name
        return self._parts.find_operation(name)

    def _authenticate(self, exchange: Exchange, operation: Operation, request: S3Request) -> Verified:
        try:
            verified = self._parts.authenticator.authenticate(request)
        except S3Error as error:
            exchange.access_key = _claimed_access_key(request)
            self._parts.observer.denied(exchange, operation.action, error.code)
            raise
        if verified.principal is not ANONYMOUS:
            exchange.access_key = verified.principal.access_key
        return verified

    def _authorize(self, exchange: Exchange, operation: Operation, verified: Verified, request: S3Request) -> None:
        target = request.target
        try:
            self._parts.authorizer.check(verified.principal, operation.action, target.bucket, target.key)
        except S3Error as error:
            self._parts.observer.denied(exchange, operation.action, error.code)
            raise
        self._parts.observer.authorized(exchange, operation.action)

    def _call(self, exchange: Exchange, request: S3Request, verified: Verified) -> Call:
        parts = self._parts
        body = parts.datapath.body(exchange, request, verified)
        target = request.target
        return Call(
            request,
            verified.principal,
            target.bucket,
            target.key,
            body,
            body.ingest,
            parts.datapath.objects,
            parts.clock,
            parts.settings,
            lambda action, bucket, key: self._authorize_other(exchange, verified, action, bucket, key),
        )

    def _authorize_other(self, exchange: Exchange, verified: Verified, action: str, bucket: str, key: str) -> None:
        try:
            self._parts.authorizer.check(verified.principal, action, bucket, key)
        except S3Error as error:
            self._parts.observer.denied(exchange, action, error.code, f"{bucket}/{key}")
            raise
        self._parts.observer.authorized(exchange, action, f"{bucket}/{key}")

    async def respond(self, exchange: Exchange, reply: Reply) -> None:
        """Send a reply. Closes the reader of its content, whatever happens."""
        content = reply.content
        lane = exchange.lane
        if content is not None:
            try:
                if lane is None:
                    by_http = True
                else:
                    by_http = lane.declined or not await lane.push(content)
                    reply.headers.update(lane.reply_headers(reply.status))
                if by_http:
                    head = self._head(exchange, reply.status, reply.headers, content.length)
                    await self._parts.datapath.deliver(exchange, content, head)
                    return
            finally:
                content.reader.close()
        elif lane is not None and reply.status == 200:
            reply.headers.update(lane.reply_headers(200))
        body = b""
        if reply.document is not None:
            body = responses.write(reply.document)
            reply.headers.setdefault("Content-Type", XML)
        length: int | None = len(body)
        if exchange.method == "HEAD":
            length = reply.content_length
            body = b""
        head = self._head(exchange, reply.status, reply.headers, length)
        exchange.bytes_out += len(body)
        write(exchange, head + body if body else head)
        await drained(exchange, self.body_timeout)

    # -- heads and errors --

    def _head(self, exchange: Exchange, status: int, headers: Mapping[str, str], length: int | None) -> bytes:
        self.settle_keep_alive(exchange)
        exchange.status = status
        return make_head(
            status,
            headers,
            request_id=exchange.id,
            host_id=self.host_id,
            length=length,
            keep_alive=exchange.keep_alive,
            http11=exchange.http11,
        )

    def settle_keep_alive(self, exchange: Exchange) -> None:
        """Decide whether the connection can serve another request after the response that is about to go out."""
        direct = exchange.direct
        if direct is not None:
            direct.close()
        if exchange.content.is_eof():
            if self._parts.draining() or exchange.connection.half_closed:
                exchange.keep_alive = False
            return
        length = exchange.request.headers.get(names.CONTENT_LENGTH)
        if direct is not None:
            left = direct.left
        else:
            left = int(length) - exchange.content.total_bytes if length is not None else DRAIN_BYTES + 1
        # A client that still waits for 100 Continue may send its body or not: only a close is unambiguous.
        if exchange.expects_continue or left > DRAIN_BYTES or self._parts.draining():
            exchange.keep_alive = False

    async def _fail(self, exchange: Exchange, error: Exception) -> None:
        """The one place where an error becomes a response."""
        failure = self.as_s3_error(exchange, error)
        exchange.deadline = 0.0
        exchange.code = failure.code
        if exchange.committed:
            exchange.abort()
            return
        try:
            self.settle_keep_alive(exchange)
            exchange.status = failure.status
            head, body = self._error_response(
                failure,
                _resource(exchange),
                exchange.id,
                keep_alive=exchange.keep_alive,
                http11=exchange.http11,
                method=exchange.method,
                object_read=exchange.method == "GET" and exchange.operation in _OBJECT_READS,
            )
            exchange.bytes_out += len(body)
            write(exchange, head + body)
            await drained(exchange, self.body_timeout)
        except ConnectionError:
            exchange.abort()
        except asyncio.CancelledError:
            exchange.abort()
            if _timeout(exchange) is None:
                raise

    def as_s3_error(self, exchange: Exchange, error: Exception) -> S3Error:
        """What a client is told of an error. The cause of an InternalError goes to the server's own log alone."""
        if isinstance(error, S3Error):
            return error
        if isinstance(error, RdmaError):
            return from_rdma(error)
        if isinstance(error, StorageError | OSError):
            failure = from_storage(error) if isinstance(error, StorageError) else from_system(error)
            if failure.code != "InternalError":
                return failure
        self._parts.observer.failed(exchange, error)
        return S3Error("InternalError")

    def error_document(self, exchange: Exchange, failure: S3Error) -> ErrorDocument:
        return ErrorDocument(
            failure.code, failure.message, _resource(exchange), exchange.id, self.host_id, failure.details
        )

    def _error_response(
        self,
        failure: S3Error,
        resource: str,
        request_id: str,
        *,
        keep_alive: bool,
        http11: bool = True,
        method: str = "",
        object_read: bool = False,
    ) -> tuple[bytes, bytes]:
        headers = dict(failure.headers)
        body = b""
        length: int | None = None
        if failure.status >= 500 and object_read:
            # NIXL's client counts the body of an error as object bytes, and then fails although its retry succeeds.
            headers["x-amz-error-code"] = failure.code
            headers["x-amz-error-message"] = failure.message
            length = 0
        elif method != "HEAD":
            document = ErrorDocument(failure.code, failure.message, resource, request_id, self.host_id, failure.details)
            body = responses.write(document)
            headers["Content-Type"] = XML
            length = len(body)
        if failure.status == 503:
            headers.setdefault("Retry-After", "1")
        head = make_head(
            failure.status,
            headers,
            request_id=request_id,
            host_id=self.host_id,
            length=length,
            keep_alive=keep_alive,
            http11=http11,
        )
        return head, body


def _timeout(exchange: Exchange) -> S3Error | None:
    """The error of a cancellation that came from the watchdog; None when the client has gone."""
    expired = exchange.expired
    if expired is Wait.NOTHING or exchange.task is None:
        return None
    exchange.task.uncancel()
    if expired is Wait.FIRST_BYTE:
        return S3Error("SlowDown")
    exchange.keep_alive = False
    return S3Error("RequestTimeout")


def _expect(exchange: Exchange, value: str, headers: Mapping[str, str]) -> None:
    # AWS ignores an expectation that it does not know; RFC 9110, 10.1.1, leaves it free to.
    if value.lower() != "100-continue" or not exchange.http11:
        return
    if headers.get(names.CONTENT_LENGTH, "") == "0":
        # Clients that send it with an empty body wait for the answer all the same.
        exchange.transport.write(CONTINUE)
    elif not exchange.content.is_eof():
        exchange.expects_continue = True


def _no_cors(request: S3Request) -> S3Error:
    if "origin" not in request.headers:
        return S3Error("BadRequest", "Insufficient information. Origin request header needed.")
    kind = "OBJECT" if request.target.scope is Scope.OBJECT else "BUCKET"
    method = request.headers.get("access-control-request-method", "")
    return S3Error("AccessForbidden", details={"Method": method, "ResourceType": kind})


def _resource(exchange: Exchange) -> str:
    return f"/{exchange.bucket}/{exchange.key}" if exchange.key else f"/{exchange.bucket}"


def _claimed_access_key(request: S3Request) -> str:
    """The access key that a refused request claims, for the audit log."""
    value = request.headers.get(names.AUTHORIZATION, "")
    if not value:
        return (request.target.get("X-Amz-Credential") or "").partition("/")[0]
    return value.partition("Credential=")[2].partition("/")[0]
