"""Reliable connections over any RoCE device: the client's listener, its memory regions, and their tokens."""

import ctypes
import itertools
import logging
import os
import secrets
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence

from s3verbs.rdma.client.transport import Memory, TransportUnavailable
from s3verbs.rdma.client.verbs_listener import Listener
from s3verbs.rdma.client.verbs_rail import ClientRail
from s3verbs.rdma.handshake import NONCE_SIZE
from s3verbs.rdma.token import Token, Transport
from s3verbs.rdma.token import parse as parse_token
from s3verbs.rdma.verbs.api import MemoryRegion
from s3verbs.rdma.verbs.device import explain
from s3verbs.rdma.verbs.errors import VerbsError, VerbsUnavailable
from s3verbs.rdma.verbs.sysfs import read_inventory

log = logging.getLogger("s3verbs.client")

MAX_CONNECTIONS = 256


class RcTransport:
    """Implements ClientTransport. Opens its devices at once, and again in a child process that was forked.

    `devices` pins `device[:port[:gid index]]`; empty means every active RoCE port. With several, tokens take turns
    among them. A registration that was made before a fork is of no use in the child: the memory that its token names is
    the parent's.
    """

    def __init__(self, devices: Sequence[str] = (), *, max_connections: int = MAX_CONNECTIONS) -> None:
        """Raises TransportUnavailable: no pyverbs, no device, or a pinned one that cannot be used."""
        self._devices = tuple(devices)
        self._max_connections = max_connections
        self._closed = False
        self._opened: _Process | None = None
        self._lock = threading.Lock()
        self._process()
        _transports.add(self)

    @property
    def transport(self) -> Transport:
        return Transport.RC

    @property
    def connections(self) -> int:
        """Servers' connections to this process."""
        return self._process().listener.connections

    def describe(self) -> str:
        """The rails, for logs."""
        return ", ".join(map(str, self._process().rails))

    def register(self, memory: Memory) -> "RcRegistration":
        return self._process().register(memory)

    def rest(self, token: str) -> None:
        """The server could not use this token's rail: prefer others for some seconds."""
        self._process().rest(parse_token(token))

    def close(self) -> None:
        """Registrations are revoked, connections ended. The transport cannot be used any more."""
        with self._lock:
            self._closed = True
            process, self._opened = self._opened, None
        if process is not None:
            process.close()

    def _process(self) -> "_Process":
        with self._lock:
            if self._closed:
                raise TransportUnavailable("the RDMA transport is closed")
            if self._opened is None:
                self._opened = _open(self._devices, self._max_connections)
                # Also at the interpreter's exit: objects of the verbs library must be freed in order.
                weakref.finalize(self, _Process.close, self._opened)
            return self._opened

    def _after_fork(self) -> None:
        """In a child: a lock may be held by a thread that is not there, and verbs objects are the parent's."""
        self._lock = threading.Lock()
        if self._opened is not None:
            _keep_for_ever(self._opened)
            self._opened = None


class RcRegistration:
    """Implements Registration: a memory region on each rail."""

    def __init__(self, process: "_Process", memory: Memory, regions: Mapping[ClientRail, MemoryRegion]) -> None:
        self._process = process
        self._memory = memory
        self._regions = dict(regions)
        self._lock = threading.Lock()

    def token(self, offset: int, size: int) -> str:
        """Raises TransportUnavailable when it is revoked, or of another process; ValueError outside of the memory."""
        if offset < 0 or size <= 0 or offset + size > self._memory.size:
            raise ValueError(f"[{offset}, {offset + size}) is not in a memory of {self._memory.size} bytes")
        if self._process.pid != os.getpid():
            raise TransportUnavailable("the memory was registered before this process was forked: register it here")
        with self._lock:
            rail = self._process.next_rail(self._regions)
            region = self._regions[rail]
        return str(
            Token(
                region.first + offset,
                size,
                region.rkey,
                qp=self._process.listener.ports[rail],
                gid=rail.rail.gid,
                transport=Transport.RC,
                secret=self._process.nonce,
            )
        )

    def revoke(self) -> bool:
        """Deregister: from then on the device refuses every access. True, unless the kernel would not."""
        if self._process.pid != os.getpid():
            return True  # No token of it was ever good for memory of this process.
        with self._lock:
            for rail, region in list(self._regions.items()):
                try:
                    region.close()
                except VerbsError as error:
                    log.warning("RDMA: %s: deregistering memory: %s", rail, error)
                else:
                    del self._regions[rail]
            revoked = not self._regions
        if revoked:
            self._process.forget(self)
        return revoked


