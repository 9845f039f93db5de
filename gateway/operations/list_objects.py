"""ListObjects, ListObjectsV2 and ListObjectVersions. Source: Amazon S3 API Reference."""

from s3verbs.gateway.documents import ListBucketResult, ListBucketV2Result, ListVersionsResult
from s3verbs.gateway.operations.base import Call, Reply
from s3verbs.gateway.operations.buckets import owner_of
from s3verbs.gateway.operations.guard import check_version_id, invalid_argument
from s3verbs.gateway.operations.paging import (
    continuation_marker,
    continuation_token,
    encoding_type,
    page_limit,
)
from s3verbs.storage.model import NULL_VERSION

_LISTING = "objects"


async def list_objects(call: Call) -> Reply:
    target = call.request.target
    limit = page_limit(target, "max-keys")
    encoding = encoding_type(target)
    prefix = target.get("prefix") or ""
    delimiter = target.get("delimiter") or ""
    marker = target.get("marker") or ""
    bucket = call.objects.bucket(call.bucket)
    page = call.objects.list_objects(call.bucket, prefix=prefix, delimiter=delimiter, start_after=marker, limit=limit)
    return Reply(
        document=ListBucketResult(
            name=call.bucket,
            prefix=prefix,
            marker=marker,
            delimiter=delimiter,
            max_keys=limit,
            truncated=page.truncated,
            # Without a delimiter AWS gives none: the last key of the page is the next marker.
            next_marker=page.next_marker if delimiter and page.truncated else "",
            versions=page.versions,
            common_prefixes=page.common_prefixes,
            owner=owner_of(bucket, call),
            encoding_type=encoding,
        )
    )


async def list_objects_v2(call: Call) -> Reply:
    target = call.request.target
    limit = page_limit(target, "max-keys")
    encoding = encoding_type(target)
    prefix = target.get("prefix") or ""
    delimiter = target.get("delimiter") or ""
    start_after = target.get("start-after") or ""
    token = target.get("continuation-token")
    # With a token, start-after is only echoed.
    after = continuation_marker(_LISTING, token) if token else start_after
    fetch_owner = target.get("fetch-owner") == "true"
    bucket = call.objects.bucket(call.bucket) if fetch_owner else None
    page = call.objects.list_objects(call.bucket, prefix=prefix, delimiter=delimiter, start_after=after, limit=limit)
    return Reply(
        document=ListBucketV2Result(
            name=call.bucket,
            prefix=prefix,
            delimiter=delimiter,
            max_keys=limit,
            key_count=len(page.versions) + len(page.common_prefixes),
            truncated=page.truncated,
            continuation_token=token or "",
            next_continuation_token=continuation_token(_LISTING, page.next_marker) if page.truncated else "",
            start_after=start_after,
            versions=page.versions,
            common_prefixes=page.common_prefixes,
            owner=owner_of(bucket, call) if bucket else None,
            encoding_type=encoding,
            continuation_given=token is not None,
        )
    )


async def list_object_versions(call: Call) -> Reply:
    """No bucket is versioned, so each object is one version, "null" and the latest: a page that begins after any
    version of a key begins after the key."""
    target = call.request.target
    limit = page_limit(target, "max-keys")
    encoding = encoding_type(target)
    prefix = target.get("prefix") or ""
    delimiter = target.get("delimiter") or ""
    key_marker = target.get("key-marker") or ""
    version_id_marker = target.get("version-id-marker") or ""
    if version_id_marker:
        if not key_marker:
            raise invalid_argument(
                "A version-id marker cannot be specified without a key marker.", "version-id-marker", version_id_marker
            )
        check_version_id(version_id_marker)
    bucket = call.objects.bucket(call.bucket)
    page = call.objects.list_objects(
        call.bucket, prefix=prefix, delimiter=delimiter, start_after=key_marker, limit=limit
    )
    ends_in_version = bool(page.versions) and page.versions[-1].key == page.next_marker
    return Reply(
        document=ListVersionsResult(
            name=call.bucket,
            prefix=prefix,
            key_marker=key_marker,
            version_id_marker=version_id_marker,
            delimiter=delimiter,
            max_keys=limit,
            truncated=page.truncated,
            next_key_marker=page.next_marker,
            next_version_id_marker=NULL_VERSION if ends_in_version else "",
            versions=page.versions,
            common_prefixes=page.common_prefixes,
            owner=owner_of(bucket, call),
            encoding_type=encoding,
        )
    )
