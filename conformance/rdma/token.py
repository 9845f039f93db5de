"""The token of section 2, written from the contract alone: well-formed ones, and every way to be malformed.

00007f1dc46fd010:00100000:0000abcd:0000:001234:1:00000000000000000000ffff7f000001
address          size     rkey     lid  qp     |  GID
                                               has GID
followed by nothing, :rc1:<nonce>, :cma1:<session>, or :<address, 16>:<size, 16>
"""

import ipaddress
import secrets
from dataclasses import dataclass, replace

NOBODY = "192.0.2.1"
"""TEST-NET-1 (RFC 5737): no host has it, so no server has a route or a permission to reach it."""


def gid_of(address: str) -> bytes:
    """The RoCE v2 GID of an IP address."""
    ip = ipaddress.ip_address(address)
    return b"\0" * 10 + b"\xff\xff" + ip.packed if ip.version == 4 else ip.packed


@dataclass(frozen=True)
class Token:
    """Fields as in the contract; `suffix` is what follows the 81 characters, with its colon."""

    address: int
    size: int
    rkey: int = 0
    lid: int = 0
    qp: int = 0
    gid: bytes | None = None
    suffix: str = ""

    def __str__(self) -> str:
        has_gid, gid = (1, self.gid) if self.gid is not None else (0, bytes(16))
        return (
            f"{self.address:016x}:{self.size:08x}:{self.rkey:08x}:{self.lid:04x}:{self.qp:06x}:{has_gid}:{gid.hex()}"
            f"{self.suffix}"
        )


_DC = Token(0x7F1D_C46F_D000, 0x1000, rkey=0xABCD, qp=0x1234, gid=gid_of(NOBODY))


def unroutable() -> dict[str, str]:
    """Well-formed tokens that no server can move a byte for, by the extension that they need ("": none)."""
    return {
        "": str(_DC),
        "rc1": str(replace(_DC, qp=4791, suffix=f":rc1:{secrets.token_hex(16)}")),
        "cma1": str(Token(_DC.address, _DC.size, suffix=f":cma1:{secrets.token_hex(16)}")),
    }


def accepted_forms() -> dict[str, str]:
    """Other spellings that a server takes, and declines as it declines `unroutable()[""]`."""
    text = str(_DC)
    return {
        "upper-case hex": text.upper(),
        "MinIO's :address:size": f"{text}:{_DC.address + 0x1000:016x}:{0x2000:016x}",
        "MinIO's :address:size beyond 4 GiB": f"{text}:{_DC.address:016x}:{5 << 30:016x}",
    }


def malformed() -> dict[str, str]:
    """Everything that is no token: refused with 400 InvalidArgument."""
    good, nonce = str(_DC), "5a" * 16
    fields = good.split(":")
    widths = ("address", "size", "rkey", "lid", "qp", "has GID", "GID")
    bad = {
        "empty": "",
        "one word": "token",
        "one character short": good[:-1],
        "one character long": good + "0",
        "a field missing": ":".join(fields[:6]),
        "a field too many": good + ":0",
        "a colon at the end": good + ":",
        "two tokens in one header": f"{good},{good}",
        "hyphens for colons": good.replace(":", "-"),
        "colons moved by one": f"{fields[0]}0:{fields[1][:-1]}:" + ":".join(fields[2:]),
        "a space inside": f"{fields[0][:8]} {fields[0][9:]}:" + ":".join(fields[1:]),
        "0x before the address": ":".join(["0x" + fields[0][2:], *fields[1:]]),
        "a sign before the size": ":".join([fields[0], "+" + fields[1][1:], *fields[2:]]),
        "an underscore in the size": ":".join([fields[0], fields[1][:4] + "_" + fields[1][5:], *fields[2:]]),
        "has GID is 2": ":".join([*fields[:5], "2", fields[6]]),
        "size 0": str(replace(_DC, size=0)),
        "ends past 2^64": str(replace(_DC, address=(1 << 64) - 0x800)),
        "MinIO's suffix with size 0": f"{good}:{_DC.address:016x}:{0:016x}",
        "MinIO's suffix ends past 2^64": f"{good}:{(1 << 64) - 1:016x}:{2:016x}",
        "MinIO's suffix with a short size": f"{good}:{_DC.address:016x}:00001000",
        "MinIO's suffix without a size": f"{good}:{_DC.address:016x}",
        "an unknown suffix": f"{good}:rc9:{nonce}",
        "rc1 without a nonce": f"{good}:rc1",
        "rc1 with an empty nonce": f"{good}:rc1:",
        "rc1 with a short nonce": f"{good}:rc1:{nonce[:-2]}",
        "rc1 with a long nonce": f"{good}:rc1:{nonce}00",
        "rc1 with a nonce that is not hex": f"{good}:rc1:{'z' * 32}",
        "rc1 twice": f"{good}:rc1:{nonce}:rc1:{nonce}",
        "rc1 without a GID": str(replace(_DC, gid=None, suffix=f":rc1:{nonce}")),
        "rc1 with port 0": str(replace(_DC, qp=0, suffix=f":rc1:{nonce}")),
        "rc1 with a port past 65535": str(replace(_DC, qp=0x10000, suffix=f":rc1:{nonce}")),
    }
    for number, name in enumerate(widths):
        letter = fields[number][:-1] + "g"
        bad[f"{name} is not hex"] = ":".join([*fields[:number], letter, *fields[number + 1 :]])
        wide = "0" + fields[number]
        bad[f"{name} too wide"] = ":".join([*fields[:number], wide, *fields[number + 1 :]])
    same_host = Token(_DC.address, _DC.size)
    for name, token in {
        "an rkey": replace(same_host, rkey=1),
        "a lid": replace(same_host, lid=1),
        "a qp": replace(same_host, qp=1),
        "a GID": replace(same_host, gid=gid_of(NOBODY)),
        "has GID 1 and no GID": replace(same_host, gid=bytes(16)),
    }.items():
        bad[f"cma1 with {name}"] = f"{token}:cma1:{nonce}"
    bad["cma1 with a short session"] = f"{same_host}:cma1:{nonce[:-1]}"
    bad["cma1 with a session that is not hex"] = f"{same_host}:cma1:{'x' * 32}"
    return bad
