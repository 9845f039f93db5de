"""Who may do what, and in whose buckets."""

import pytest

from s3verbs.gateway.auth.authorizer import Authorizer
from s3verbs.gateway.auth.principal import ANONYMOUS, ROOT_ACCOUNT, Principal
from s3verbs.gateway.errors import S3Error
from s3verbs.storage.errors import BucketNotFound
from s3verbs.storage.model import Bucket

ROOT = Principal(ROOT_ACCOUNT, "root", "ROOTKEY")
ALICE = Principal("alice", "alice", "ALICEKEY")
BOB = Principal("bob", "bob", "BOBKEY")


class Buckets:
    """Every bucket is owned by the account that its name starts with; counts look-ups."""

    def __init__(self) -> None:
        self.read = 0

    def __call__(self, name: str) -> Bucket:
        self.read += 1
        if name == "absent":
            raise BucketNotFound(name)
        return Bucket(name, bytes(8), 0, name.partition("-")[0])


def allowed(principal: Principal, action: str, bucket: str = "", key: str = "") -> bool:
    try:
        Authorizer(Buckets()).check(principal, action, bucket, key)
    except S3Error as error:
        if error.code != "AccessDenied":
            raise
        return False
    return True


@pytest.mark.parametrize(
    "action", ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket", "s3:DeleteBucket", "s3:PutBucketAcl"]
)
def test_a_bucket_is_for_its_owner_and_the_root_account(action: str) -> None:
    assert [allowed(who, action, "alice-bucket", "key") for who in (ROOT, ALICE, BOB, ANONYMOUS)] == [
        True,
        True,
        False,
        False,
    ]


def test_a_bucket_of_the_root_account_is_closed_to_others() -> None:
    assert [allowed(who, "s3:GetObject", "root-bucket", "key") for who in (ROOT, ALICE)] == [True, False]


def test_every_account_may_list_its_buckets_and_try_to_create_one() -> None:
    for who, may in ((ROOT, True), (BOB, True), (ANONYMOUS, False)):
        assert allowed(who, "s3:ListAllMyBuckets") is may
        assert allowed(who, "s3:CreateBucket", "alice-bucket") is may


def test_a_bucket_that_is_not_there_is_left_to_the_operation() -> None:
    assert allowed(BOB, "s3:GetObject", "absent", "key")
    assert not allowed(ANONYMOUS, "s3:GetObject", "absent", "key")


def test_the_root_account_costs_no_look_up() -> None:
    buckets = Buckets()
    Authorizer(buckets).check(ROOT, "s3:GetObject", "alice-bucket", "key")
    assert buckets.read == 0
    Authorizer(buckets).check(ALICE, "s3:GetObject", "alice-bucket", "key")
    assert buckets.read == 1
