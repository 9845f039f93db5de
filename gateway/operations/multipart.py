"""Multipart uploads: create, complete, abort, and the two listings. Source: Amazon S3 API Reference."""

from collections.abc import Mapping, Sequence

from s3verbs.gateway import etag
from s3verbs.gateway.checksums import check_kind, combine, default_kind, requested_algorithm, verify_object
from s3verbs.gateway.documents import (
    CompleteMultipartUploadResult,
    InitiateMultipartUploadResult,
    ListMultipartUploadsResult,
    ListPartsResult,
)
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.conditions import write_condition
from s3verbs.gateway.http.headers import X_AMZ_CHECKSUM_ALGORITHM, X_AMZ_CHECKSUM_TYPE, X_AMZ_MP_OBJECT_SIZE
from s3verbs.gateway.operations.base import Call, Reply
from s3verbs.gateway.operations.buckets import owner, owner_of
from s3verbs.gateway.operations.guard import invalid_argument
from s3verbs.gateway.operations.object_headers import attributes_from, check_write
from s3verbs.gateway.operations.paging import encoding_type, number_marker, page_limit
from s3verbs.gateway.operations.upload_part import upload_id
from s3verbs.gateway.xml.requests import read, read_complete
from s3verbs.storage.errors import NotFound, UploadNotFound
from s3verbs.storage.model import Checksum, CompletedPart, Part, Upload, Version

_DOCUMENT_LIMIT = 8 << 20
"""Room for 10,000 parts with a SHA-256 each, generously indented."""


async def create_multipart_upload(call: Call) -> Reply:
    headers = call.request.headers
    check_write(headers)
    attributes = attributes_from(headers)
    algorithm = requested_algorithm(headers)
    kind = headers.get(X_AMZ_CHECKSUM_TYPE, "")
    check_kind(algorithm, kind)
    if algorithm and not kind:
        kind = default_kind(algorithm)
    upload = await call.objects.create_upload(
        call.objects.bucket(call.bucket),
        call.key,
        initiator=call.principal.id,
        attributes=attributes,
        checksum_algorithm=algorithm,
        checksum_kind=kind,
    )
    shown = {X_AMZ_CHECKSUM_ALGORITHM: algorithm, X_AMZ_CHECKSUM_TYPE: kind} if algorithm else {}
    return Reply(200, shown, InitiateMultipartUploadResult(call.bucket, call.key, upload.id))


async def complete_multipart_upload(call: Call) -> Reply:
    """A client that lost the answer may ask again: while the object is still made of the very parts it lists, the
    answer is the same, although the upload is over."""
    headers = call.request.headers
    condition = write_condition(headers)
    # The checksum headers are about the object, not about this document.
    body = await call.body.read_document(_DOCUMENT_LIMIT, checksums=False)
    if not body:
        raise S3Error("MalformedXML")
    parts = (await read(read_complete, body)).parts
    _check_order(parts)

    def describe(upload: Upload, stored: Sequence[Part]) -> tuple[str, Checksum | None]:
        _check_size(headers, sum(part.size for part in stored))
        checksum = _whole_checksum(upload, stored)
        verify_object(headers, checksum)
        return etag.multipart(stored), checksum

    try:
        version = await call.objects.complete_upload(
            call.bucket, call.key, upload_id(call), parts, describe=describe, condition=condition
        )
    except UploadNotFound as over:
        version = _completed_before(call, parts, over)
    return _reply(call, version)


def _reply(call: Call, version: Version) -> Reply:
    request = call.request
    scheme = "https" if request.secure else "http"
    return Reply(
        document=CompleteMultipartUploadResult(
            location=f"{scheme}://{request.host}{request.target.path}",
            bucket=call.bucket,
            key=call.key,
            etag=version.etag,
            checksum=version.checksum,
        )
    )


def _check_order(parts: Sequence[CompletedPart]) -> None:
    previous = 0
    for part in parts:
        if part.number <= previous:
            raise S3Error("InvalidPartOrder")
        previous = part.number


