"""Messages between a same-host client and the gateway's parent process. Pure. Source: docs/samehost-protocol.md.

Each is one packet of a UNIX SOCK_SEQPACKET socket: a header of 12 bytes and a body that its type fixes, little-endian.

    client                          server
    HELLO                      ->
                               <-   CHALLENGE  nonce
    PROOF      nonce           ->
                               <-   SESSION    session id, most regions    (with a descriptor, see the document)
    REGISTER   address, length ->
                               <-   REGISTERED handle
    UNREGISTER handle          ->
                               <-   UNREGISTERED handle
                               <-   REFUSED    code, text                  (instead of any answer)
                               <-   ENDED                                  (the last message)
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

MAGIC = b"S3SH"
VERSION = 1
MAX_TEXT = 500
"""Bytes of UTF-8 that a refusal explains itself with."""

ID_BYTES = 16
ADDRESSES = 1 << 64

_HEADER = struct.Struct("<4sBBHI")
_HANDLE = struct.Struct("<Q")
_RANGE = struct.Struct("<QQ")
_SESSION = struct.Struct("<16sI")
_CODE = struct.Struct("<H")

MAX_MESSAGE = _HEADER.size + _CODE.size + MAX_TEXT


class Kind(IntEnum):
    """The type byte."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    SESSION = 4
    REGISTER = 5
    REGISTERED = 6
    UNREGISTER = 7
    UNREGISTERED = 8
    REFUSED = 9
    ENDED = 10


class Refusal(IntEnum):
    """Why the server does not do it. After the first four the connection stays open."""

    NOT_PERMITTED = 1
    """The kernel does not let the server reach this process."""
    BAD_RANGE = 2
    """Empty, or not within the addresses that a process can have."""
    FULL = 3
    """No room for another region."""
    NO_SUCH_REGION = 4
    IDENTITY = 5
    """The speaker is not the process that opened the connection, or cannot be seen from the server."""
    MALFORMED = 6
    BUSY = 7
    """No room for another session."""
    UNAVAILABLE = 8
    """This server cannot do it for anybody."""


LASTING = frozenset({Refusal.NOT_PERMITTED, Refusal.BAD_RANGE, Refusal.FULL, Refusal.NO_SUCH_REGION})
"""Refusals that leave the session as it was."""


class MalformedMessage(Exception):
    """The packet is none of the protocol; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Hello:
    serial: int


@dataclass(frozen=True, slots=True)
class Challenge:
    serial: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Proof:
    serial: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Session:
    """`regions`: how many the client may register at a time."""

    serial: int
    id: bytes
    regions: int


@dataclass(frozen=True, slots=True)
class Register:
    """Any range of two 64-bit numbers; whether it makes sense is the server's to decide."""

    serial: int
    address: int
    length: int


@dataclass(frozen=True, slots=True)
class Registered:
    serial: int
    handle: int


@dataclass(frozen=True, slots=True)
class Unregister:
    serial: int
    handle: int


@dataclass(frozen=True, slots=True)
class Unregistered:
    """Nothing touches the region any more."""

    serial: int
    handle: int


@dataclass(frozen=True, slots=True)
class Refused:
    serial: int
    code: Refusal
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing touches any region of the session any more; the server closes after it."""

    serial: int


Message = (
    Hello | Challenge | Proof | Session | Register | Registered | Unregister | Unregistered | Refused | Ended
)  # fmt: skip

_EMPTY: dict[Kind, type[Hello] | type[Ended]] = {Kind.HELLO: Hello, Kind.ENDED: Ended}
_NONCES: dict[Kind, type[Challenge] | type[Proof]] = {Kind.CHALLENGE: Challenge, Kind.PROOF: Proof}
_HANDLES: dict[Kind, type[Registered] | type[Unregister] | type[Unregistered]] = {
    Kind.REGISTERED: Registered,
    Kind.UNREGISTER: Unregister,
    Kind.UNREGISTERED: Unregistered,
}
_KINDS: dict[type, Kind] = {
    **{made: kind for kind, made in (*_EMPTY.items(), *_NONCES.items(), *_HANDLES.items())},
    Session: Kind.SESSION,
    Register: Kind.REGISTER,
    Refused: Kind.REFUSED,
}


def encode(message: Message) -> bytes:
    """One packet. A text that is too long is cut. Raises ValueError when a field does not fit."""
    body = b""
    try:
        match message:
            case Challenge(nonce=nonce) | Proof(nonce=nonce):
                body = _fixed(nonce)
            case Session(id=id, regions=regions):
                body = _SESSION.pack(_fixed(id), regions)
            case Register(address=address, length=length):
                body = _RANGE.pack(address, length)
            case Registered(handle=handle) | Unregister(handle=handle) | Unregistered(handle=handle):
                body = _HANDLE.pack(handle)
            case Refused(code=code, text=text):
                cut = text.encode()[:MAX_TEXT].decode(errors="ignore")
                body = _CODE.pack(code) + cut.encode()
        return _HEADER.pack(MAGIC, VERSION, _KINDS[type(message)], 0, message.serial) + body
    except struct.error as error:
        raise ValueError(f"{message!r}: {error}") from None


def decode(packet: bytes) -> Message:
    """Raises MalformedMessage: another magic, version, type or length, reserved bits set, no UTF-8."""
    if len(packet) < _HEADER.size:
        raise MalformedMessage("shorter than a header")
    magic, version, number, reserved, serial = _HEADER.unpack_from(packet)
    if magic != MAGIC:
        raise MalformedMessage("no message of this protocol")
    if version != VERSION:
        raise MalformedMessage(f"version {version}; this side speaks {VERSION}")
    try:
        kind = Kind(number)
    except ValueError:
        raise MalformedMessage(f"unknown type {number}") from None
    if reserved:
        raise MalformedMessage("reserved bits are set")
    body = packet[_HEADER.size :]
    try:
        if kind in _EMPTY:
            if body:
                raise MalformedMessage("too long")
            return _EMPTY[kind](serial)
        if kind in _NONCES:
            return _NONCES[kind](serial, _fixed(body))
        if kind in _HANDLES:
            return _HANDLES[kind](serial, *_HANDLE.unpack(body))
        if kind is Kind.SESSION:
            return Session(serial, *_SESSION.unpack(body))
        if kind is Kind.REGISTER:
            return Register(serial, *_RANGE.unpack(body))
        return _refused(serial, body)
    except (struct.error, ValueError) as error:
        raise MalformedMessage(f"{kind.name}: {error}") from None


def _refused(serial: int, body: bytes) -> Refused:
    (number,) = _CODE.unpack_from(body)
    text = body[_CODE.size :]
    if len(text) > MAX_TEXT:
        raise ValueError("the text is too long")
    return Refused(serial, Refusal(number), text.decode())


def _fixed(value: bytes) -> bytes:
    if len(value) != ID_BYTES:
        raise ValueError(f"{len(value)} bytes instead of {ID_BYTES}")
    return value
