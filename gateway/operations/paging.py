"""The query parameters that all listings share, and opaque continuation tokens."""

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.request import Target
from s3verbs.gateway.operations.guard import invalid_argument

MAX_INTEGER = 2**31 - 1
PAGE = 1000

_CRC_BYTES = 4


def page_limit(target: Target, name: str, *, maximum: int = PAGE) -> int:
    """A page size: `maximum` when the parameter is absent or empty, or larger. Raises S3Error InvalidArgument."""
    value = target.get(name)
    return min(integer(name, value), maximum) if value else maximum


def number_marker(target: Target, name: str) -> int:
    """A numeric marker, 0 when absent or empty. Raises S3Error InvalidArgument."""
    value = target.get(name)
    return integer(name, value) if value else 0


def integer(name: str, value: str) -> int:
    """A number from 0 to MAX_INTEGER. Raises S3Error InvalidArgument."""
    if value.isascii() and value.isdigit():
        if len(value) <= 10 and int(value) <= MAX_INTEGER:
            return int(value)
    elif value.startswith("-") and value[1:].isascii() and value[1:].isdigit():
        raise invalid_argument(f"Argument {name} must be an integer between 0 and {MAX_INTEGER}", name, value)
    raise invalid_argument(f"Provided {name} not an integer or within integer range", name, value)


def encoding_type(target: Target) -> str:
    """ "url" or "". Raises S3Error InvalidArgument for any other."""
    value = target.get("encoding-type") or ""
    if value not in ("", "url"):
        raise invalid_argument("Invalid Encoding Method specified in Request", "encoding-type", value)
    return value


def continuation_token(listing: str, marker: str) -> str:
    """A token that stands for "after `marker`" in a listing of one kind: it means nothing to another kind."""
    raw = marker.encode("utf-8")
    return urlsafe_b64encode(_crc(listing, raw) + raw).decode("ascii")


def continuation_marker(listing: str, token: str) -> str:
    """The marker of a token. Raises S3Error InvalidArgument for what `continuation_token` did not give."""
    try:
        raw = urlsafe_b64decode(token)
        crc, marker = raw[:_CRC_BYTES], raw[_CRC_BYTES:]
        if crc == _crc(listing, marker) and urlsafe_b64encode(raw) == token.encode("ascii"):
            return marker.decode("utf-8")
    except ValueError:
        pass
    raise S3Error(
        "InvalidArgument",
        "The continuation token provided is incorrect",
        details={"ArgumentName": "continuation-token"},
    )


def _crc(listing: str, marker: bytes) -> bytes:
    return zlib.crc32(marker, zlib.crc32(listing.encode("ascii"))).to_bytes(_CRC_BYTES, "big")
