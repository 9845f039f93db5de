"""A transport's socket for payload bytes that are not to pass through the transport: sendfile out, recv_into in."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable


class TransportSocket:
    """A duplicate of the transport's socket: the loop lets nobody else watch a descriptor that a transport owns.

    Loop thread only. The caller closes it, and sees to it that the transport does not read or write meanwhile.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        owned: int = transport.get_extra_info("socket").fileno()
        # The family is not looked up: moving bytes does not depend on it.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=os.dup(owned))
        self.fd = self._socket.fileno()

    def send_more(self, data: bytes) -> int:
        """Send, telling the kernel that more follows; 0 when the socket is full."""
        try:
            return self._socket.send(data, socket.MSG_MORE)
        except BlockingIOError:
            return 0

    def receive_into(self, view: memoryview) -> int:
        """Bytes received; 0 when the client has ended its stream, -1 when there are none yet."""
        try:
            return self._socket.recv_into(view)
        except BlockingIOError:
            return -1

    def wake_at(self, count: int) -> None:
        """Report readiness only when `count` bytes have come, or the end; on the transport's descriptor too."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    async def writable(self) -> None:
        await self._ready(self._loop.add_writer, self._loop.remove_writer)

    async def readable(self) -> None:
        await self._ready(self._loop.add_reader, self._loop.remove_reader)

    async def _ready(self, add: Callable[..., object], remove: Callable[[int], object]) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        add(self.fd, _wake, ready)
        try:
            await ready
        finally:
            remove(self.fd)

    def close(self) -> None:
        self._socket.close()


def _wake(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)
