"""RDMA devices as the choice of rails sees them, and that choice. Pure: `rdma/verbs/sysfs.py` reads a machine.

A rail is a device, a port and one GID of it: what a queue pair is bound to. One port gives one rail, unless pins name
several of its GIDs. GIDs are 16 raw bytes in order; RoCE v2 over IPv4 is ::ffff:a.b.c.d.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)

Address = IPv4Address | IPv6Address
Interface = IPv4Interface | IPv6Interface
Network = IPv4Network | IPv6Network

ROCE_V2 = "RoCE v2"
"""A GID's type, in the kernel's words. The others are `IB/RoCE v1` and, on InfiniBand, the same text."""

NO_GID = bytes(16)
_MAPPED = bytes(10) + b"\xff\xff"
_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*)(?::(\d{1,3})(?::(\d{1,5}))?)?")


@dataclass(frozen=True, slots=True)
class Netdev:
    """A network interface of this namespace. `kind` is the kernel's DEVTYPE: vlan, bond, ... or ""."""

    name: str
    mtu: int
    kind: str = ""
    addresses: tuple[Interface, ...] = ()


@dataclass(frozen=True, slots=True)
class GidEntry:
    """One GID of a port. `netdev` is "" when the kernel names none."""

    index: int
    gid: bytes
    type: str
    netdev: str = ""


@dataclass(frozen=True, slots=True)
class Port:
    """`state`, `link_layer` and `rate` are the kernel's words: ACTIVE, Ethernet, 100 Gb/sec (4X EDR). GIDs that are
    zero are left out. `mtu` is the path MTU in bytes that the netdev's MTU allows, 0 when unknown."""

    number: int
    state: str
    link_layer: str
    rate: str = ""
    mtu: int = 0
    gids: tuple[GidEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Device:
    """`driver` is rdma-core's name: mlx5, rxe, bnxt_re, irdma, siw, ... or "unknown". `node` is CA or RNIC (iWARP).
    `uverbs` is the character device under /dev/infiniband, or ""."""

    name: str
    driver: str
    ports: tuple[Port, ...]
    node: str = "CA"
    firmware: str = ""
    uverbs: str = ""

    @property
    def dc_capable(self) -> bool:
        """Whether its driver knows dynamic connections."""
        return self.driver == "mlx5"


@dataclass(frozen=True, slots=True)
class Inventory:
    """The RDMA devices of this machine and the network interfaces of this namespace."""

    devices: tuple[Device, ...] = ()
    netdevs: Mapping[str, Netdev] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rail:
    """A GID to speak from. `address` is its IP address, one of `netdev`'s; a link-local one has its scope.
    `networks` are the subnets of that interface, of both families, link-local ones left out unless it is one."""

    device: str
    port: int
    gid_index: int
    gid: bytes
    address: Address
    netdev: str
    networks: tuple[Network, ...]
    driver: str = ""

    def __str__(self) -> str:
        return f"{self.device}:{self.port}:{self.gid_index} ({self.address} on {self.netdev})"


@dataclass(frozen=True, slots=True)
class Pin:
    """`device[:port[:gid]]`: None stands for every active RoCE port, or for the rule's choice of a GID."""

    device: str
    port: int | None = None
    gid: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.device, self.port, self.gid) if part is not None)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a port, or all of a device (`port` is 0), is a rail or is not. `text` needs no more context than those two.
    `wanted`: a pin asked for it, so a missing rail is a mistake to report."""

    device: str
    port: int
    rail: Rail | None
    text: str
    wanted: bool = False


def address_of(gid: bytes) -> Address:
    """The IP address that a RoCE GID is. Raises ValueError when it is not 16 bytes."""
    if len(gid) != 16:
        raise ValueError("a GID has 16 bytes")
    return IPv4Address(gid[12:]) if gid.startswith(_MAPPED) else IPv6Address(gid)


def gid_of(address: Address) -> bytes:
    """The RoCE v2 GID of an IP address; a scope is dropped."""
    return _MAPPED + address.packed if isinstance(address, IPv4Address) else address.packed


def parse_pin(text: str) -> Pin:
    """Raises ValueError, whose text says what is allowed."""
    match = _PIN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no device, device:port or device:port:gid index, as in mlx5_0:1:3")
    pin = Pin(match[1], int(match[2]) if match[2] else None, int(match[3]) if match[3] else None)
    if pin.port == 0:
        raise ValueError(f"{text!r}: ports count from 1")
    return pin


def choose(inventory: Inventory, pins: Iterable[str | Pin] = ()) -> list[Rail]:
    """The rails to use, in the order of the pins, else of the devices' names. Raises ValueError for a malformed pin."""
    return [verdict.rail for verdict in explain(inventory, pins) if verdict.rail is not None]


