"""AWS Signature Version 4 as Amazon S3 uses it: canonical request, string to sign, keys. Pure functions.

Sources: Amazon S3 API Reference, "Authenticating requests (AWS Signature Version 4)" and the chapters on the
Authorization header, query parameters, chunked upload and trailing headers.

S3 differs from other services: the path is encoded once, never normalised, and the payload hash is the
x-amz-content-sha256 value as sent. A path or query is decoded and encoded again, because clients send characters
raw that they sign encoded.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from functools import lru_cache
from urllib.parse import quote

ALGORITHM = "AWS4-HMAC-SHA256"
CHUNK_ALGORITHM = "AWS4-HMAC-SHA256-PAYLOAD"
TRAILER_ALGORITHM = "AWS4-HMAC-SHA256-TRAILER"
SERVICE = "s3"
TERMINATOR = "aws4_request"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


@lru_cache(maxsize=256)
def signing_key(secret: str, date: str, region: str, service: str = SERVICE) -> bytes:
    """The key of 32 bytes that signs everything of a secret, day (yyyymmdd) and region."""
    key = hmac.digest(b"AWS4" + secret.encode(), date.encode(), "sha256")
    key = hmac.digest(key, region.encode(), "sha256")
    key = hmac.digest(key, service.encode(), "sha256")
    return hmac.digest(key, TERMINATOR.encode(), "sha256")


def canonical_query(pairs: Sequence[tuple[str, str]], *, without: str = "") -> str:
    """Decoded pairs, encoded and sorted by name, then value; the parameter `without` is left out."""
    if not pairs:
        return ""
    encoded = [(quote(name, ""), quote(value, "")) for name, value in pairs if name != without]
    encoded.sort()
    return "&".join([f"{name}={value}" for name, value in encoded])


def canonical_request(
    method: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    signed_headers: Sequence[str],
    payload_hash: str,
) -> bytes:
    """The canonical request. `path` and `query` are canonical, `headers` has lower-case names, `signed_headers` is
    sorted. A signed header that is absent counts as empty."""
    lines = [method, path, query]
    for name in signed_headers:
        value = headers.get(name, "")
        if "  " in value or "\t" in value:
            value = " ".join(value.split())
        lines.append(f"{name}:{value}")
    lines += ("", ";".join(signed_headers), payload_hash)
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def string_to_sign(timestamp: str, scope: str, canonical: bytes) -> str:
    """`timestamp` is yyyymmddThhmmssZ, `scope` yyyymmdd/region/s3/aws4_request."""
    return f"{ALGORITHM}\n{timestamp}\n{scope}\n{hashlib.sha256(canonical).hexdigest()}"


def chunk_string_to_sign(timestamp: str, scope: str, previous: str, payload_sha256: str) -> str:
    """What a chunk of an aws-chunked stream signs; `previous` is the signature before it, first that of the head."""
    return f"{CHUNK_ALGORITHM}\n{timestamp}\n{scope}\n{previous}\n{EMPTY_SHA256}\n{payload_sha256}"


def trailer_string_to_sign(timestamp: str, scope: str, previous: str, trailer_sha256: str) -> str:
    """What the trailer of an aws-chunked stream signs; `previous` is the last chunk's signature."""
    return f"{TRAILER_ALGORITHM}\n{timestamp}\n{scope}\n{previous}\n{trailer_sha256}"


def sign(key: bytes, text: str) -> str:
    """The signature: 64 lower-case hexadecimal digits."""
    return hmac.digest(key, text.encode(), "sha256").hex()


def equal(computed: str, provided: str) -> bool:
    """Compare signatures or tokens in constant time. `provided` may be any text."""
    return hmac.compare_digest(computed.encode(), provided.encode("utf-8", "surrogateescape"))
