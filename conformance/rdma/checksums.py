"""The checksum headers of a PUT, computed here so that the tool needs no native library. For small payloads."""

import base64
import hashlib
import zlib
from collections.abc import Callable


def _reflected(polynomial: int, width: int) -> Callable[[bytes], bytes]:
    """A CRC with reflected input and output, all-ones start and final complement; big-endian bytes."""
    ones = (1 << width) - 1
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (polynomial if byte & 1 else 0)
        table.append(byte)

    def compute(data: bytes) -> bytes:
        crc = ones
        for byte in data:
            crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
        return (crc ^ ones).to_bytes(width // 8, "big")

    return compute


_DIGESTS: dict[str, Callable[[bytes], bytes]] = {
    "x-amz-checksum-crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "x-amz-checksum-crc32c": _reflected(0x82F63B78, 32),
    "x-amz-checksum-crc64nvme": _reflected(0x9A6C9329AC4BC9B5, 64),
    "x-amz-checksum-sha1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
    "x-amz-checksum-sha256": lambda data: hashlib.sha256(data).digest(),
    "Content-MD5": lambda data: hashlib.md5(data, usedforsecurity=False).digest(),
}

NAMES = tuple(_DIGESTS)
"""Headers that a PUT may carry."""


def checksum(name: str, data: bytes) -> str:
    """The header's value for `data`."""
    return base64.b64encode(_DIGESTS[name](data)).decode()