def _completed_before(call: Call, parts: Sequence[CompletedPart], over: NotFound) -> Version:
    """The object, when it is what this upload became. Raises UploadNotFound otherwise."""
    try:
        version = call.objects.lookup(call.bucket, call.key)
    except NotFound:
        raise over from None
    listed = [(part.number, part.etag) for part in parts]
    if not version.multipart or listed != [(part.number, part.etag) for part in version.parts]:
        raise over
    _check_size(call.request.headers, version.size)
    verify_object(call.request.headers, version.checksum)
    return version


def _check_size(headers: Mapping[str, str], actual: int) -> None:
    value = headers.get(X_AMZ_MP_OBJECT_SIZE)
    if value is None:
        return
    if not (value.isascii() and value.isdigit()):
        raise invalid_argument(f"Value for {X_AMZ_MP_OBJECT_SIZE} header is invalid.", X_AMZ_MP_OBJECT_SIZE, value)
    if value.lstrip("0") != str(actual).lstrip("0"):
        raise S3Error(
            "InvalidRequest",
            f"The provided '{X_AMZ_MP_OBJECT_SIZE}' header value {value} does not match what was computed: {actual}",
        )


def _whole_checksum(upload: Upload, parts: Sequence[Part]) -> Checksum | None:
    """The declared checksum; for an upload that declared none, that of the algorithm all its parts share."""
    algorithm, kind = upload.checksum_algorithm, upload.checksum_kind
    if not algorithm:
        shared = {part.checksum.algorithm if part.checksum else "" for part in parts}
        algorithm = shared.pop() if len(shared) == 1 else ""
        if not algorithm:
            return None
        kind = default_kind(algorithm)
    return combine(algorithm, kind, parts)


async def abort_multipart_upload(call: Call) -> Reply:
    await call.objects.abort_upload(call.bucket, call.key, upload_id(call))
    return Reply(204)


async def list_parts(call: Call) -> Reply:
    target = call.request.target
    limit = page_limit(target, "max-parts")
    after = number_marker(target, "part-number-marker")
    encoding = encoding_type(target)
    bucket = call.objects.bucket(call.bucket)
    upload = call.objects.upload(call.bucket, call.key, upload_id(call))
    parts: Sequence[Part] = ()
    truncated = False
    if limit:
        parts, truncated = call.objects.parts(call.bucket, call.key, upload.id, after=after, limit=limit)
    return Reply(
        document=ListPartsResult(
            bucket=call.bucket,
            key=call.key,
            upload=upload,
            parts=parts,
            part_number_marker=after,
            next_part_number_marker=parts[-1].number if parts else 0,
            max_parts=limit,
            truncated=truncated,
            owner=owner_of(bucket, call),
            initiator=owner(upload.initiator, call),
            encoding_type=encoding,
        )
    )


async def list_multipart_uploads(call: Call) -> Reply:
    target = call.request.target
    limit = page_limit(target, "max-uploads")
    encoding = encoding_type(target)
    prefix = target.get("prefix") or ""
    delimiter = target.get("delimiter") or ""
    key_marker = target.get("key-marker") or ""
    # Without a key marker AWS ignores the upload id marker.
    upload_marker = (target.get("upload-id-marker") or "") if key_marker else ""
    bucket = call.objects.bucket(call.bucket)
    page = call.objects.list_uploads(
        call.bucket,
        prefix=prefix,
        delimiter=delimiter,
        key_marker=key_marker,
        upload_id_marker=upload_marker,
        limit=limit,
    )
    return Reply(
        document=ListMultipartUploadsResult(
            bucket=call.bucket,
            prefix=prefix,
            delimiter=delimiter,
            key_marker=key_marker,
            upload_id_marker=upload_marker,
            next_key_marker=page.next_key_marker,
            next_upload_id_marker=page.next_upload_id_marker,
            max_uploads=limit,
            truncated=page.truncated,
            uploads=page.uploads,
            common_prefixes=page.common_prefixes,
            owner=owner_of(bucket, call),
            encoding_type=encoding,
        )
    )
