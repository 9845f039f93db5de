"""Operations that may take long: the connection is kept alive with white space until the document is there.

Amazon S3 does the same for CompleteMultipartUpload and CopyObject ("Error handling" there): the status is 200 from
the start, and an error comes as an <Error> document in it.
"""

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from s3verbs.gateway.http.exchange import Exchange
from s3verbs.gateway.http.request import S3Request
from s3verbs.gateway.http.respond import XML, drained, make_head, write
from s3verbs.gateway.operations.base import Reply
from s3verbs.gateway.xml import responses
from s3verbs.rdma.settle import outlast

if TYPE_CHECKING:
    from s3verbs.gateway.lifecycle import Lifecycle

PATIENCE = 5.0
"""Seconds until the 200 goes out without its document."""

INTERVAL = 3.0
"""Seconds between signs of life."""

_DECLARATION_END = b"?>"


class SlowReply:
    """Runs one operation and answers for it."""

    def __init__(self, lifecycle: "Lifecycle", exchange: Exchange, request: S3Request) -> None:
        self._lifecycle = lifecycle
        self._exchange = exchange
        self._request = request

    async def answer(self, operation: Awaitable[Reply]) -> None:
        """An operation that is done in time is answered as any other; so is its error."""
        task = asyncio.ensure_future(operation)
        try:
            await asyncio.wait((task,), timeout=PATIENCE)
            while not task.done() and not self._exchange.content.is_eof():
                # The request is still coming in; nothing may be answered before.
                await asyncio.wait((task,), timeout=INTERVAL)
            if task.done() or not self._exchange.http11:
                await self._lifecycle.respond(self._exchange, await task)
            else:
                await self._answer_late(task)
        except BaseException:
            # Cancelled, or the client is gone: nobody would wait for the rest.
            task.cancel()
            await outlast(task)
            raise

    async def _answer_late(self, task: "asyncio.Future[Reply]") -> None:
        exchange = self._exchange
        exchange.status = 200
        self._start()
        while not task.done():
            await self._chunk(b" ")
            await asyncio.wait((task,), timeout=INTERVAL)
        document: object
        try:
            document = task.result().document
        except Exception as error:  # noqa: BLE001  the status is out: every error becomes the document
            failure = self._lifecycle.as_s3_error(exchange, error)
            exchange.code = failure.code
            document = self._lifecycle.error_document(exchange, failure)
        body = responses.write(document) if document is not None else b""
        # The declaration went out first, since nothing may stand before it.
        _, _, body = body.partition(_DECLARATION_END)
        await self._chunk(body)
        write(exchange, b"0\r\n\r\n")

    def _start(self) -> None:
        exchange = self._exchange
        self._lifecycle.settle_keep_alive(exchange)
        head = make_head(
            200,
            {"Content-Type": XML, "Transfer-Encoding": "chunked"},
            request_id=exchange.id,
            host_id=self._lifecycle.host_id,
            length=None,
            keep_alive=exchange.keep_alive,
        )
        write(exchange, head)
        declaration = b'<?xml version="1.0" encoding="UTF-8"?>'
        write(exchange, b"%x\r\n%b\r\n" % (len(declaration), declaration))

    async def _chunk(self, data: bytes) -> None:
        if data:
            self._exchange.bytes_out += len(data)
            write(self._exchange, b"%x\r\n%b\r\n" % (len(data), data))
            await drained(self._exchange, self._lifecycle.body_timeout)
