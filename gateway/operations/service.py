"""ListBuckets. Source: Amazon S3 API Reference, ListBuckets."""

from s3verbs.gateway.auth.principal import ROOT_ACCOUNT
from s3verbs.gateway.documents import ListAllMyBucketsResult, Owner
from s3verbs.gateway.operations.base import Call, Reply
from s3verbs.gateway.operations.guard import invalid_argument
from s3verbs.gateway.operations.paging import continuation_marker, continuation_token, page_limit

MAX_BUCKETS = 10_000

_LISTING = "buckets"


async def list_buckets(call: Call) -> Reply:
    """The account's buckets, whichever of its keys signed; the root account sees those of all accounts."""
    target = call.request.target
    limit = page_limit(target, "max-buckets", maximum=MAX_BUCKETS)
    if not limit:
        raise invalid_argument(
            f"Argument max-buckets must be an integer between 1 and {MAX_BUCKETS}", "max-buckets", "0"
        )
    prefix = target.get("prefix") or ""
    token = target.get("continuation-token")
    start_after = continuation_marker(_LISTING, token) if token else ""
    account = call.principal.id
    owner = "" if account == ROOT_ACCOUNT else account
    found, truncated = call.objects.buckets(prefix, start_after, limit, owner=owner)
    return Reply(
        document=ListAllMyBucketsResult(
            owner=Owner(account, call.principal.display_name),
            buckets=found,
            prefix=prefix,
            continuation_token=continuation_token(_LISTING, found[-1].name) if truncated else "",
        )
    )
