"""GetObjectAttributes. Source: Amazon S3 API Reference, GetObjectAttributes."""

from s3verbs.gateway.documents import GetObjectAttributesResponse, ObjectParts
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.dates import format_http_date
from s3verbs.gateway.http.headers import X_AMZ_STORAGE_CLASS
from s3verbs.gateway.operations.base import Call, Reply
from s3verbs.gateway.operations.guard import check_version_id, invalid_argument, no_such_version
from s3verbs.gateway.operations.object_headers import STANDARD
from s3verbs.gateway.operations.paging import PAGE, integer
from s3verbs.storage.model import Version

_WANTED = "x-amz-object-attributes"
_MAX_PARTS = "x-amz-max-parts"
_MARKER = "x-amz-part-number-marker"

_ATTRIBUTES = frozenset({"ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"})


async def get_object_attributes(call: Call) -> Reply:
    headers = call.request.headers
    wanted = {name for part in headers.get(_WANTED, "").split(",") if (name := part.strip())}
    if not wanted:
        raise S3Error(
            "InvalidRequest",
            f"The {_WANTED} header specifying the attributes to be retrieved is either missing or empty",
        )
    if not wanted <= _ATTRIBUTES:
        raise invalid_argument("Invalid attribute name specified.", _WANTED, headers[_WANTED])
    limit = min(integer(_MAX_PARTS, headers.get(_MAX_PARTS) or str(PAGE)), PAGE)
    marker = integer(_MARKER, headers.get(_MARKER) or "0")
    version_id = call.request.target.get("versionId")
    if version_id is not None and not check_version_id(version_id):
        raise no_such_version(call.key, version_id)
    version = call.objects.lookup(call.bucket, call.key)
    reply = {"Last-Modified": format_http_date(version.modified_ns // 1_000_000_000)}
    if version_id is not None:
        reply["x-amz-version-id"] = version.version_id
    return Reply(
        200,
        reply,
        GetObjectAttributesResponse(
            etag=version.etag if "ETag" in wanted else "",
            checksum=version.checksum if "Checksum" in wanted else None,
            parts=_parts(version, marker, limit) if "ObjectParts" in wanted and version.multipart else None,
            storage_class=version.attributes.headers.get(X_AMZ_STORAGE_CLASS, STANDARD)
            if "StorageClass" in wanted
            else "",
            size=version.size if "ObjectSize" in wanted else None,
        ),
    )


def _parts(version: Version, marker: int, limit: int) -> ObjectParts:
    """Parts count from 1 whatever numbers they were uploaded with, as GetObject's partNumber does."""
    page = version.parts[marker : marker + limit]
    return ObjectParts(len(version.parts), page, marker, limit, marker + len(page) < len(version.parts) and limit > 0)