def explain(inventory: Inventory, pins: Iterable[str | Pin] = ()) -> list[Verdict]:
    """Like `choose`, with the reason for every device and port. No two verdicts have the same rail."""
    wishes = [parse_pin(pin) if isinstance(pin, str) else pin for pin in pins]
    devices = sorted(inventory.devices, key=lambda device: _natural(device.name))
    if not wishes:
        return [verdict for device in devices for verdict in _device(device, Pin(device.name), inventory, False)]
    by_name = {device.name: device for device in devices}
    verdicts: list[Verdict] = []
    for wish in wishes:
        if (pinned := by_name.get(wish.device)) is None:
            known = ", ".join(by_name) or "none"
            verdicts.append(Verdict(wish.device, 0, None, f"pinned, but not here; devices: {known}", True))
            continue
        for verdict in _device(pinned, wish, inventory, True):
            if verdict.rail is None or all(verdict.rail != other.rail for other in verdicts):
                verdicts.append(verdict)
    named = {wish.device for wish in wishes}
    verdicts += [Verdict(name, 0, None, "not pinned") for name in by_name if name not in named]
    return verdicts


def _device(device: Device, pin: Pin, inventory: Inventory, wanted: bool) -> list[Verdict]:
    if device.node == "RNIC":
        return [Verdict(device.name, 0, None, "iWARP; RoCE is needed", wanted)]
    ports = [port for port in device.ports if pin.port in (None, port.number)]
    if not ports:
        text = "no ports" if pin.port is None else f"pinned, but it has no port {pin.port}"
        return [Verdict(device.name, pin.port or 0, None, text, wanted)]
    verdicts = []
    for port in ports:
        rail, text = _port(device, port, pin, inventory.netdevs)
        verdicts.append(Verdict(device.name, port.number, rail, text, wanted))
    if wanted and pin.port is None and any(verdict.rail for verdict in verdicts):
        # A device was asked for, and one of its ports serves; the others are no mistake.
        verdicts = [Verdict(v.device, v.port, v.rail, v.text, v.rail is not None) for v in verdicts]
    return verdicts


def _port(device: Device, port: Port, pin: Pin, netdevs: Mapping[str, Netdev]) -> tuple[Rail | None, str]:
    if port.link_layer != "Ethernet":
        return None, f"link layer {port.link_layer}; RoCE needs Ethernet"
    if port.state != "ACTIVE":
        return None, f"the port is {port.state}"
    if pin.gid is not None:
        entry = next((entry for entry in port.gids if entry.index == pin.gid), None)
        if entry is None:
            return None, f"pinned, but GID {pin.gid} is empty"
        if problem := _unusable(entry, netdevs):
            return None, f"pinned, but {problem}"
        return _rail(device, port, entry, netdevs), f"GID {_named(entry)}: pinned"
    usable: list[GidEntry] = []
    problems: list[str] = []
    for entry in port.gids:
        problem = _unusable(entry, netdevs) or _unwanted(entry)
        if problem:
            problems.append(problem)
        else:
            usable.append(entry)
    if not usable:
        return None, "no RoCE v2 GID with an address: " + ("; ".join(problems) or "the GID table is empty")
    usable.sort(key=lambda entry: _rank(entry, netdevs))
    best, *others = usable
    if not others:
        return _rail(device, port, best, netdevs), f"GID {_named(best)}: the only RoCE v2 address"
    rule = "IPv4 goes before IPv6, a plain interface before a VLAN, then the lower index"
    text = f"GID {_named(best)}: {rule}; by pinning also {', '.join(_named(entry) for entry in others)}"
    return _rail(device, port, best, netdevs), text


