import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.operations.buckets import check_bucket_name
from s3verbs.storage.model import Durability
from tests.unit.operations.endpoint import OTHER, OWNER, Endpoint

CONFIGURATION = (
    b'<CreateBucketConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    b"<LocationConstraint>%s</LocationConstraint></CreateBucketConfiguration>"
)


async def test_create_answers_with_its_location_and_the_bucket_is_strict(endpoint: Endpoint) -> None:
    reply = await endpoint.run("CreateBucket", "made")
    assert (reply.status, reply.headers, reply.document) == (200, {"Location": "/made"}, None)
    bucket = endpoint.objects.bucket("made")
    assert (bucket.owner, bucket.durability, bucket.region) == (OWNER.id, Durability.STRICT, "us-east-1")


async def test_our_header_makes_a_relaxed_bucket_and_head_bucket_tells(endpoint: Endpoint) -> None:
    await endpoint.run("CreateBucket", "cache", headers={"x-s3verbs-durability": "relaxed"})
    head = await endpoint.run("HeadBucket", "cache")
    assert head.headers["x-s3verbs-durability"] == "relaxed"
    assert head.headers["x-amz-bucket-region"] == "us-east-1"
    error = await endpoint.fails("InvalidArgument", "CreateBucket", "other", headers={"x-s3verbs-durability": "lax"})
    assert "strict or relaxed" in error.message


async def test_recreating_ones_own_bucket_succeeds_in_us_east_1_and_keeps_its_objects(endpoint: Endpoint) -> None:
    await endpoint.put("kept", b"data")
    assert (await endpoint.run("CreateBucket", "bucket")).status == 200
    assert (await endpoint.get("kept"))[1] == b"data"


async def test_recreating_with_another_durability_is_refused(endpoint: Endpoint) -> None:
    await endpoint.fails(
        "BucketAlreadyOwnedByYou", "CreateBucket", "bucket", headers={"x-s3verbs-durability": "relaxed"}
    )


async def test_recreating_ones_own_bucket_in_another_region_is_a_conflict() -> None:
    endpoint = Endpoint(settings={"region": "eu-central-1"})
    await endpoint.run("CreateBucket", "bucket")
    error = await endpoint.fails("BucketAlreadyOwnedByYou", "CreateBucket", "bucket")
    assert error.status == 409
    assert error.details == {"BucketName": "bucket"}


async def test_anothers_bucket_is_a_conflict(endpoint: Endpoint) -> None:
    error = await endpoint.fails("BucketAlreadyExists", "CreateBucket", "bucket", principal=OTHER)
    assert error.status == 409


async def test_location_constraint_must_be_the_endpoints_region() -> None:
    endpoint = Endpoint(settings={"region": "eu-central-1"})
    await endpoint.run("CreateBucket", "named", body=CONFIGURATION % b"eu-central-1")
    await endpoint.run("CreateBucket", "unnamed")
    error = await endpoint.fails(
        "IllegalLocationConstraintException", "CreateBucket", "far", body=CONFIGURATION % b"us-west-2"
    )
    assert error.message.startswith("The us-west-2 location constraint is incompatible")
    await endpoint.fails("InvalidLocationConstraint", "CreateBucket", "nowhere", body=CONFIGURATION % b"moon")
    await endpoint.fails("MalformedXML", "CreateBucket", "broken", body=b"<CreateBucketConfiguration>")
    location = await endpoint.run("GetBucketLocation", "named")
    assert location.document.region == "eu-central-1"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"x-amz-bucket-object-lock-enabled": "true"}, "NotImplemented"),
        ({"x-amz-acl": "public-read"}, "InvalidBucketAclWithObjectOwnership"),
        ({"x-amz-acl": "nonsense"}, "InvalidArgument"),
        ({"x-amz-grant-read": "id=1"}, "InvalidBucketAclWithObjectOwnership"),
        ({"x-amz-object-ownership": "ObjectWriter"}, "NotImplemented"),
        ({"x-amz-object-ownership": "Mine"}, "InvalidArgument"),
    ],
)
async def test_what_a_bucket_cannot_be_is_refused(endpoint: Endpoint, headers: dict[str, str], code: str) -> None:
    await endpoint.fails(code, "CreateBucket", "refused", headers=headers)
    await endpoint.fails("NoSuchBucket", "HeadBucket", "refused")


async def test_harmless_headers_are_accepted(endpoint: Endpoint) -> None:
    headers = {
        "x-amz-bucket-object-lock-enabled": "false",
        "x-amz-acl": "private",
        "x-amz-object-ownership": "BucketOwnerEnforced",
    }
    await endpoint.run("CreateBucket", "plain", headers=headers)


@pytest.mark.parametrize("name", ["abc", "a-b", "1.2.3", "my.bucket.name", "a" * 63, "0-9", "1.2.3.a"])
def test_valid_bucket_names(name: str) -> None:
    check_bucket_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "ab",
        "a" * 64,
        "Abc",
        "a_b",
        "-abc",
        "abc-",
        "a..b",
        "a.-b",
        "a-.b",
        ".abc",
        "abc.",
        "192.168.5.4",
        "xn--abc",
        "sthree-abc",
        "abc-s3alias",
        "abc--ol-s3",
        "abc.mrap",
        "abc--x-s3",
        "café",
        "a b",
        "abc\n",
    ],
)
async def test_invalid_bucket_names(endpoint: Endpoint, name: str) -> None:
    error = await endpoint.fails("InvalidBucketName", "CreateBucket", name)
    assert error.details == {"BucketName": name}


@given(st.text(alphabet="ab1.-_A", max_size=66))
def test_accepted_names_obey_the_rules(name: str) -> None:
    try:
        check_bucket_name(name)
    except S3Error:
        return
    assert 3 <= len(name) <= 63
    assert set(name) <= set("ab1.-")
    for label in name.split("."):
        assert label
        assert label[0] != "-"
        assert label[-1] != "-"


async def test_delete_bucket_needs_it_empty(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    error = await endpoint.fails("BucketNotEmpty", "DeleteBucket", "bucket")
    assert error.details == {"BucketName": "bucket"}
    await endpoint.run("DeleteObject", "bucket", "key")
    reply = await endpoint.run("DeleteBucket", "bucket")
    assert (reply.status, reply.document) == (204, None)
    error = await endpoint.fails("NoSuchBucket", "DeleteBucket", "bucket")
    assert error.details == {"BucketName": "bucket"}


@pytest.mark.parametrize(
    "name", ["HeadBucket", "GetBucketLocation", "ListObjects", "ListObjectsV2", "ListMultipartUploads"]
)
async def test_reading_an_absent_bucket_names_it(endpoint: Endpoint, name: str) -> None:
    error = await endpoint.fails("NoSuchBucket", name, "absent")
    assert error.details == {"BucketName": "absent"}


@pytest.mark.parametrize("name", ["HeadBucket", "GetBucketLocation", "ListObjects", "DeleteBucket"])
async def test_expected_bucket_owner_is_compared(endpoint: Endpoint, name: str) -> None:
    await endpoint.fails("AccessDenied", name, "bucket", headers={"x-amz-expected-bucket-owner": "someone"})
    await endpoint.run(name, "bucket", headers={"x-amz-expected-bucket-owner": OWNER.id})
