"""Request documents of the S3 API as values.

Keys are taken exactly as sent; white space around everything else is dropped. Elements that are not known are
skipped, as Amazon S3 does, unless they are conditions: those are never skipped silently.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from s3verbs.gateway.checksums import ALGORITHMS, FULL_OBJECT, decode
from s3verbs.gateway.documents import (
    AccessControlPolicy,
    CompleteMultipartUpload,
    CreateBucketConfiguration,
    Delete,
    DeleteEntry,
    Grant,
)
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.xml import reader
from s3verbs.gateway.xml.reader import Element
from s3verbs.storage.model import MAX_PARTS, Checksum, CompletedPart

MAX_DELETE_OBJECTS = 1000

LOOP_BYTES = 32 * 1024
"""Documents up to this size are read on the event loop, in 3 ms at most."""

T = TypeVar("T")


async def read(document: Callable[[bytes], T], body: bytes) -> T:
    """`document(body)`, one of the functions below; a large body is read on a thread. The 10,000 parts of an upload
    take 0.1 s, in which the loop serves others. Raises what `document` raises."""
    return document(body) if len(body) <= LOOP_BYTES else await asyncio.to_thread(document, body)


_BOOLEANS = {"true": True, "1": True, "false": False, "0": False, "": False}
_PERMISSIONS = frozenset({"FULL_CONTROL", "READ", "READ_ACP", "WRITE", "WRITE_ACP"})
_CHECKSUM_ELEMENTS = {f"Checksum{name}": name for name in ALGORITHMS}


def read_delete(body: bytes) -> Delete:
    """Raises S3Error: MalformedXML (also for none or more than 1,000 objects), NotImplemented (the conditions that
    Amazon S3 has only for directory buckets)."""
    root = reader.parse(body, "Delete")
    quiet = _BOOLEANS.get(_trimmed(root, "Quiet").lower())
    entries = [_delete_entry(element) for element in root.all("Object")]
    if quiet is None or not 1 <= len(entries) <= MAX_DELETE_OBJECTS:
        raise S3Error("MalformedXML")
    return Delete(entries, quiet)


def _delete_entry(element: Element) -> DeleteEntry:
    key = element.text("Key")
    if not key:
        raise S3Error("MalformedXML")
    if len(element.children) == 1:
        return DeleteEntry(key)
    if element.text("LastModifiedTime") is not None or element.text("Size") is not None:
        raise S3Error("NotImplemented", "LastModifiedTime and Size are conditions of directory buckets only.")
    return DeleteEntry(key, _trimmed(element, "VersionId"), _etag(_trimmed(element, "ETag")))


def read_complete(body: bytes) -> CompleteMultipartUpload:
    """Parts in the order sent; that it ascends is for the operation to check.

    Raises S3Error: MalformedXML (also for no part and for part numbers outside 1 to 10,000), InvalidArgument (a
    part with several checksums or one that is no base64 of the right length).
    """
    root = reader.parse(body, "CompleteMultipartUpload")
    parts = [_completed_part(element) for element in root.all("Part")]
    if not 1 <= len(parts) <= MAX_PARTS:
        raise S3Error("MalformedXML")
    return CompleteMultipartUpload(parts)


def _completed_part(element: Element) -> CompletedPart:
    digits = _trimmed(element, "PartNumber")
    etag = element.text("ETag")
    # isdecimal alone would take digits of other scripts; more than five digits are never a part number.
    if etag is None or not (digits.isascii() and digits.isdecimal() and len(digits) <= 5):
        raise S3Error("MalformedXML")
    number = int(digits)
    if not 1 <= number <= MAX_PARTS:
        raise S3Error("MalformedXML")
    checksum = None
    for child in element.children:
        algorithm = _CHECKSUM_ELEMENTS.get(child.name)
        if algorithm is None:
            continue
        value = child.content.strip()
        if checksum is not None or decode(algorithm, value) is None:
            raise S3Error("InvalidArgument", "Invalid Base64 or multiple checksums present in request")
        checksum = Checksum(algorithm, FULL_OBJECT, value)
    return CompletedPart(number, _etag(etag.strip()), checksum)


def read_create_bucket(body: bytes) -> CreateBucketConfiguration:
    """An empty body stands for an empty configuration. Raises S3Error MalformedXML."""
    if not body:
        return CreateBucketConfiguration()
    return CreateBucketConfiguration(_trimmed(reader.parse(body, "CreateBucketConfiguration"), "LocationConstraint"))


def read_acl(body: bytes) -> AccessControlPolicy:
    """Raises S3Error MalformedACLError."""
    try:
        root = reader.parse(body, "AccessControlPolicy")
        owner = [_trimmed(element, "ID") for element in root.all("Owner")]
        lists = list(root.all("AccessControlList"))
        if len(owner) > 1 or len(lists) != 1:
            raise S3Error("MalformedXML")
        return AccessControlPolicy("".join(owner), [_grant(element) for element in lists[0].all("Grant")])
    except S3Error:
        raise S3Error("MalformedACLError") from None


def _grant(element: Element) -> Grant:
    grantees = list(element.all("Grantee"))
    permission = _trimmed(element, "Permission")
    if len(grantees) != 1 or permission not in _PERMISSIONS:
        raise S3Error("MalformedXML")
    return Grant(_trimmed(grantees[0], "ID"), permission)


def _trimmed(element: Element, name: str) -> str:
    return (element.text(name) or "").strip()


def _etag(value: str) -> str:
    """Without quotes. Some clients escape the quotes twice, so that the parsed text still holds `&quot;`."""
    if value.startswith("&quot;") and value.endswith("&quot;"):
        return value[6:-6]
    return value.strip('"')
