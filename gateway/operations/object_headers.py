"""An object's system headers and user metadata: from a request's headers into Attributes, and from a Version back.

Sources: Amazon S3 User Guide, "Working with object metadata"; API Reference, PutObject and GetObject.
"""

from collections.abc import Mapping

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.dates import format_http_date
from s3verbs.gateway.http.headers import (
    CACHE_CONTROL,
    CHECKSUM_HEADERS,
    CONTENT_DISPOSITION,
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    CONTENT_TYPE,
    EXPIRES,
    X_AMZ_ACL,
    X_AMZ_CHECKSUM_TYPE,
    X_AMZ_META_PREFIX,
    X_AMZ_STORAGE_CLASS,
    X_AMZ_TAGGING,
    X_AMZ_WEBSITE_REDIRECT_LOCATION,
    encode_metadata,
    user_metadata,
)
from s3verbs.gateway.operations.guard import invalid_argument
from s3verbs.gateway.operations.tagging_header import parse_tagging
from s3verbs.storage.model import Attributes, Checksum, Version

DEFAULT_CONTENT_TYPE = "binary/octet-stream"
STANDARD = "STANDARD"

WIRE_NAMES: Mapping[str, str] = {
    CONTENT_TYPE: "Content-Type",
    CACHE_CONTROL: "Cache-Control",
    CONTENT_DISPOSITION: "Content-Disposition",
    CONTENT_ENCODING: "Content-Encoding",
    CONTENT_LANGUAGE: "Content-Language",
    EXPIRES: "Expires",
    X_AMZ_WEBSITE_REDIRECT_LOCATION: X_AMZ_WEBSITE_REDIRECT_LOCATION,
    X_AMZ_STORAGE_CLASS: X_AMZ_STORAGE_CLASS,
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
    stored = {name: headers[name] for name in WIRE_NAMES if headers.get(name)}
    if CONTENT_ENCODING in stored:
        _strip_aws_chunked(stored)
    if X_AMZ_STORAGE_CLASS in stored:
        _check_storage_class(stored)
    if X_AMZ_WEBSITE_REDIRECT_LOCATION in stored:
        _check_redirect(stored[X_AMZ_WEBSITE_REDIRECT_LOCATION])
    tagging = headers.get(X_AMZ_TAGGING)
    return Attributes(headers=stored, metadata=user_metadata(headers), tags=parse_tagging(tagging) if tagging else {})


def check_write(headers: Mapping[str, str]) -> None:
    """Judge the access control and object lock headers of a request that writes an object.

    Raises S3Error: AccessControlListNotSupported, InvalidArgument (no canned ACL), InvalidRequest (object lock).
    """
    check_acl(headers)
    if not _OBJECT_LOCK.isdisjoint(headers):
        raise S3Error("InvalidRequest", "Bucket is missing Object Lock Configuration")


def check_acl(headers: Mapping[str, str]) -> None:
    """Judge the x-amz-acl and x-amz-grant-* headers: only what leaves an object its owner's passes.

    Raises S3Error AccessControlListNotSupported, InvalidArgument (no canned ACL).
    """
    acl = headers.get(X_AMZ_ACL)
    if acl is not None and acl not in _ACCEPTED_ACLS:
        check_canned_acl(acl)
        raise S3Error("AccessControlListNotSupported")
    if not _GRANTS.isdisjoint(headers):
        raise S3Error("AccessControlListNotSupported")


def check_canned_acl(acl: str) -> None:
    """Raises S3Error InvalidArgument for what is not the name of a canned ACL."""
    if acl not in _CANNED_ACLS:
        raise invalid_argument("Invalid Argument", X_AMZ_ACL, acl)


def has_grants(headers: Mapping[str, str]) -> bool:
    return not _GRANTS.isdisjoint(headers)


def _strip_aws_chunked(stored: dict[str, str]) -> None:
    codings = [coding.strip() for coding in stored[CONTENT_ENCODING].split(",")]
    kept = [coding for coding in codings if coding.lower() != "aws-chunked"]
    if len(kept) == len(codings):
        return
    if kept:
        stored[CONTENT_ENCODING] = ", ".join(kept)
    else:
        del stored[CONTENT_ENCODING]


def _check_storage_class(stored: dict[str, str]) -> None:
    name = stored[X_AMZ_STORAGE_CLASS]
    if name not in STORAGE_CLASSES:
        raise S3Error("InvalidStorageClass", details={"StorageClassRequested": name})
    if name == STANDARD:
        # AWS never returns the default class.
        del stored[X_AMZ_STORAGE_CLASS]


def _check_redirect(location: str) -> None:
    if not location.startswith(_REDIRECTS):
        raise S3Error("InvalidRedirectLocation")
    if len(location) > _MAX_REDIRECT:
        raise S3Error(
            "InvalidRedirectLocation", "The length of website redirect location cannot exceed 2,048 characters."
        )


def version_headers(version: Version) -> dict[str, str]:
    """The headers of a whole object as GetObject and HeadObject give them, in wire form; the dict is the caller's."""
    headers = {
        "ETag": f'"{version.etag}"',
        "Last-Modified": format_http_date(version.modified_ns // 1_000_000_000),
        "Accept-Ranges": "bytes",
        "Content-Type": DEFAULT_CONTENT_TYPE,
    }
    attributes = version.attributes
    for name, value in attributes.headers.items():
        headers[WIRE_NAMES[name]] = value
    if attributes.metadata:
        for name, value in attributes.metadata.items():
            headers[X_AMZ_META_PREFIX + name] = encode_metadata(value)
    if attributes.tags:
        headers["x-amz-tagging-count"] = str(len(attributes.tags))
    return headers


def not_modified_headers(version: Version) -> dict[str, str]:
    """The headers of a 304 (RFC 9110, 15.4.5)."""
    headers = {"ETag": f'"{version.etag}"', "Last-Modified": format_http_date(version.modified_ns // 1_000_000_000)}
    for name in (CACHE_CONTROL, EXPIRES):
        if name in version.attributes.headers:
            headers[WIRE_NAMES[name]] = version.attributes.headers[name]
    return headers


def checksum_headers(checksum: Checksum | None, kind: str = "") -> dict[str, str]:
    """The headers that carry a checksum and its type; `kind` replaces the checksum's own."""
    if checksum is None:
        return {}
    return {CHECKSUM_HEADERS[checksum.algorithm]: checksum.value, X_AMZ_CHECKSUM_TYPE: kind or checksum.kind}
