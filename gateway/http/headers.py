"""Header names, folding of a raw header section, and user metadata.

Sources: RFC 9110 section 5 (fields), RFC 9112 section 6 (framing), RFC 2047 (encoded words), Amazon S3 User Guide,
"Working with object metadata".
"""

import base64
import quopri
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from s3verbs.gateway.errors import S3Error

AUTHORIZATION = "authorization"
CACHE_CONTROL = "cache-control"
CONTENT_DISPOSITION = "content-disposition"
CONTENT_ENCODING = "content-encoding"
CONTENT_LANGUAGE = "content-language"
CONTENT_LENGTH = "content-length"
CONTENT_MD5 = "content-md5"
CONTENT_TYPE = "content-type"
DATE = "date"
EXPECT = "expect"
EXPIRES = "expires"
HOST = "host"
IF_MATCH = "if-match"
IF_MODIFIED_SINCE = "if-modified-since"
IF_NONE_MATCH = "if-none-match"
IF_RANGE = "if-range"
IF_UNMODIFIED_SINCE = "if-unmodified-since"
RANGE = "range"
TRANSFER_ENCODING = "transfer-encoding"
USER_AGENT = "user-agent"

X_AMZ_ACL = "x-amz-acl"
X_AMZ_BUCKET_REGION = "x-amz-bucket-region"
X_AMZ_CHECKSUM_ALGORITHM = "x-amz-checksum-algorithm"
X_AMZ_CHECKSUM_MODE = "x-amz-checksum-mode"
X_AMZ_CHECKSUM_TYPE = "x-amz-checksum-type"
X_AMZ_CONTENT_SHA256 = "x-amz-content-sha256"
X_AMZ_COPY_SOURCE = "x-amz-copy-source"
X_AMZ_COPY_SOURCE_IF_MATCH = "x-amz-copy-source-if-match"
X_AMZ_COPY_SOURCE_IF_MODIFIED_SINCE = "x-amz-copy-source-if-modified-since"
X_AMZ_COPY_SOURCE_IF_NONE_MATCH = "x-amz-copy-source-if-none-match"
X_AMZ_COPY_SOURCE_IF_UNMODIFIED_SINCE = "x-amz-copy-source-if-unmodified-since"
X_AMZ_COPY_SOURCE_RANGE = "x-amz-copy-source-range"
X_AMZ_DATE = "x-amz-date"
X_AMZ_DECODED_CONTENT_LENGTH = "x-amz-decoded-content-length"
X_AMZ_META_PREFIX = "x-amz-meta-"
X_AMZ_METADATA_DIRECTIVE = "x-amz-metadata-directive"
X_AMZ_MP_OBJECT_SIZE = "x-amz-mp-object-size"
X_AMZ_MP_PARTS_COUNT = "x-amz-mp-parts-count"
X_AMZ_SECURITY_TOKEN = "x-amz-security-token"  # noqa: S105  a header's name
X_AMZ_STORAGE_CLASS = "x-amz-storage-class"
X_AMZ_TAGGING = "x-amz-tagging"
X_AMZ_TAGGING_DIRECTIVE = "x-amz-tagging-directive"
X_AMZ_TRAILER_SIGNATURE = "x-amz-trailer-signature"
X_AMZ_WEBSITE_REDIRECT_LOCATION = "x-amz-website-redirect-location"

CHECKSUM_HEADERS: Mapping[str, str] = {
    "CRC32": "x-amz-checksum-crc32",
    "CRC32C": "x-amz-checksum-crc32c",
    "CRC64NVME": "x-amz-checksum-crc64nvme",
    "SHA1": "x-amz-checksum-sha1",
    "SHA256": "x-amz-checksum-sha256",
}
"""Header (and trailer) name by S3 checksum algorithm."""

MAX_HEADER_SECTION = 16 * 1024
"""Bytes of all names and values, with four more for each field's ": " and line end."""

MAX_USER_METADATA = 2 * 1024
"""Bytes of all user metadata names (without their prefix) and values, in UTF-8."""

_SINGLE = frozenset(
    {AUTHORIZATION, CONTENT_LENGTH, HOST, X_AMZ_CONTENT_SHA256, X_AMZ_DATE, X_AMZ_DECODED_CONTENT_LENGTH}
)
_TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
# White space between two encoded words belongs to neither.
_ENCODED_WORD = re.compile(
    r"=\?([!-<>@-~]+)\?([BbQq])\?([!->@-~]*)\?=(?:[ \t]+(?==\?[!-<>@-~]+\?[BbQq]\?[!->@-~]*\?=))?"
)
_CONTROLS = frozenset(chr(code) for code in (*range(9), *range(10, 32), 127))


