"""What a principal may do. Called once per request, after routing, and once more for the source of a copy."""

from collections.abc import Callable

from s3verbs.gateway.auth.principal import ROOT_ACCOUNT, Principal
from s3verbs.gateway.errors import S3Error
from s3verbs.storage.errors import BucketNotFound
from s3verbs.storage.model import Bucket

_OF_NO_BUCKET = frozenset({"s3:CreateBucket", "s3:ListAllMyBuckets"})
"""Actions that every account has: what they find of other accounts is for the operation to judge."""


class Authorizer:
    """A bucket belongs to the account that made it. That account and the root account may do everything in it, other
    accounts and anonymous callers nothing."""

    def __init__(self, bucket: Callable[[str], Bucket]) -> None:
        """`bucket` gives a bucket by its name, or raises BucketNotFound."""
        self._bucket = bucket

    def check(self, principal: Principal, action: str, bucket: str, key: str) -> None:
        """`action` is IAM's (`s3:GetObject`); `bucket` and `key` are "" where there is none.

        A bucket that does not exist is not denied: the operation says NoSuchBucket, as AWS does to everyone who signs.
        Raises S3Error AccessDenied.
        """
        if principal.anonymous:
            raise S3Error("AccessDenied")
        if principal.id == ROOT_ACCOUNT or not bucket or action in _OF_NO_BUCKET:
            return
        try:
            owner = self._bucket(bucket).owner
        except BucketNotFound:
            return
        if owner != principal.id:
            raise S3Error("AccessDenied")
