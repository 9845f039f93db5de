"""ETags: hex MD5 for a plain PUT, `md5-N` over the parts for a completed upload.

Where no MD5 was computed (relaxed buckets) a plain PUT's ETag is its CRC64NVME and its length, 16 hex digits each, and
`-1`: the suffix tells clients that it is no MD5, as it does for uploads in parts. See
docs/decisions/etag-of-relaxed-buckets.md.
"""

import hashlib
from collections.abc import Sequence

from s3verbs.storage.model import Part


def single(md5: bytes | None, crc64nvme: bytes, length: int) -> str:
    """The ETag of a payload of `length` bytes from its raw digests; without quotes."""
    return md5.hex() if md5 is not None else f"{crc64nvme.hex()}{length:016x}-1"


def multipart(parts: Sequence[Part]) -> str:
    """MD5 of the raw digests in the parts' ETags, in order, in hex, and the number of parts; without quotes."""
    joined = b"".join(bytes.fromhex(part.etag[:32]) for part in parts)
    return f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(parts)}"