def fold_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The header section as a mapping: lower-case names, values without outer white space, repeated fields joined
    with "," in the order sent; values are decoded as UTF-8 with surrogateescape.

    A field that must be single (Content-Length, Host, Authorization, ...) may be repeated only with the same value.
    Raises S3Error: RequestHeaderSectionTooLarge; BadRequest (a name that is not a token, a control character in a
    value, a Content-Length that is not a number or stands beside Transfer-Encoding, single fields that differ);
    NotImplemented (a transfer coding other than chunked).
    """
    folded: dict[str, str] = {}
    size = 0
    for raw_name, raw_value in raw:
        size += len(raw_name) + len(raw_value) + 4
        if size > MAX_HEADER_SECTION:
            raise S3Error("RequestHeaderSectionTooLarge", details={"MaxSizeAllowed": str(MAX_HEADER_SECTION)})
        name = _field_name(raw_name)
        value = raw_value.strip(b" \t").decode("utf-8", "surrogateescape")
        if not value.isprintable() and not _CONTROLS.isdisjoint(value):
            raise _malformed()
        if name in folded:
            if name not in _SINGLE:
                folded[name] += "," + value
            elif folded[name] != value:
                raise _malformed()
        else:
            folded[name] = value
    if folded.get(TRANSFER_ENCODING, "chunked").lower() != "chunked":
        # The parser undoes the chunks alone; what another coding did to the bytes would be stored as the object.
        raise S3Error(
            "NotImplemented",
            "A header you provided implies functionality that is not implemented",
            details={"Header": "Transfer-Encoding"},
        )
    length = folded.get(CONTENT_LENGTH)
    if length is not None and (
        TRANSFER_ENCODING in folded or not (length.isascii() and length.isdigit()) or len(length) > 19
    ):
        raise _malformed()
    return folded


def user_metadata(headers: Mapping[str, str]) -> dict[str, str]:
    """The user metadata of a request: names without `x-amz-meta-`, values as text (see `decode_metadata`).

    Raises S3Error MetadataTooLarge above 2 KiB.
    """
    metadata = {}
    size = 0
    for name, value in headers.items():
        if name.startswith(X_AMZ_META_PREFIX):
            text = decode_metadata(value)
            metadata[name[len(X_AMZ_META_PREFIX) :]] = text
            size += len(name) - len(X_AMZ_META_PREFIX) + len(text.encode("utf-8"))
    if size > MAX_USER_METADATA:
        raise S3Error("MetadataTooLarge", details={"Size": str(size), "MaxSizeAllowed": str(MAX_USER_METADATA)})
    return metadata


def decode_metadata(value: str) -> str:
    """A metadata value as text: RFC 2047 encoded words are decoded, bytes that are not UTF-8 are read as Latin-1.
    A value with a word that cannot be decoded is left as it is."""
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            return value.encode("utf-8", "surrogateescape").decode("latin-1")
        return value
    if "=?" not in value:
        return value
    try:
        text = _ENCODED_WORD.sub(_decode_word, value)
        text.encode("utf-8")
    except (LookupError, ValueError):
        return value
    return text


def encode_metadata(value: str) -> str:
    """A metadata value as AWS puts it into a response header: printable US-ASCII as it is, everything else as one
    RFC 2047 encoded word. `decode_metadata` gives the value back."""
    if (
        value.isascii()
        and value.isprintable()
        and value == value.strip()
        and ("=?" not in value or decode_metadata(value) == value)
    ):
        return value
    return f"=?UTF-8?B?{base64.b64encode(value.encode('utf-8')).decode('ascii')}?="


@lru_cache(maxsize=1024)
def _field_name(raw: bytes) -> str:
    if not raw or raw.translate(None, _TOKEN):
        raise _malformed()
    return raw.decode("ascii").lower()


def _decode_word(word: re.Match[str]) -> str:
    charset, encoding, text = word.groups()
    if encoding in "Bb":
        data = base64.b64decode(text, validate=True)
    else:
        data = quopri.decodestring(text.encode("ascii"), header=True)
    return data.decode(charset)


def _malformed() -> S3Error:
    return S3Error("BadRequest", "An error occurred when parsing the HTTP request.")
