import pytest

from s3verbs.gateway.documents import Owner, OwnerFullControl
from tests.unit.operations.endpoint import OTHER, Endpoint


@pytest.fixture
async def filled(endpoint: Endpoint) -> Endpoint:
    await endpoint.put("key", b"x")
    return endpoint


def policy(*grants: tuple[str, str], owner: str = "owner-id") -> bytes:
    listed = "".join(
        f"<Grant><Grantee><ID>{grantee}</ID></Grantee><Permission>{permission}</Permission></Grant>"
        for grantee, permission in grants
    )
    return (
        f"<AccessControlPolicy><Owner><ID>{owner}</ID></Owner><AccessControlList>{listed}</AccessControlList>"
        "</AccessControlPolicy>"
    ).encode()


async def test_the_owner_has_full_control_of_buckets_and_objects(filled: Endpoint) -> None:
    expected = OwnerFullControl(Owner("owner-id", "owner"))
    assert (await filled.run("GetBucketAcl", "bucket")).document == expected
    assert (await filled.run("GetObjectAcl", "bucket", "key")).document == expected
    reply = await filled.run("GetObjectAcl", "bucket", "key", query=[("versionId", "null")])
    assert reply.headers == {"x-amz-version-id": "null"}


@pytest.mark.parametrize("name", ["GetObjectAcl", "PutObjectAcl"])
async def test_an_object_must_be_there(filled: Endpoint, name: str) -> None:
    headers = {"x-amz-acl": "private"}
    await filled.fails("NoSuchKey", name, "bucket", "absent", headers=headers)
    await filled.fails("NoSuchBucket", name, "absent", "key", headers=headers)
    query = [("versionId", "a" * 32)]
    await filled.fails("NoSuchVersion", name, "bucket", "key", query=query, headers=headers)


@pytest.mark.parametrize("name", ["GetBucketAcl", "PutBucketAcl"])
async def test_a_bucket_must_be_there(filled: Endpoint, name: str) -> None:
    await filled.fails("NoSuchBucket", name, "absent", headers={"x-amz-acl": "private"})


@pytest.mark.parametrize(("name", "key"), [("PutBucketAcl", ""), ("PutObjectAcl", "key")])
async def test_asking_for_what_is_so_succeeds_and_for_anything_else_is_refused(
    filled: Endpoint, name: str, key: str
) -> None:
    for headers, body in (
        ({"x-amz-acl": "private"}, b""),
        ({}, policy(("owner-id", "FULL_CONTROL"))),
        ({}, policy(("owner-id", "FULL_CONTROL"), owner="")),
    ):
        reply = await filled.run(name, "bucket", key, headers=headers, body=body)
        assert (reply.status, reply.document) == (200, None)
    for code, headers, body in (
        ("AccessControlListNotSupported", {"x-amz-acl": "public-read"}, b""),
        ("AccessControlListNotSupported", {"x-amz-grant-read": "id=other-id"}, b""),
        ("AccessControlListNotSupported", {"x-amz-acl": "private", "x-amz-grant-read": "id=other-id"}, b""),
        ("AccessControlListNotSupported", {}, policy()),
        ("AccessControlListNotSupported", {}, policy(("owner-id", "READ"))),
        ("AccessControlListNotSupported", {}, policy(("other-id", "FULL_CONTROL"))),
        ("AccessControlListNotSupported", {}, policy(("owner-id", "FULL_CONTROL"), ("other-id", "READ"))),
        ("AccessControlListNotSupported", {}, policy(("owner-id", "FULL_CONTROL"), owner="other-id")),
        ("InvalidArgument", {"x-amz-acl": "public"}, b""),
        ("UnexpectedContent", {"x-amz-acl": "private"}, policy(("owner-id", "FULL_CONTROL"))),
        ("MissingSecurityHeader", {}, b""),
        ("MalformedACLError", {}, b"<AccessControlPolicy/>"),
    ):
        await filled.fails(code, name, "bucket", key, headers=headers, body=body)


async def test_the_owner_is_the_bucket_s_whoever_asks(filled: Endpoint) -> None:
    document = (await filled.run("GetBucketAcl", "bucket", principal=OTHER)).document
    assert document == OwnerFullControl(Owner("owner-id", "owner-id"))
