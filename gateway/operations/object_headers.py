"""An object's system headers and user metadata: from a request's headers into Attributes, and from a Version back.

Sources: Amazon S3 User Guide, "Working with object metadata"; API Reference, PutObject and GetObject.
"""

from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache

from s3verbs.gateway.checksums import HEADERS as CHECKSUM_HEADERS
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.operations.guard import invalid_argument
from s3verbs.gateway.operations.tagging_header import parse_tagging
from s3verbs.storage.model import Attributes, Checksum, Version

METADATA_PREFIX = "x-amz-meta-"
MAX_METADATA_BYTES = 2048
"""Names without their prefix and values, in UTF-8."""

DEFAULT_CONTENT_TYPE = "binary/octet-stream"
STANDARD = "STANDARD"

WIRE_NAMES: Mapping[str, str] = {
    "content-type": "Content-Type",
    "cache-control": "Cache-Control",
    "content-disposition": "Content-Disposition",
    "content-encoding": "Content-Encoding",
    "content-language": "Content-Language",
    "expires": "Expires",
    "x-amz-website-redirect-location": "x-amz-website-redirect-location",
    "x-amz-storage-class": "x-amz-storage-class",
}
"""The headers that are stored and returned verbatim, with the form they have in a response."""

STORAGE_CLASSES = frozenset(
    {
        STANDARD,
        "REDUCED_REDUNDANCY",
        "STANDARD_IA",
        "ONEZONE_IA",
        "INTELLIGENT_TIERING",
        "GLACIER",
        "DEEP_ARCHIVE",
        "GLACIER_IR",
    }
)

_ACCEPTED_ACLS = frozenset({"private", "bucket-owner-full-control"})
_CANNED_ACLS = frozenset(
    {
        "private",
        "public-read",
        "public-read-write",
        "authenticated-read",
        "aws-exec-read",
        "bucket-owner-read",
        "bucket-owner-full-control",
        "log-delivery-write",
    }
)
_GRANTS = frozenset(
    {
        "x-amz-grant-full-control",
        "x-amz-grant-read",
        "x-amz-grant-read-acp",
        "x-amz-grant-write",
        "x-amz-grant-write-acp",
    }
)
_OBJECT_LOCK = frozenset(
    {"x-amz-object-lock-mode", "x-amz-object-lock-retain-until-date", "x-amz-object-lock-legal-hold"}
)

_REDIRECTS = ("/", "http://", "https://")
_MAX_REDIRECT = 2048


def attributes_from(headers: Mapping[str, str]) -> Attributes:
    """What a write request asks to store beside the bytes.

    `aws-chunked` is not part of the content encoding. Raises S3Error: MetadataTooLarge, InvalidStorageClass,
    InvalidRedirectLocation, InvalidTag, InvalidArgument, BadRequest (too many tags).
    """
    stored: dict[str, str] = {}
    metadata: dict[str, str] = {}
    for name, value in headers.items():
        if name in WIRE_NAMES:
            if value:
                stored[name] = value
        elif name.startswith(METADATA_PREFIX):
            metadata[name[len(METADATA_PREFIX) :]] = value
    if "content-encoding" in stored:
        _strip_aws_chunked(stored)
    if "x-amz-storage-class" in stored:
        _check_storage_class(stored)
    if "x-amz-website-redirect-location" in stored:
        _check_redirect(stored["x-amz-website-redirect-location"])
    if metadata:
        _check_metadata(metadata)
    tagging = headers.get("x-amz-tagging")
    return Attributes(headers=stored, metadata=metadata, tags=parse_tagging(tagging) if tagging else {})


