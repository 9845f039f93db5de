"""S3's checksums over a region's bytes: CRC32 and the SHAs by the standard library, CRC32C and CRC64NVME by awscrt if
it is installed."""

import base64
import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from s3verbs.rdma.client.errors import ChecksumMismatch, ChecksumUnavailable

ALGORITHMS = ("crc32", "crc32c", "crc64nvme", "sha1", "sha256")

_PREFIX = "x-amz-checksum-"


def header(algorithm: str) -> str:
    return _PREFIX + algorithm


def digest(algorithm: str, chunks: Iterable[memoryview]) -> str:
    """The header's value. Raises ValueError for an unknown algorithm, ChecksumUnavailable."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"checksum is {algorithm!r}, it must be one of {', '.join(ALGORITHMS)}")
    if algorithm.startswith("sha"):
        hasher = hashlib.new(algorithm)
        for chunk in chunks:
            hasher.update(chunk)
        return base64.b64encode(hasher.digest()).decode()
    function: Callable[[Any, int], int] = zlib.crc32 if algorithm == "crc32" else _by_awscrt(algorithm)
    value = 0
    for chunk in chunks:
        value = function(chunk, value)
    return base64.b64encode(value.to_bytes(8 if algorithm == "crc64nvme" else 4, "big")).decode()


def verify(headers: Mapping[str, str], chunks: Iterable[memoryview]) -> str | None:
    """The algorithm that the bytes were compared by; None when the answer has no checksum of the whole object. Raises
    ChecksumMismatch, ChecksumUnavailable."""
    if headers.get("x-amz-checksum-type", "").upper() == "COMPOSITE":
        return None
    told = {name: headers[header(name)] for name in ALGORITHMS if header(name) in headers}
    for algorithm, value in told.items():
        if "-" in value:
            continue
        try:
            found = digest(algorithm, chunks)
        except ChecksumUnavailable:
            if len(told) > 1:
                continue
            raise
        if found != value:
            raise ChecksumMismatch(f"the object's {algorithm} is {value}, that of what came {found}")
        return algorithm
    return None


def _by_awscrt(algorithm: str) -> Callable[[Any, int], int]:
    try:
        from awscrt import checksums  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ChecksumUnavailable(f"{algorithm} needs awscrt: pip install awscrt") from error
    function: Callable[[Any, int], int] = checksums.crc32c if algorithm == "crc32c" else checksums.crc64nvme
    return function
