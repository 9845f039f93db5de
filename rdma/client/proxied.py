"""Requests through an HTTP proxy, by urllib3: absolute targets, CONNECT, credentials of the proxy. Slower, and rare."""

import ssl
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote, urlsplit

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NewConnectionError,
    ProxyError,
)
from urllib3.exceptions import TimeoutError as ProxyTimeout

from s3verbs.rdma.client.connection import Broken, NotSent, time_left
from s3verbs.rdma.client.pool import CONNECT_SECONDS


class ProxiedResponse:
    """As SocketResponse. urllib3's own per-read timeout applies, set from the deadline when the request was sent."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self.status: int = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        announced = self.headers.get("content-length", "")
        self.length = int(announced) if announced.isdecimal() else None

    def read_into(self, view: memoryview, deadline: float) -> int:
        filled = 0
        try:
            while filled < len(view):
                time_left(deadline)
                count = self._response.readinto(view[filled : filled + (1 << 20)])
                if not count:
                    break
                filled += count
        except (HTTPError, OSError) as error:
            late = isinstance(error, (ProxyTimeout, TimeoutError))
            raise Broken(f"receiving through the proxy: {error}", timeout=late) from error
        if filled < len(view) and self.length is not None and self._response.tell() < self.length:
            raise Broken("the connection ended in a body")
        return filled

    def close(self, deadline: float) -> bool:
        try:
            self._response.drain_conn()
            return True
        except (HTTPError, OSError):
            self._response.close()
            return False


class ProxiedRoute:
    """Any thread."""

    def __init__(self, scheme: str, host: str, port: int, proxy: str, context: ssl.SSLContext | None) -> None:
        parts = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
        headers = None
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers = urllib3.make_headers(proxy_basic_auth=user)
        name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        address = f"{parts.scheme}://{name}:{parts.port or 80}"
        self._pool = urllib3.ProxyManager(
            address, maxsize=32, proxy_headers=headers, ssl_context=context, retries=False
        )
        shown = f"[{host}]" if ":" in host else host
        self._endpoint = f"{scheme}://{shown}:{port}"

    def exchange(self, head: str, body: Iterable[memoryview], length: int | None, deadline: float) -> ProxiedResponse:
        """`head` as Signer makes it. Raises NotSent and Broken."""
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ")
        headers = dict(line.split(": ", 1) for line in lines if line)
        if length is not None:
            headers["content-length"] = str(length)
        try:
            left = time_left(deadline)
            response = self._pool.urlopen(
                method,
                self._endpoint + target,
                headers=headers,
                body=body if length else None,
                timeout=urllib3.Timeout(connect=min(CONNECT_SECONDS, left), read=left),
                preload_content=False,
                decode_content=False,
                redirect=False,
                retries=False,
            )
        except (ConnectTimeoutError, NewConnectionError, ProxyError) as error:
            raise NotSent(f"the proxy: {error}", timeout=time.monotonic() >= deadline) from error
        except (HTTPError, OSError) as error:
            raise Broken(f"the proxy: {error}", timeout=isinstance(error, (ProxyTimeout, TimeoutError))) from error
        return ProxiedResponse(response)

    def close(self) -> None:
        self._pool.clear()
