"""The connections to one endpoint: kept alive, shared by all threads, newest first."""

import os
import socket
import ssl
import threading
import time
from pathlib import Path
from urllib.request import getproxies, proxy_bypass

from s3verbs.rdma.client.connection import Connection, NotSent, time_left

_IDLE_SECONDS = 50.0
"""Servers close idle connections after a minute or more; one that is closed earlier is noticed when it is taken."""

CONNECT_SECONDS = 5.0
"""The most that one attempt to connect may take."""


def tls_context(verify: bool | str | os.PathLike[str]) -> ssl.SSLContext:
    """`verify` is True (the system's authorities, or those of AWS_CA_BUNDLE), a file or folder with authorities, or
    False for none: then anybody can play the server."""
    bundle = os.environ.get("AWS_CA_BUNDLE", "") if verify is True else ("" if verify is False else os.fspath(verify))
    folder = bool(bundle) and Path(bundle).is_dir()
    context = ssl.create_default_context(
        cafile=bundle if bundle and not folder else None, capath=bundle if folder else None
    )
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def proxy_for(scheme: str, host: str) -> str | None:
    """What the environment (http_proxy, https_proxy, no_proxy) says for this endpoint."""
    proxy = getproxies().get(scheme)
    return proxy if proxy and not proxy_bypass(host) else None


class ConnectionPool:
    """Any thread. At most `keep` idle connections."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None, *, keep: int = 64) -> None:
        self._host = host
        self._port = port
        self._context = context
        self._keep = keep
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._closed = False

    def acquire(self, deadline: float) -> Connection:
        """An idle connection that is alive, or a new one. Raises NotSent."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connect(deadline)
            if time.monotonic() - connection.idle_since < _IDLE_SECONDS and connection.is_alive():
                return connection
            connection.close()

    def release(self, connection: Connection) -> None:
        """It can take another request."""
        connection.idle_since = time.monotonic()
        with self._lock:
            if not self._closed and len(self._idle) < self._keep:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Connections that are in use are closed when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connect(self, deadline: float) -> Connection:
        try:
            patience = min(CONNECT_SECONDS, time_left(deadline))
            sock = socket.create_connection((self._host, self._port), timeout=patience)
        except OSError as error:
            raise self._refused(error) from error
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                sock = self._context.wrap_socket(sock, server_hostname=self._host)
            return Connection(sock)
        except OSError as error:
            sock.close()
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> NotSent:
        text = f"cannot connect to {self._host}:{self._port}: {error}"
        return NotSent(text, timeout=isinstance(error, TimeoutError))
