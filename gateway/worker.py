"""A worker process: one event loop that serves the connections its parent hands over, until it is told to drain."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import signal
import socket
import ssl
from collections.abc import Callable

import uvloop

from s3verbs.gateway import app
from s3verbs.gateway.config import Settings
from s3verbs.gateway.http.connection import Listener, tls_context
from s3verbs.gateway.supervisor import READY, WorkerSeat
from s3verbs.rdma.samehost.table import SessionTable

log = logging.getLogger("s3verbs")

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Parameters of mallopt(3), from glibc's malloc.h."""

HANDSHAKE_SECONDS = 10.0
TLS_SHUTDOWN_SECONDS = 1.0
"""How long a closing connection waits for the client's close_notify, which idle clients do not send."""

SAMPLE_SECONDS = 1.0


def run(
    settings: Settings, seat: WorkerSeat, metrics_listener: socket.socket | None, sessions: SessionTable | None
) -> int:
    """Serve until SIGTERM, or until the parent is gone; the exit code."""
    _keep_freed_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, seat, metrics_listener, sessions))


def _keep_freed_memory() -> None:
    """Let malloc serve the event loop's 256 KiB read buffers from its heap. By default glibc maps and unmaps each,
    which costs 2,000 page faults, and a sixth of the CPU time, for a PUT of 8 MiB."""
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 8 << 20)
        libc.mallopt(M_TRIM_THRESHOLD, 32 << 20)


async def _serve(
    settings: Settings, seat: WorkerSeat, metrics_listener: socket.socket | None, sessions: SessionTable | None
) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    gateway = await app.open_gateway(settings, loop, worker=seat.number, sessions=sessions)
    listener = Listener(
        gateway.lifecycle.handle,
        limits=gateway.limits,
        refuse=gateway.lifecycle.refuse,
        loop=loop,
        on_closed=lambda: seat.tally.count_closed(seat.number),
    )
    gateway.draining = lambda: listener.draining
    context = tls_context(str(settings.tls_cert), str(settings.tls_key)) if settings.tls_cert else None
    arrivals = _Arrivals(seat, listener, context, loop, on_parent_gone=stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: _reopen(gateway, arrivals, settings))

    metrics_server = None
    if metrics_listener is not None:
        factory = app.health_factory(gateway, loop, lambda: len(listener.open))
        metrics_server = await loop.create_server(factory, sock=metrics_listener)
    sampling = loop.create_task(_sample(gateway, listener))

    # What is loaded now stays; without it in the way, collections walk over live requests only.
    gc.collect()
    gc.freeze()
    arrivals.start()
    seat.channel.send(READY)
    await stop.wait()

    arrivals.stop()
    cut = await listener.drain(settings.drain_timeout)
    if cut:
        log.warning("worker %d: %d requests were cut after %g s", seat.number, cut, settings.drain_timeout)
    sampling.cancel()
    if metrics_server is not None:
        metrics_server.close()
    await gateway.close()
    return 0


class _Arrivals:
    """Connections that come over the parent's channel."""

    def __init__(
        self,
        seat: WorkerSeat,
        listener: Listener,
        context: ssl.SSLContext | None,
        loop: asyncio.AbstractEventLoop,
        on_parent_gone: Callable[[], None],
    ) -> None:
        self.context = context
        self._seat = seat
        self._listener = listener
        self._loop = loop
        self._on_parent_gone = on_parent_gone
        self._adopting: set[asyncio.Task[None]] = set()
        seat.channel.setblocking(False)

    def start(self) -> None:
        self._loop.add_reader(self._seat.channel.fileno(), self._receive)

    def stop(self) -> None:
        self._receive()
        self._loop.remove_reader(self._seat.channel.fileno())

    def _receive(self) -> None:
        while True:
            try:
                message, descriptors, _, _ = socket.recv_fds(self._seat.channel, 16, 4)
            except BlockingIOError:
                return
            except OSError:
                message, descriptors = b"", []
            if not message:
                self._loop.remove_reader(self._seat.channel.fileno())
                self._on_parent_gone()
                return
            if not descriptors:
                # This process is out of descriptors: the kernel has closed the connection in place of handing it over.
                self._seat.tally.count_closed(self._seat.number)
            for descriptor in descriptors:
                task = self._loop.create_task(self._adopt(socket.socket(fileno=descriptor)))
                self._adopting.add(task)
                task.add_done_callback(self._adopting.discard)

    async def _adopt(self, connection: socket.socket) -> None:
        made = False

        def protocol() -> asyncio.BaseProtocol:
            return self._listener()

        connection.setblocking(False)
        try:
            if self.context is None:
                await self._loop.connect_accepted_socket(protocol, connection)
            else:
                await self._loop.connect_accepted_socket(
                    protocol,
                    connection,
                    ssl=self.context,
                    ssl_handshake_timeout=HANDSHAKE_SECONDS,
                    ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS,
                )
            made = True
        except (OSError, ssl.SSLError, TimeoutError):
            connection.close()
        finally:
            if not made:
                # Only a connection that was made counts itself out.
                self._seat.tally.count_closed(self._seat.number)


async def _sample(gateway: app.Gateway, listener: Listener) -> None:
    while True:
        gateway.sample(len(listener.open))
        await asyncio.sleep(SAMPLE_SECONDS)


def _reopen(gateway: app.Gateway, arrivals: _Arrivals, settings: Settings) -> None:
    """SIGHUP: log files were rotated, and perhaps the certificate was renewed."""
    gateway.reopen_logs()
    if settings.tls_cert is not None:
        try:
            arrivals.context = tls_context(str(settings.tls_cert), str(settings.tls_key))
        except (OSError, ssl.SSLError) as error:
            with contextlib.suppress(Exception):
                log.error(
                    "tls_cert: %s: the certificate that was loaded before stays in use: %s", settings.tls_cert, error
                )
