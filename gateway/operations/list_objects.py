"""ListObjects and ListObjectsV2. Source: Amazon S3 API Reference."""

from s3verbs.gateway.documents import ListBucketResult, ListBucketV2Result
from s3verbs.gateway.operations.base import Call, Reply
from s3verbs.gateway.operations.buckets import owner_of
from s3verbs.gateway.operations.paging import (
    continuation_marker,
    continuation_token,
    encoding_type,
    page_limit,
)

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
