"""The buffer token: what a client tells about the memory that a payload comes from or goes to. Pure.

Source: NVIDIA's cuObject documentation, MinIO's and NooBaa's descriptions of the same protocol; docs/wire-format.md.

    00007f1dc46fd010:00100000:0000abcd:0000:001234:1:00000000000000000000ffff7f000001
    address          size     rkey     lid  qp     |  GID
                                                   has GID
    ...:rc1:<nonce, 32 hex>      queue pair by rdma_cm; `qp` is the port that the client listens on
    ...:cma1:<session, 32 hex>   memory of a process on the same host; rkey to GID are zero
    ...:<address, 16>:<size, 16> older MinIO SDKs; these override the first two fields
"""

import re
from dataclasses import dataclass
from enum import Enum

from s3verbs.rdma.errors import MalformedToken

BASE_LENGTH = 81
"""Characters of a token without a suffix."""

HEAD_LENGTH = 25
"""Characters of a token's address and size. The tokens of one session or listener are the same after them."""

MAX_SIZE = 0xFFFFFFFF
"""Bytes that the size field can tell."""

_NO_GID = bytes(16)
_HEX = "[0-9a-fA-F]"
_TOKEN = re.compile(
    rf"({_HEX}{{16}}):({_HEX}{{8}}):({_HEX}{{8}}):({_HEX}{{4}}):({_HEX}{{6}}):([01]):({_HEX}{{32}})"
    rf"(?::(rc1|cma1):({_HEX}{{32}})|:({_HEX}{{16}}):({_HEX}{{16}}))?"
)


class Transport(Enum):
    """How the bytes of a token move; the values are labels of metrics and words of the access log."""

    DC = "dc"
    RC = "rc"
    SAMEHOST = "samehost"


_SUFFIX = {"rc1": Transport.RC, "cma1": Transport.SAMEHOST}
_NAME = {transport: suffix for suffix, transport in _SUFFIX.items()}


@dataclass(frozen=True, slots=True)
class Token:
    """`size` bytes may be moved from `address` on. `gid` is None when the token says that it has none.

    `qp` is a DC target number, or the rdma_cm port for RC. `secret` is the nonce (RC) or the session id (same host),
    16 bytes, and empty for DC. It must not get into a log: `repr` leaves it out.
    """

    address: int
    size: int
    rkey: int = 0
    lid: int = 0
    qp: int = 0
    gid: bytes | None = None
    transport: Transport = Transport.DC
    secret: bytes = b""

    def __repr__(self) -> str:
        return f"Token({self.transport.value}, address={self.address:#x}, size={self.size}, rkey={self.rkey:#x})"

    def __str__(self) -> str:
        """The wire form. Raises ValueError when a field does not fit into its width."""
        fields = (f"{self.address:016x}", f"{self.size:08x}", f"{self.rkey:08x}", f"{self.lid:04x}", f"{self.qp:06x}")
        gid = self.gid if self.gid is not None else _NO_GID
        text = ":".join((*fields, "01"[self.gid is not None], gid.hex()))
        if self.transport is not Transport.DC:
            text += f":{_NAME[self.transport]}:{self.secret.hex()}"
        if _TOKEN.fullmatch(text) is None:
            raise ValueError(f"a field of {self!r} does not fit into a token")
        return text


def parse(text: str) -> Token:
    """Raises MalformedToken: another length, width or alphabet, size 0, address + size past 2^64, no GID or port where
    the transport needs one."""
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise MalformedToken("The RDMA token is malformed.")
    address, size = int(match[1], 16), int(match[2], 16)
    if match[10] is not None:
        address, size = int(match[10], 16), int(match[11], 16)
    if size == 0:
        raise MalformedToken("The size in the RDMA token is 0.")
    if address + size > 1 << 64:
        raise MalformedToken("The buffer in the RDMA token ends past the last address.")
    transport = _SUFFIX[match[8]] if match[8] is not None else Transport.DC
    secret = bytes.fromhex(match[9]) if match[9] is not None else b""
    gid = bytes.fromhex(match[7]) if match[6] == "1" else None
    token = Token(address, size, int(match[3], 16), int(match[4], 16), int(match[5], 16), gid, transport, secret)
    if transport is Transport.RC and (gid is None or not 0 < token.qp <= 0xFFFF):
        raise MalformedToken("The RDMA token names no address to connect to.")
    if transport is Transport.SAMEHOST and (
        token.rkey or token.lid or token.qp or match[6] != "0" or int(match[7], 16)
    ):
        raise MalformedToken("Fields 3 to 7 of a same-host RDMA token must be zero.")
    return token
