"""Reads the RDMA devices of this machine: sysfs, and the C library's getifaddrs for addresses. No RDMA library.

Sources: the kernel's Documentation/ABI/stable/sysfs-class-infiniband, getifaddrs(3).
"""

import contextlib
import ctypes
import mmap
import os
import re
import socket
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Interface, IPv6Address, IPv6Interface
from pathlib import Path

from s3verbs.rdma.verbs.device import NO_GID, Device, GidEntry, Interface, Inventory, Netdev, Port

SYSFS = Path("/sys")

_DRIVERS = {
    "mlx5_core": "mlx5",
    "mlx4_core": "mlx4",
    "bnxt_en": "bnxt_re",
    "ice": "irdma",
    "i40e": "irdma",
    "idpf": "irdma",
    "hns3": "hns",
    "ib_qib": "qib",
}
"""The PCI driver -> rdma-core's provider, where the names differ."""

_ROCE_HEADERS = 40 + 8 + 12 + 4 + 28 + 4
"""What the kernel takes off a netdev's MTU: GRH, UDP, BTH, XRC, AtomicETH, ICRC (include/rdma/ib_addr.h)."""

_GID = re.compile(r"(?:[0-9a-f]{4}:){7}[0-9a-f]{4}")


def read_inventory(root: Path = SYSFS, addresses: Mapping[str, Sequence[Interface]] | None = None) -> Inventory:
    """What is under `root`, with `addresses` of the interfaces by name (None asks the kernel). A device or port that
    disappears while it is read is left out; nothing is raised."""
    known = interface_addresses() if addresses is None else addresses
    netdevs = {name: _netdev(path, known.get(name, ())) for name, path in _children(root / "class/net")}
    uverbs = {_text(path / "ibdev"): name for name, path in _children(root / "class/infiniband_verbs")}
    devices = tuple(
        _device(name, path, uverbs.get(name, ""), netdevs) for name, path in _children(root / "class/infiniband")
    )
    return Inventory(devices, netdevs)


def interface_addresses() -> dict[str, list[Interface]]:
    """Every IPv4 and IPv6 address of this network namespace with its prefix, by interface. Raises OSError."""
    head = ctypes.POINTER(_IfAddrs)()
    if _libc.getifaddrs(ctypes.byref(head)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, "getifaddrs")
    found: dict[str, list[Interface]] = {}
    try:
        entry = head
        while entry:
            item = entry.contents
            if item.address and item.netmask and (interface := _interface(item.address, item.netmask)) is not None:
                found.setdefault(item.name.decode(), []).append(interface)
            entry = item.next
    finally:
        _libc.freeifaddrs(head)
    return found


def _device(name: str, path: Path, uverbs: str, netdevs: Mapping[str, Netdev]) -> Device:
    node = _text(path / "node_type").partition(": ")[2] or "CA"
    numbers = sorted((int(number), port) for number, port in _children(path / "ports") if number.isdigit())
    ports = tuple(_port(number, port, netdevs) for number, port in numbers)
    return Device(name, _driver(path, node), ports, node, _text(path / "fw_ver"), uverbs)


def _driver(path: Path, node: str) -> str:
    if (path / "parent").exists():
        return "rxe"  # its own attribute: the netdev. Some kernels also link the netdev's hardware as `device`.
    link = path / "device/driver"
    if link.exists():
        name = link.resolve().name
        return _DRIVERS.get(name, name)
    if (path / "device").exists():
        return "unknown"
    return "siw" if node == "RNIC" else "unknown"  # the only other one without hardware


def _port(number: int, path: Path, netdevs: Mapping[str, Netdev]) -> Port:
    gids = []
    for index, text in sorted(_numbered(path / "gids").items()):
        gid = bytes.fromhex(text.replace(":", "")) if _GID.fullmatch(text) else NO_GID
        if gid != NO_GID:
            attributes = path / "gid_attrs"
            kind, netdev = _text(attributes / f"types/{index}"), _text(attributes / f"ndevs/{index}")
            gids.append(GidEntry(index, gid, kind, netdev))
    mtu = max((roce_mtu(netdevs[gid.netdev].mtu) for gid in gids if gid.netdev in netdevs), default=0)
    state = _text(path / "state").partition(": ")[2]
    return Port(number, state, _text(path / "link_layer"), _text(path / "rate"), mtu, tuple(gids))


def roce_mtu(mtu: int) -> int:
    """The path MTU of RoCE over an interface of this MTU, in bytes; 0 when not even 256 fit."""
    return max((size for size in (256, 512, 1024, 2048, 4096) if size <= mtu - _ROCE_HEADERS), default=0)


def _netdev(path: Path, addresses: Sequence[Interface]) -> Netdev:
    mtu = _text(path / "mtu")
    kind = re.search(r"^DEVTYPE=(.+)$", _text(path / "uevent"), re.MULTILINE)
    return Netdev(path.name, int(mtu) if mtu.isdigit() else 0, kind[1] if kind else "", tuple(addresses))


def _children(folder: Path) -> list[tuple[str, Path]]:
    try:
        return sorted((path.name, path) for path in folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    """The kernel answers EINVAL for the attributes of an empty GID; that is no text."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _numbered(folder: Path) -> dict[int, str]:
    """The texts of a folder of hundreds of files, without pathlib's cost for each: it is a second for a thousand GIDs
    on a slow machine."""
    found = {}
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return {}
    try:
        with os.scandir(at) as entries:
            for entry in entries:
                if entry.name.isdigit():
                    with contextlib.suppress(OSError):
                        found[int(entry.name)] = _text_at(entry.name, at)
    finally:
        os.close(at)
    return found


def _text_at(name: str, folder: int) -> str:
    descriptor = os.open(name, os.O_RDONLY, dir_fd=folder)
    try:
        return os.read(descriptor, mmap.PAGESIZE).decode(errors="replace").strip()
    finally:
        os.close(descriptor)


class _SockAddr(ctypes.Structure):
    _fields_ = (("family", ctypes.c_uint16), ("data", ctypes.c_uint8 * 26))


class _IfAddrs(ctypes.Structure):
    """The fields that are read; the C structure goes on."""


_IfAddrs._fields_ = (
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_SockAddr)),
    ("netmask", ctypes.POINTER(_SockAddr)),
)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.getifaddrs.argtypes = (ctypes.POINTER(ctypes.POINTER(_IfAddrs)),)
_libc.getifaddrs.restype = ctypes.c_int
_libc.freeifaddrs.argtypes = (ctypes.POINTER(_IfAddrs),)
_libc.freeifaddrs.restype = None


def _interface(address: "ctypes._Pointer[_SockAddr]", netmask: "ctypes._Pointer[_SockAddr]") -> Interface | None:
    # Only the bytes of the family are touched: a sockaddr_in is shorter than `_SockAddr`.
    family = address.contents.family
    if family == socket.AF_INET:
        raw, mask = (bytes(pointer.contents.data[2:6]) for pointer in (address, netmask))
        return IPv4Interface((raw, mask_bits(mask)))
    if family == socket.AF_INET6:
        raw, mask = (bytes(pointer.contents.data[6:22]) for pointer in (address, netmask))
        return IPv6Interface((IPv6Address(raw), mask_bits(mask)))
    return None


def mask_bits(mask: bytes) -> int:
    """The prefix length of a netmask."""
    return int.from_bytes(mask).bit_count()
