"""ETags: hex MD5 for a plain PUT, `md5-N` over the parts' MD5s for a completed upload."""

import hashlib
from collections.abc import Sequence

from s3verbs.storage.model import Part


def multipart(parts: Sequence[Part]) -> str:
    """MD5 of the parts' raw MD5s, in order, in hex, and the number of parts; without quotes."""
    joined = b"".join(bytes.fromhex(part.etag) for part in parts)
    return f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(parts)}"
