"""Collects what `rdma/doctor.py` reports: devices, kernel, verbs library, the same-host socket, the endpoint."""

import os
import socket
import ssl
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from s3verbs.rdma.machine import Machine, read_machine
from s3verbs.rdma.samehost.location import Candidate, candidates, is_this_machine, is_trusted
from s3verbs.rdma.verbs import api
from s3verbs.rdma.verbs.device import Address, Inventory, Rail, Verdict, explain
from s3verbs.rdma.verbs.errors import VerbsUnavailable
from s3verbs.rdma.verbs.sysfs import read_inventory

_CREDENTIALS = struct.Struct("3i")
"""struct ucred: pid, uid, gid."""

PATIENCE = 3.0
"""Seconds that an endpoint may take for a step."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of an S3 endpoint as a client here sees it. `problem` is "" when it answers. `local`: the
    address is one of this machine."""

    url: str
    host: str
    port: int
    address: Address | None
    local: bool
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SocketPlace:
    """A place where the same-host socket may be. `problem` is why a client here cannot use it, "" when a server that it
    believes answers there. `there`: something is at that path."""

    path: Path
    there: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """`verbs` says what pyverbs is, or is "" and `verbs_problem` says what is missing. `seen` are the devices that the
    verbs library lists; `closed` those whose device file this user cannot open, with its name. `sockets` are
    the places of a server's same-host socket."""

    machine: Machine
    inventory: Inventory
    verdicts: tuple[Verdict, ...]
    verbs: str = ""
    verbs_problem: str = ""
    seen: frozenset[str] = frozenset()
    closed: Mapping[str, str] = field(default_factory=dict)
    sockets: tuple[SocketPlace, ...] = ()
    uid: int = 0

    @property
    def rails(self) -> tuple[Rail, ...]:
        return tuple(verdict.rail for verdict in self.verdicts if verdict.rail is not None)

    @property
    def same_host_socket(self) -> Path | None:
        """Where a server answers."""
        return next((place.path for place in self.sockets if place.there and not place.problem), None)


def survey(
    pins: Sequence[str] = (), *, root: Path = Path("/"), port: int = 9000, socket_path: str | None = None
) -> Survey:
    """Of this machine. `port` is the endpoint's; `socket_path` is where its socket is, None looks in the usual places.
    Raises ValueError for a pin that is none."""
    inventory = read_inventory(root / "sys")
    verdicts = tuple(explain(inventory, pins))
    verbs, problem, seen = "", "", frozenset[str]()
    try:
        verbs = api.version()
        seen = frozenset(api.device_names())
    except VerbsUnavailable as error:
        problem = str(error)
    closed = {
        device.name: device.uverbs
        for device in inventory.devices
        if not os.access(root / "dev/infiniband" / device.uverbs, os.R_OK | os.W_OK)
    }
    return Survey(
        machine=read_machine(root),
        inventory=inventory,
        verdicts=verdicts,
        verbs=verbs,
        verbs_problem=problem,
        seen=seen,
        closed=closed,
        sockets=tuple(try_socket(place) for place in candidates(port, socket_path)),
        uid=os.geteuid(),
    )


def try_socket(place: Candidate) -> SocketPlace:
    """Connect to the socket at a place and see whose it is."""
    if not place.path.exists():
        return SocketPlace(place.path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(PATIENCE)
        try:
            probe.connect(str(place.path))
            raw = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError as error:
            return SocketPlace(place.path, True, error.strerror or str(error))
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return SocketPlace(place.path, True, "" if is_trusted(place, uid) else f"uid {uid} is there, which is not trusted")


def find_endpoint(url: str) -> Endpoint:
    """Resolve the host of an http or https URL and send it one HEAD. Raises ValueError when it is no such URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no http://HOST:PORT")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return Endpoint(url, parts.hostname, port, None, False, f"{parts.hostname} has no address ({error.strerror})")
    problem, address = "", None
    for *_, name in found:
        address = ip_address(str(name[0]))
        problem = _ask(parts.scheme, parts.hostname, address, port)
        if not problem:
            break
    return Endpoint(url, parts.hostname, port, address, is_this_machine(parts.hostname), problem)


def _ask(scheme: str, host: str, address: Address, port: int) -> str:
    """What is wrong with the HTTP server at an address, or "". Any answer will do: this request is not signed."""
    try:
        with socket.create_connection((str(address), port), PATIENCE) as plain:
            encrypted = scheme == "https"
            stream = ssl.create_default_context().wrap_socket(plain, server_hostname=host) if encrypted else plain
            with stream:
                stream.sendall(f"HEAD / HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
                answer = stream.recv(5)
    except OSError as error:
        return f"{address} port {port}: {error.strerror or error}"
    return "" if answer == b"HTTP/" else f"{address} port {port}: accepts connections, but does not speak HTTP"