def _unusable(entry: GidEntry, netdevs: Mapping[str, Netdev]) -> str:
    """Why no queue pair can be bound to this GID, or ""."""
    address = address_of(entry.gid)
    if entry.type != ROCE_V2:
        return f"GID {entry.index} is {entry.type or 'of no known type'}"
    if not entry.netdev:
        return f"GID {entry.index} ({address}) has no network interface"
    netdev = netdevs.get(entry.netdev)
    if netdev is None:
        return f"GID {entry.index} ({address}) is of {entry.netdev}, which is not in this network namespace"
    if all(_bare(own.ip) != address for own in netdev.addresses):
        return f"GID {entry.index} ({address}) is not an address of {entry.netdev}"
    return ""


def _unwanted(entry: GidEntry) -> str:
    """Why this GID is only used when it is pinned, or ""."""
    address = address_of(entry.gid)
    if address.is_link_local:
        return f"GID {entry.index} ({address}) is link-local"
    if address.is_loopback:
        return f"GID {entry.index} ({address}) is loopback"
    return ""


def _rank(entry: GidEntry, netdevs: Mapping[str, Netdev]) -> tuple[bool, bool, int]:
    return (
        isinstance(address_of(entry.gid), IPv6Address),
        netdevs[entry.netdev].kind == "vlan",
        entry.index,
    )


def _named(entry: GidEntry) -> str:
    return f"{entry.index} ({address_of(entry.gid)} on {entry.netdev})"


def _rail(device: Device, port: Port, entry: GidEntry, netdevs: Mapping[str, Netdev]) -> Rail:
    address = address_of(entry.gid)
    netdev = netdevs[entry.netdev]
    networks = [own.network for own in netdev.addresses if own.ip.is_link_local == address.is_link_local]
    if isinstance(address, IPv6Address) and address.is_link_local:
        address = IPv6Address(f"{address}%{netdev.name}")
    unique = tuple(dict.fromkeys(networks))
    return Rail(device.name, port.number, entry.index, entry.gid, address, netdev.name, unique, device.driver)


def _bare(address: Address) -> Address:
    """Without a scope."""
    return IPv6Address(address.packed) if isinstance(address, IPv6Address) else address


def _natural(name: str) -> list[tuple[int, str]]:
    """mlx5_2 before mlx5_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def route(rails: Sequence[Rail], peer_gid: bytes) -> list[Rail]:
    """The rails from which a peer can be reached, best first: the peer's own GID (it is this machine), its subnet by
    longest prefix, then the peer's address family, by a router. Equally good ones keep their order. Rails of the
    other family are left out, and so are others than link-local ones when the peer is link-local."""
    peer = address_of(peer_gid)
    if peer.is_unspecified or peer.is_multicast:
        return []
    fitting = [
        rail
        for rail in rails
        if rail.address.version == peer.version and rail.address.is_link_local == peer.is_link_local
    ]
    return sorted(fitting, key=lambda rail: (rail.gid != peer_gid, -_prefix(rail, peer)))


def _prefix(rail: Rail, peer: Address) -> int:
    """The length of the longest subnet of the rail that has the peer; -1 without one."""
    return max((net.prefixlen for net in rail.networks if net.version == peer.version and peer in net), default=-1)


def peer_allowed(gid: bytes, allowed: Sequence[Network], rails: Sequence[Rail]) -> bool:
    """Whether the server may send to this GID: it lies in one of `allowed`, or, when that is empty, in a subnet of one
    of the rails. Unspecified and multicast addresses never."""
    peer = address_of(gid)
    if peer.is_unspecified or peer.is_multicast:
        return False
    networks = allowed or [network for rail in rails for network in rail.networks]
    return any(network.version == peer.version and peer in network for network in networks)