def check_write(headers: Mapping[str, str]) -> None:
    """Judge the access control and object lock headers of a request that writes an object.

    Raises S3Error: AccessControlListNotSupported, InvalidArgument (no canned ACL), InvalidRequest (object lock).
    """
    acl = headers.get("x-amz-acl")
    if acl is not None and acl not in _ACCEPTED_ACLS:
        check_canned_acl(acl)
        raise S3Error("AccessControlListNotSupported")
    if not _GRANTS.isdisjoint(headers):
        raise S3Error("AccessControlListNotSupported")
    if not _OBJECT_LOCK.isdisjoint(headers):
        raise S3Error("InvalidRequest", "Bucket is missing Object Lock Configuration")


def check_canned_acl(acl: str) -> None:
    """Raises S3Error InvalidArgument for what is not the name of a canned ACL."""
    if acl not in _CANNED_ACLS:
        raise invalid_argument("Invalid Argument", "x-amz-acl", acl)


def has_grants(headers: Mapping[str, str]) -> bool:
    return not _GRANTS.isdisjoint(headers)


def _strip_aws_chunked(stored: dict[str, str]) -> None:
    codings = [coding.strip() for coding in stored["content-encoding"].split(",")]
    kept = [coding for coding in codings if coding.lower() != "aws-chunked"]
    if len(kept) == len(codings):
        return
    if kept:
        stored["content-encoding"] = ", ".join(kept)
    else:
        del stored["content-encoding"]


def _check_storage_class(stored: dict[str, str]) -> None:
    name = stored["x-amz-storage-class"]
    if name not in STORAGE_CLASSES:
        raise S3Error("InvalidStorageClass", details={"StorageClassRequested": name})
    if name == STANDARD:
        # AWS never returns the default class.
        del stored["x-amz-storage-class"]


def _check_redirect(location: str) -> None:
    if not location.startswith(_REDIRECTS):
        raise S3Error("InvalidRedirectLocation")
    if len(location) > _MAX_REDIRECT:
        raise S3Error("InvalidRedirectLocation", "The length of website redirect location cannot exceed 2,048 characters.")


def _check_metadata(metadata: Mapping[str, str]) -> None:
    size = sum(len(name) + len(value.encode("utf-8", "surrogateescape")) for name, value in metadata.items())
    if size > MAX_METADATA_BYTES:
        raise S3Error("MetadataTooLarge", details={"Size": str(size), "MaxSizeAllowed": str(MAX_METADATA_BYTES)})


def version_headers(version: Version) -> dict[str, str]:
    """The headers of a whole object as GetObject and HeadObject give them, in wire form; the dict is the caller's."""
    headers = {
        "ETag": f'"{version.etag}"',
        "Last-Modified": http_date(version.modified_ns // 1_000_000_000),
        "Accept-Ranges": "bytes",
        "Content-Type": DEFAULT_CONTENT_TYPE,
    }
    attributes = version.attributes
    for name, value in attributes.headers.items():
        headers[WIRE_NAMES[name]] = value
    if attributes.metadata:
        for name, value in attributes.metadata.items():
            headers[METADATA_PREFIX + name] = value
    if attributes.tags:
        headers["x-amz-tagging-count"] = str(len(attributes.tags))
    return headers


def not_modified_headers(version: Version) -> dict[str, str]:
    """The headers of a 304 (RFC 9110, 15.4.5)."""
    headers = {"ETag": f'"{version.etag}"', "Last-Modified": http_date(version.modified_ns // 1_000_000_000)}
    for name in ("cache-control", "expires"):
        if name in version.attributes.headers:
            headers[WIRE_NAMES[name]] = version.attributes.headers[name]
    return headers


def checksum_headers(checksum: Checksum | None, kind: str = "") -> dict[str, str]:
    """The headers that carry a checksum and its type; `kind` replaces the checksum's own."""
    if checksum is None:
        return {}
    return {CHECKSUM_HEADERS[checksum.algorithm]: checksum.value, "x-amz-checksum-type": kind or checksum.kind}


@lru_cache(maxsize=8192)
def http_date(seconds: int) -> str:
    """The HTTP date of a second since the epoch."""
    return formatdate(seconds, usegmt=True)
