"""CreateBucket, HeadBucket, DeleteBucket, GetBucketLocation.

Sources: Amazon S3 API Reference; User Guide, "General purpose bucket naming rules".
"""

import re
from collections.abc import Mapping

from s3verbs.gateway.documents import LocationConstraint, Owner
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.headers import X_AMZ_ACL, X_AMZ_BUCKET_REGION
from s3verbs.gateway.http.target import valid_bucket_name
from s3verbs.gateway.operations.base import Call, Reply
from s3verbs.gateway.operations.guard import invalid_argument
from s3verbs.gateway.operations.object_headers import check_canned_acl, has_grants
from s3verbs.gateway.xml.requests import read_create_bucket
from s3verbs.storage.errors import BucketExists
from s3verbs.storage.model import Bucket, Durability

DURABILITY = "x-s3verbs-durability"
"""Our own header: the durability of a bucket, on CreateBucket and HeadBucket."""

REGION_SETTING = "region"
DEFAULT_REGION = "us-east-1"

_DOCUMENT_LIMIT = 64 * 1024

_AWS_REGION = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d|EU", re.ASCII)

_NOT_ENFORCED = frozenset({"BucketOwnerPreferred", "ObjectWriter"})


def region(call: Call) -> str:
    return str(call.settings.get(REGION_SETTING) or DEFAULT_REGION)


def owner_of(bucket: Bucket, call: Call) -> Owner:
    """The owner of the bucket's objects: S3's default, "bucket owner enforced"."""
    return owner(bucket.owner, call)


def owner(identity: str, call: Call) -> Owner:
    name = call.principal.display_name if identity == call.principal.id else identity
    return Owner(identity, name)


def check_bucket_name(name: str) -> None:
    """Raises S3Error InvalidBucketName."""
    if not valid_bucket_name(name):
        raise S3Error("InvalidBucketName", details={"BucketName": name})


async def create_bucket(call: Call) -> Reply:
    """A bucket that exists already: 200 in us-east-1 when it is the caller's, as AWS still answers there for the sake
    of old clients, and BucketAlreadyOwnedByYou in other regions; BucketAlreadyExists when it is another's."""
    headers = call.request.headers
    check_bucket_name(call.bucket)
    _check_access(headers)
    durability = _durability(headers)
    here = region(call)
    body = await call.body.read_document(_DOCUMENT_LIMIT)
    if body:
        _check_location(read_create_bucket(body).location_constraint, here)
    created = Reply(200, {"Location": f"/{call.bucket}"})
    try:
        await call.objects.create_bucket(
            call.bucket, owner=call.principal.id, durability=durability or Durability.STRICT, region=here
        )
    except BucketExists:
        existing = call.objects.bucket(call.bucket)
        if existing.owner != call.principal.id:
            raise S3Error("BucketAlreadyExists", details={"BucketName": call.bucket}) from None
        same = durability is None or durability == existing.durability
        if here != DEFAULT_REGION or not same:
            raise S3Error("BucketAlreadyOwnedByYou", details={"BucketName": call.bucket}) from None
    return created


def _check_access(headers: Mapping[str, str]) -> None:
    if headers.get("x-amz-bucket-object-lock-enabled", "").lower() == "true":
        raise S3Error(
            "NotImplemented",
            "The header x-amz-bucket-object-lock-enabled implies functionality that is not implemented.",
            details={"Header": "x-amz-bucket-object-lock-enabled"},
        )
    ownership = headers.get("x-amz-object-ownership", "BucketOwnerEnforced")
    if ownership in _NOT_ENFORCED:
        raise S3Error(
            "NotImplemented",
            f"The object ownership {ownership} is not implemented; buckets are BucketOwnerEnforced.",
            details={"Header": "x-amz-object-ownership"},
        )
    if ownership != "BucketOwnerEnforced":
        raise invalid_argument("Invalid x-amz-object-ownership header", "x-amz-object-ownership", ownership)
    acl = headers.get(X_AMZ_ACL, "private")
    check_canned_acl(acl)
    if acl != "private" or has_grants(headers):
        raise S3Error("InvalidBucketAclWithObjectOwnership")


def _durability(headers: Mapping[str, str]) -> Durability | None:
    value = headers.get(DURABILITY)
    if value is None:
        return None
    try:
        return Durability(value.lower())
    except ValueError:
        raise invalid_argument(f"The {DURABILITY} header must be strict or relaxed", DURABILITY, value) from None


def _check_location(constraint: str, here: str) -> None:
    if not constraint or constraint == here:
        return
    if not _AWS_REGION.fullmatch(constraint):
        raise S3Error("InvalidLocationConstraint", details={"LocationConstraint": constraint})
    raise S3Error(
        "IllegalLocationConstraintException",
        f"The {constraint} location constraint is incompatible for the region specific endpoint this request was "
        "sent to.",
    )


async def head_bucket(call: Call) -> Reply:
    bucket = call.objects.bucket(call.bucket)
    return Reply(
        200,
        {
            X_AMZ_BUCKET_REGION: bucket.region or region(call),
            "x-amz-access-point-alias": "false",
            DURABILITY: bucket.durability.value,
        },
    )


async def delete_bucket(call: Call) -> Reply:
    await call.objects.delete_bucket(call.objects.bucket(call.bucket))
    return Reply(204)


async def get_bucket_location(call: Call) -> Reply:
    bucket = call.objects.bucket(call.bucket)
    return Reply(document=LocationConstraint(bucket.region or region(call)))