class _Process:
    """What one process has open. `pid` is that process."""

    def __init__(self, rails: Sequence[ClientRail], max_connections: int) -> None:
        self.pid = os.getpid()
        self.nonce = secrets.token_bytes(NONCE_SIZE)
        self.rails = rails
        self.listener = Listener(rails, self.nonce, max_connections)
        self._turn = itertools.count()
        self._registrations: set[RcRegistration] = set()
        self._lock = threading.Lock()
        self._closed = False

    def register(self, memory: Memory) -> RcRegistration:
        """On every rail that can; one that cannot rests. Raises TransportUnavailable when none can."""
        regions = {}
        reasons = []
        for rail in self.rails:
            if rail.removed:
                reasons.append(f"{rail}: the device was removed")
                continue
            try:
                regions[rail] = rail.register(memory)
            except TransportUnavailable as error:
                reasons.append(str(error))
        if not regions:
            raise TransportUnavailable("; ".join(reasons))
        if reasons:
            log.warning("RDMA: memory is registered with some devices only: %s", "; ".join(reasons))
        registration = RcRegistration(self, memory, regions)
        with self._lock:
            closed = self._closed
            self._registrations.add(registration)
        if closed:
            registration.revoke()
            raise TransportUnavailable("the RDMA transport is closed")
        return registration

    def forget(self, registration: RcRegistration) -> None:
        with self._lock:
            self._registrations.discard(registration)

    def next_rail(self, among: Iterable[ClientRail]) -> ClientRail:
        """They take turns; those that are not fit are left out while others are. Raises TransportUnavailable."""
        there = [rail for rail in among if not rail.removed]
        if not there:
            raise TransportUnavailable("the memory is revoked, or its RDMA devices were removed")
        if len(there) == 1:
            return there[0]
        choice = [rail for rail in there if rail.is_fit()] or there
        return choice[next(self._turn) % len(choice)]

    def rest(self, token: Token) -> None:
        for rail in self.rails:
            if rail.rail.gid == token.gid:
                rail.rest()

    def close(self) -> None:
        """Queue pairs, then memory regions, then devices. Once; in another process than its own it does nothing."""
        if self.pid != os.getpid():
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            registrations = list(self._registrations)
        self.listener.close()
        for registration in registrations:
            registration.revoke()
        for rail in self.rails:
            rail.close()


def _open(devices: Sequence[str], max_connections: int) -> _Process:
    try:
        verdicts = explain(read_inventory(), devices)
    except ValueError as error:
        raise TransportUnavailable(str(error)) from error
    wanted = [f"{verdict.device}: {verdict.text}" for verdict in verdicts if verdict.wanted and verdict.rail is None]
    if wanted:
        raise TransportUnavailable("; ".join(wanted))
    chosen = [verdict.rail for verdict in verdicts if verdict.rail is not None]
    if not chosen:
        reasons = "; ".join(f"{verdict.device}: {verdict.text}" for verdict in verdicts)
        raise TransportUnavailable(f"no active RoCE device: {reasons or 'this machine has no RDMA device'}")
    rails: list[ClientRail] = []
    try:
        rails.extend(ClientRail(rail) for rail in chosen)
        return _Process(rails, max_connections)
    except (VerbsError, VerbsUnavailable) as error:
        for rail in rails:
            rail.close()
        raise TransportUnavailable(str(error)) from error


def _keep_for_ever(value: object) -> None:
    """One reference more than there are: destructors in a child would free what is the parent's in the kernel."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


_transports: "weakref.WeakSet[RcTransport]" = weakref.WeakSet()


def _after_fork() -> None:
    for transport in list(_transports):
        transport._after_fork()


os.register_at_fork(after_in_child=_after_fork)
