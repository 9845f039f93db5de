"""The format of a payload file: pure functions over bytes.

    offset                 bytes
    0                      the payload, `length` bytes
    length                 zeros up to the next multiple of 4,096
    footer_offset(length)  CRC32C of each 1 MiB block, 4 bytes each, then zeros
    file size - 64         the trailer

The footer (block table and trailer) is a multiple of 4,096 bytes long, so all of the file can be written with O_DIRECT.
The trailer is the last 64 bytes, so that a file can be checked from its size alone. Integers are little-endian.

    trailer offset  bytes
    0               16     payload id
    16              8      length
    24              8      CRC64NVME of the payload
    32              4      number of blocks
    36              4      bytes in a block, 1,048,576
    40              8      zeros
    48              2      format version, 1
    50              2      zeros
    52              4      CRC32C of the footer up to here
    56              8      magic, "S3VPAYLD"

The last block may be shorter; its CRC covers the bytes that exist. An empty payload has no block.
"""

import struct
from dataclasses import dataclass

from awscrt.checksums import crc32c  # type: ignore[import-untyped, unused-ignore]

from s3verbs.storage.errors import PayloadDamaged
from s3verbs.storage.model import BLOCK_SIZE

ALIGNMENT = 4096
TRAILER_SIZE = 64
ID_SIZE = 16
MAX_LENGTH = 1 << 43
"""8 TiB: more than S3's largest object."""

_MAGIC = b"S3VPAYLD"
_VERSION = 1
_TRAILER = struct.Struct("<16sQQII8sHH")
_SEAL = struct.Struct("<I8s")
_ZEROS = bytes(8)


@dataclass(frozen=True, slots=True)
class Footer:
    """What a payload file says about itself. `blocks` has the CRC32C of every block, in order."""

    id: bytes
    length: int
    crc64nvme: int
    blocks: tuple[int, ...]


def block_count(length: int) -> int:
    return -(-length // BLOCK_SIZE)


def footer_offset(length: int) -> int:
    """Where the footer of a payload of `length` bytes begins."""
    return -(-length // ALIGNMENT) * ALIGNMENT


def footer_size(length: int) -> int:
    """Bytes of the footer of a payload of `length` bytes, a multiple of 4,096."""
    return -(-(4 * block_count(length) + TRAILER_SIZE) // ALIGNMENT) * ALIGNMENT


def file_size(length: int) -> int:
    """Bytes of the whole file."""
    return footer_offset(length) + footer_size(length)


def encode(footer: Footer) -> bytes:
    """The footer as it is on disk. Raises ValueError when its fields do not agree with each other."""
    if len(footer.id) != ID_SIZE:
        raise ValueError(f"a payload id has {ID_SIZE} bytes, not {len(footer.id)}")
    if not 0 <= footer.length <= MAX_LENGTH:
        raise ValueError(f"payload length {footer.length} is not in 0..{MAX_LENGTH}")
    if len(footer.blocks) != block_count(footer.length):
        raise ValueError(f"{len(footer.blocks)} block checksums for a payload of {footer.length} bytes")
    size = footer_size(footer.length)
    table = struct.pack(f"<{len(footer.blocks)}I", *footer.blocks)
    trailer = _TRAILER.pack(
        footer.id, footer.length, footer.crc64nvme, len(footer.blocks), BLOCK_SIZE, _ZEROS, _VERSION, 0
    )
    covered = table + bytes(size - TRAILER_SIZE - len(table)) + trailer
    return covered + _SEAL.pack(crc32c(covered), _MAGIC)


def payload_length(trailer: bytes, size: int) -> int:
    """The payload length that the last 64 bytes of a file of `size` bytes claim.

    The claim is checked against the file's size but not yet against the footer's checksum; it says where the footer
    begins. Raises PayloadDamaged.
    """
    if len(trailer) != TRAILER_SIZE or size < ALIGNMENT or size % ALIGNMENT:
        raise PayloadDamaged(f"{size} bytes are not a payload file")
    _, length, _, count, block_size, _, version, _ = _TRAILER.unpack_from(trailer)
    if trailer[-len(_MAGIC) :] != _MAGIC:
        raise PayloadDamaged("the file does not end in the trailer of a payload file")
    if version != _VERSION:
        raise PayloadDamaged(f"the payload file has format version {version}, known is {_VERSION}")
    if block_size != BLOCK_SIZE or length > MAX_LENGTH or count != block_count(length) or file_size(length) != size:
        raise PayloadDamaged(f"the trailer claims {length} bytes in {count} blocks, the file has {size} bytes")
    return int(length)


def decode(footer: bytes, size: int) -> Footer:
    """The footer of a file of `size` bytes from its last `footer_size` bytes. Raises PayloadDamaged."""
    trailer = bytes(footer[-TRAILER_SIZE:])
    length = payload_length(trailer, size)
    if len(footer) != footer_size(length):
        raise PayloadDamaged(f"a footer of {len(footer)} bytes where {footer_size(length)} belong")
    stored, _ = _SEAL.unpack_from(trailer, TRAILER_SIZE - _SEAL.size)
    if crc32c(footer[: -_SEAL.size]) != stored:
        raise PayloadDamaged("the footer does not match its own checksum")
    payload_id, _, crc64nvme, count, _, _, _, _ = _TRAILER.unpack_from(trailer)
    return Footer(payload_id, length, crc64nvme, struct.unpack_from(f"<{count}I", footer))


def file_name(payload_id: bytes) -> str:
    """The name of a payload's file: its id in lower-case hex."""
    return payload_id.hex()


def fan_out(payload_id: bytes) -> str:
    """The subdirectory of a payload: the last byte of its id, in hex. Ids begin with the time, so only their end
    spreads."""
    return f"{payload_id[-1]:02x}"


def parse_name(name: str) -> bytes | None:
    """The payload id that a file name stands for, or None for any other name."""
    if len(name) != 2 * ID_SIZE:
        return None
    try:
        payload_id = bytes.fromhex(name)
    except ValueError:
        return None
    return payload_id if payload_id.hex() == name else None
