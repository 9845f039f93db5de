"""GetObject and HeadObject: conditions, range or part, the headers, and the bytes to deliver.

Source: Amazon S3 API Reference, GetObject and HeadObject.
"""

from collections.abc import Mapping
from typing import NamedTuple

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.conditions import check_read, range_applies
from s3verbs.gateway.http.headers import (
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    IF_UNMODIFIED_SINCE,
    RANGE,
    X_AMZ_CHECKSUM_MODE,
    X_AMZ_MP_PARTS_COUNT,
)
from s3verbs.gateway.http.ranges import parse_range
from s3verbs.gateway.operations.base import Call, Content, Reply
from s3verbs.gateway.operations.guard import check_version_id, invalid_argument, no_such_version
from s3verbs.gateway.operations.object_headers import checksum_headers, not_modified_headers, version_headers
from s3verbs.storage.model import MAX_PARTS, Checksum, Version

_CONDITIONS = frozenset({IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE})

_OVERRIDES: Mapping[str, str] = {
    "response-content-type": "Content-Type",
    "response-content-language": "Content-Language",
    "response-expires": "Expires",
    "response-cache-control": "Cache-Control",
    "response-content-disposition": "Content-Disposition",
    "response-content-encoding": "Content-Encoding",
}
_CONTROLS = frozenset(chr(code) for code in (*range(32), 127))


class _Parameters(NamedTuple):
    """The query of a read: `part` 0 when none was asked for."""

    part: int = 0
    version_id: str = ""
    overrides: Mapping[str, str] = {}


class _Answer(NamedTuple):
    """What to send of one version: [offset, offset + length). Status 304 sends nothing."""

    status: int
    headers: dict[str, str]
    offset: int
    length: int


_NO_PARAMETERS = _Parameters()


async def get_object(call: Call) -> Reply:
    parameters = _parameters(call) if call.request.target.query else _NO_PARAMETERS
    version = call.objects.lookup(call.bucket, call.key)
    answer = _answer(call.request.headers, parameters, version)
    if answer.status == 304:
        return Reply(304, answer.headers)
    reader = await call.objects.open(call.bucket, call.key, version)
    if reader.version is not version:
        # The object was replaced between lookup and open: every decision is taken again for what is now open.
        try:
            answer = _answer(call.request.headers, parameters, reader.version)
        except BaseException:
            reader.close()
            raise
        if answer.status == 304:
            reader.close()
            return Reply(304, answer.headers)
    return Reply(answer.status, answer.headers, None, Content(reader, answer.offset, answer.length))


async def head_object(call: Call) -> Reply:
    parameters = _parameters(call) if call.request.target.query else _NO_PARAMETERS
    version = call.objects.lookup(call.bucket, call.key)
    answer = _answer(call.request.headers, parameters, version)
    if answer.status == 304:
        return Reply(304, answer.headers)
    return Reply(answer.status, answer.headers, None, None, answer.length)


def _parameters(call: Call) -> _Parameters:
    part, version_id = 0, ""
    overrides: dict[str, str] = {}
    for name, value in call.request.target.query:
        if name in _OVERRIDES:
            if not value.isprintable() and not _CONTROLS.isdisjoint(value):
                raise invalid_argument("Header value cannot hold control characters", name, value)
            overrides[_OVERRIDES[name]] = value
        elif name == "partNumber":
            part = part_number(value)
        elif name == "versionId":
            if not check_version_id(value):
                raise no_such_version(call.key, value)
            version_id = value
    if overrides and call.principal.anonymous:
        raise S3Error("InvalidRequest", "Request specific response headers cannot be used for anonymous GET requests.")
    if part and RANGE in call.request.headers:
        raise S3Error("InvalidRequest", "Cannot specify both Range header and partNumber query parameter")
    return _Parameters(part, version_id, overrides)


def part_number(value: str | None) -> int:
    """A part number of a query. Raises S3Error InvalidArgument."""
    if value and value.isascii() and value.isdigit() and len(value) <= 5 and 1 <= int(value) <= MAX_PARTS:
        return int(value)
    raise invalid_argument("Part number must be an integer between 1 and 10000, inclusive", "partNumber", value or "")


def _answer(requested: Mapping[str, str], parameters: _Parameters, version: Version) -> _Answer:
    if not _CONDITIONS.isdisjoint(requested) and not check_read(requested, version.etag, version.modified_ns):
        return _Answer(304, not_modified_headers(version), 0, 0)
    headers = version_headers(version)
    status, offset, length = 200, 0, version.size
    partial = False
    if parameters.part:
        offset, length = _part(version, parameters.part)
        partial = True
        if version.multipart:
            headers[X_AMZ_MP_PARTS_COUNT] = str(len(version.parts))
    elif RANGE in requested and range_applies(requested, version.etag, version.modified_ns):
        selected = parse_range(requested[RANGE], version.size)
        if selected is not None:
            offset, length = selected.start, selected.length
            partial = True
    if parameters is not _NO_PARAMETERS:
        if parameters.version_id:
            headers["x-amz-version-id"] = version.version_id
        headers.update(parameters.overrides)
    if requested.get(X_AMZ_CHECKSUM_MODE, "").upper() == "ENABLED":
        headers.update(_checksum(version, parameters.part, partial=partial))
    if partial and length:
        status = 206
        headers["Content-Range"] = f"bytes {offset}-{offset + length - 1}/{version.size}"
    return _Answer(status, headers, offset, length)


def _part(version: Version, number: int) -> tuple[int, int]:
    """Offset and length of the number-th part. Parts count from 1 whatever numbers they were uploaded with, so a
    client that reads 1 to x-amz-mp-parts-count gets the object."""
    if number > len(version.parts):
        raise S3Error(
            "InvalidPartNumber",
            details={"ActualPartCount": str(len(version.parts)), "PartNumberRequested": str(number)},
        )
    offset = sum(part.size for part in version.parts[: number - 1])
    return offset, version.parts[number - 1].size


def _checksum(version: Version, part: int, *, partial: bool) -> dict[str, str]:
    """A checksum is given only with exactly the bytes it covers: the object, or one part of an upload."""
    if not partial:
        return checksum_headers(version.checksum)
    if not part:
        return {}
    if not version.multipart:
        return checksum_headers(version.checksum)
    covering: Checksum | None = version.parts[part - 1].checksum
    return checksum_headers(covering, version.checksum.kind if version.checksum else "")
