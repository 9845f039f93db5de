"""UploadPart and UploadPartCopy. Source: Amazon S3 API Reference."""

import re

from s3verbs.gateway.checksums import COMPOSITE, Claims
from s3verbs.gateway.documents import CopyPartResult
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.headers import CHECKSUM_HEADERS, X_AMZ_COPY_SOURCE, X_AMZ_COPY_SOURCE_RANGE
from s3verbs.gateway.operations.base import Call, Reply
from s3verbs.gateway.operations.copy_source import (
    MAX_COPY_BYTES,
    ObjectSource,
    find_source,
    open_source,
    parse_copy_source,
)
from s3verbs.gateway.operations.get_object import part_number
from s3verbs.gateway.operations.guard import invalid_argument
from s3verbs.gateway.operations.put_object import ALGORITHM_SETS, DEFAULT_ALGORITHM, checksum_of, etag_of, wants_md5
from s3verbs.gateway.transfer import Ingested
from s3verbs.storage.model import Part, Upload

_RANGE = re.compile(r"bytes=(\d{1,19})-(\d{1,19})", re.ASCII)
_RANGE_FORM = (
    "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the zero-based "
    "offsets of the first and last bytes to copy"
)


def upload_id(call: Call) -> str:
    return call.request.target.get("uploadId") or ""


async def upload_part(call: Call) -> Reply:
    """The upload must exist and the checksum be of its algorithm before the first byte of the payload is read."""
    number = part_number(call.request.target.get("partNumber"))
    upload = call.objects.upload(call.bucket, call.key, upload_id(call))
    claims = Claims.from_headers(call.request.headers)
    algorithm = _part_algorithm(upload, claims)
    bucket = call.objects.bucket(call.bucket)
    ingested = await call.ingest(
        algorithms=ALGORITHM_SETS[algorithm], durability=bucket.durability, md5=wants_md5(bucket)
    )
    part = await _record(call, number, ingested, algorithm)
    headers = {"ETag": f'"{part.etag}"'}
    if part.checksum is not None and (claims.algorithm or upload.checksum_algorithm):
        headers[CHECKSUM_HEADERS[algorithm]] = part.checksum.value
    return Reply(200, headers)


async def upload_part_copy(call: Call) -> Reply:
    headers = call.request.headers
    number = part_number(call.request.target.get("partNumber"))
    source = parse_copy_source(headers.get(X_AMZ_COPY_SOURCE, ""))
    upload = call.objects.upload(call.bucket, call.key, upload_id(call))
    bucket = call.objects.bucket(call.bucket)
    version = find_source(call, source)
    offset, length = _copied_range(headers.get(X_AMZ_COPY_SOURCE_RANGE), version.size)
    if length > MAX_COPY_BYTES:
        raise S3Error(
            "InvalidRequest",
            f"The specified copy source is larger than the maximum allowable size for a copy source: {MAX_COPY_BYTES}",
        )
    algorithm = upload.checksum_algorithm or DEFAULT_ALGORITHM
    reader = await open_source(call, source, version)
    try:
        ingested = await call.ingest(
            algorithms=ALGORITHM_SETS[algorithm],
            durability=bucket.durability,
            md5=wants_md5(bucket),
            source=ObjectSource(reader, offset, length),
        )
    finally:
        reader.close()
    part = await _record(call, number, ingested, algorithm)
    shown = part.checksum if upload.checksum_algorithm else None
    return Reply(document=CopyPartResult(part.etag, part.modified_ns, shown))


async def _record(call: Call, number: int, ingested: Ingested, algorithm: str) -> Part:
    part = Part(
        number=number,
        payload=ingested.payload,
        etag=etag_of(ingested),
        modified_ns=call.clock(),
        checksum=checksum_of(ingested, algorithm),
    )
    await call.objects.put_part(call.bucket, call.key, upload_id(call), part)
    return part


def _part_algorithm(upload: Upload, claims: Claims) -> str:
    """The algorithm of a part's checksum: the upload's. An upload that declared none takes any.

    A part without a checksum is refused where AWS needs each part's, in a composite checksum.
    """
    declared = upload.checksum_algorithm
    if not declared:
        return claims.algorithm or DEFAULT_ALGORITHM
    if claims.algorithm != declared and (claims.algorithm or upload.checksum_kind == COMPOSITE):
        raise S3Error(
            "InvalidRequest",
            f"Checksum Type mismatch occurred, expected checksum Type: {declared.lower()}, "
            f"actual checksum Type: {claims.algorithm.lower() or 'null'}",
        )
    return declared


def _copied_range(value: str | None, size: int) -> tuple[int, int]:
    """Offset and length. Raises S3Error: InvalidArgument (another form), InvalidRange (not within the source)."""
    if value is None:
        return 0, size
    match = _RANGE.fullmatch(value)
    if match is None:
        raise invalid_argument(_RANGE_FORM, X_AMZ_COPY_SOURCE_RANGE, value)
    first, last = int(match[1]), int(match[2])
    if first > last:
        raise invalid_argument(_RANGE_FORM, X_AMZ_COPY_SOURCE_RANGE, value)
    if last >= size:
        raise S3Error(
            "InvalidRange",
            f"Range specified is not valid for source object of size: {size}",
            details={"RangeRequested": value, "ActualObjectSize": str(size)},
        )
    return first, last - first + 1
