"""Which transport a client's memory is exposed by, and what is done with memory that it does not take."""

import logging
import mmap
import threading
import time
from collections.abc import Sequence

from s3verbs.rdma.client.cuda import CudaError, Driver
from s3verbs.rdma.client.errors import TransportMissing
from s3verbs.rdma.client.memory import Described, describe
from s3verbs.rdma.client.quarantine import Exposed
from s3verbs.rdma.client.transport import ClientTransport, Memory, Registration, TransportUnavailable
from s3verbs.rdma.token import Transport

_LOG = logging.getLogger("s3verbs.client")

NAMES = ("auto", "samehost", "rc", "http")

LOOK_AGAIN_SECONDS = 30.0
"""A client that found no transport looks again after a second, then after twice that, up to so long: its gateway may be
started after it, or again."""


class Pause:
    """When to ask again for what was not there. Any thread; two that ask at once are no harm."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._wait = 0.0
        self._until = 0.0

    def is_over(self) -> bool:
        return not self._until or time.monotonic() >= self._until

    def begin(self) -> None:
        """It was not there again."""
        self._wait = min(max(1.0, 2 * self._wait), self._longest)
        self._until = time.monotonic() + self._wait

    def end(self) -> None:
        """It was there."""
        self._wait = self._until = 0.0


def open_samehost(host: str, port: int, socket_path: str | None) -> ClientTransport:
    """One that has exposed a page to its gateway and taken it back. Raises TransportUnavailable."""
    from s3verbs.rdma.client.samehost import SameHostTransport

    transport = SameHostTransport(host, port, socket_path)
    page = describe(mmap.mmap(-1, mmap.PAGESIZE))
    try:
        transport.register(Memory(page.address, page.size, page.owner)).revoke()
    except TransportUnavailable:
        transport.close()
        raise
    return transport


def open_rc(devices: Sequence[str]) -> ClientTransport:
    """Raises TransportUnavailable."""
    from s3verbs.rdma.client.verbs import RcTransport

    return RcTransport(devices)


class Exposer:
    """Exposes memory for one client. Any thread.

    `wanted` is one of NAMES or a transport of the caller's own. Every reason for not using RDMA is logged once.
    """

    def __init__(
        self,
        wanted: str | ClientTransport,
        host: str,
        port: int,
        *,
        socket_path: str | None = None,
        devices: Sequence[str] = (),
        look_again: float = LOOK_AGAIN_SECONDS,
    ) -> None:
        """Raises TransportMissing when a transport is pinned and cannot be used, ValueError for an unknown name."""
        if isinstance(wanted, str) and wanted not in NAMES:
            raise ValueError(f"transport is {wanted!r}, it must be one of {', '.join(NAMES)}")
        self._wanted = wanted
        self._host = host
        self._port = port
        self._socket_path = socket_path
        self._devices = devices
        self._lock = threading.Lock()
        self._noted: set[str] = set()
        self._transport: ClientTransport | None = None
        self._pause = Pause(look_again)
        self.look_again = look_again
        self.why_http = ""
        """Why RDMA was not used when it last was not; "" as long as it is."""
        if wanted == "http":
            self.why_http = "HTTP is pinned"
        elif not isinstance(wanted, str):
            self._transport = wanted
        elif wanted != "auto":
            try:
                self._transport = self._open(wanted)
            except TransportUnavailable as error:
                raise TransportMissing(f"{wanted}: {error}") from error

    @property
    def is_http(self) -> bool:
        """RDMA is not wanted at all."""
        return self._wanted == "http"

    @property
    def is_pinned(self) -> bool:
        return self._wanted not in ("auto", "http")

    @property
    def name(self) -> str:
        """Of the transport that new regions are exposed by."""
        transport = self.transport()
        return transport.transport.value if transport is not None else "http"

    def transport(self) -> ClientTransport | None:
        """None: HTTP only, for now."""
        if self._transport is None and self._wanted == "auto" and self._pause.is_over():
            with self._lock:
                if self._transport is None and self._pause.is_over():
                    self._look()
        return self._transport

    def expose(self, memory: Described, driver: Driver | None) -> Exposed | None:
        """None: not by RDMA, for now; the caller may ask again after a Pause. Raises TransportMissing
        when the transport is pinned and does not take host memory."""
        transport = self.transport()
        if transport is None or not memory.size:
            return None
        name = transport.transport.value
        try:
            if memory.gpu is None:
                registration = transport.register(Memory(memory.address, memory.size, memory.owner))
            else:
                registration = self._register_gpu(transport, memory, driver)
        except TransportUnavailable as error:
            if memory.gpu is None and self.is_pinned:
                raise TransportMissing(f"{name}: {error}") from error
            instead = "HTTP is used" if memory.gpu is None else "GPU memory is staged through host memory"
            self.note(f"{name} cannot expose this memory, {instead}: {error}")
            return None
        self.why_http = ""
        return Exposed(registration, name, memory.size)

    def note(self, why: str) -> None:
        """Log it once."""
        self.why_http = why
        with self._lock:
            if why in self._noted or len(self._noted) > 100:
                return
            self._noted.add(why)
        _LOG.warning("%s", why)

    def rest(self, token: str) -> None:
        """The server could not reach the memory by this token: a transport with several ways prefers others a while."""
        rest = getattr(self._transport, "rest", None)
        if rest is not None:
            rest(token)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _register_gpu(self, transport: ClientTransport, memory: Described, driver: Driver | None) -> Registration:
        if transport.transport is Transport.SAMEHOST:
            raise TransportUnavailable("the kernel cannot copy to and from a GPU's memory in another process")
        assert driver is not None
        assert memory.gpu is not None
        gpu, size, address = memory.gpu, memory.size, memory.address

        def dmabuf() -> tuple[int, int]:
            try:
                return driver.open_dmabuf(gpu, address, size)
            except CudaError as error:
                raise OSError(str(error)) from error

        return transport.register(Memory(address, size, memory.owner, gpu, dmabuf))

    def _open(self, name: str) -> ClientTransport:
        if name == "rc":
            return open_rc(self._devices)
        return open_samehost(self._host, self._port, self._socket_path)

    def _look(self) -> None:
        reasons = []
        for name in ("samehost", "rc"):
            try:
                self._transport = self._open(name)
                return
            except TransportUnavailable as error:
                reasons.append(f"{name}: {error}")
        self._pause.begin()
        why = "no RDMA transport, HTTP is used: " + "; ".join(reasons)
        self.why_http = why
        if why not in self._noted:
            self._noted.add(why)
            _LOG.warning("%s", why)
