import hashlib
from typing import Any
from xml.sax.saxutils import escape

from s3verbs.gateway.documents import Deleted
from tests.unit.operations.endpoint import Endpoint, b64, md5_hex, sha256_b64


def document(*keys: str, quiet: bool = False, extra: str = "") -> bytes:
    objects = "".join(f"<Object><Key>{escape(key)}</Key>{extra}</Object>" for key in keys)
    return f"<Delete>{'<Quiet>true</Quiet>' if quiet else ''}{objects}</Delete>".encode()


def signed(body: bytes) -> dict[str, str]:
    return {"content-md5": b64(hashlib.md5(body).digest())}


async def delete(endpoint: Endpoint, body: bytes) -> Any:
    return (await endpoint.run("DeleteObjects", "bucket", body=body, headers=signed(body))).document


async def test_deleting_an_object_or_nothing_is_204(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    for _ in range(2):
        reply = await endpoint.run("DeleteObject", "bucket", "key")
        assert (reply.status, reply.headers, reply.document) == (204, {}, None)
    await endpoint.fails("NoSuchKey", "GetObject", "bucket", "key")
    error = await endpoint.fails("NoSuchBucket", "DeleteObject", "absent", "key")
    assert error.details == {"BucketName": "absent"}


async def test_if_match_guards_a_delete(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    error = await endpoint.fails("PreconditionFailed", "DeleteObject", "bucket", "key", headers={"if-match": '"no"'})
    assert error.details == {"Condition": "If-Match"}
    await endpoint.run("DeleteObject", "bucket", "key", headers={"if-match": f'"{md5_hex(b"x")}"'})
    await endpoint.fails("NoSuchKey", "HeadObject", "bucket", "key")


async def test_conditions_of_directory_buckets_are_not_ignored(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    await endpoint.fails("NotImplemented", "DeleteObject", "bucket", "key", headers={"x-amz-if-match-size": "1"})
    await endpoint.get("key")


async def test_deleting_the_null_version_deletes_and_another_version_is_not_there(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    reply = await endpoint.run("DeleteObject", "bucket", "key", query=[("versionId", "a" * 32)])
    assert (reply.status, reply.headers) == (204, {"x-amz-version-id": "a" * 32})
    await endpoint.get("key")
    await endpoint.fails("InvalidArgument", "DeleteObject", "bucket", "key", query=[("versionId", "bad")])
    await endpoint.run("DeleteObject", "bucket", "key", query=[("versionId", "null")])
    await endpoint.fails("NoSuchKey", "HeadObject", "bucket", "key")


async def test_many_are_deleted_and_absent_ones_count_as_deleted(endpoint: Endpoint) -> None:
    for key in ("a", "b&c", "kept"):
        await endpoint.put(key, b"x")
    result = await delete(endpoint, document("a", "b&c", "absent"))
    assert list(result.deleted) == [Deleted("a"), Deleted("b&c"), Deleted("absent")]
    assert not result.errors
    listing = (await endpoint.run("ListObjectsV2", "bucket")).document
    assert [version.key for version in listing.versions] == ["kept"]


async def test_quiet_lists_only_errors(endpoint: Endpoint) -> None:
    await endpoint.put("a", b"x")
    result = await delete(endpoint, document("a", "é" * 600, quiet=True))
    assert not result.deleted
    assert [(error.key, error.code) for error in result.errors] == [("é" * 600, "KeyTooLongError")]


async def test_each_key_has_its_own_condition(endpoint: Endpoint) -> None:
    await endpoint.put("a", b"a")
    await endpoint.put("b", b"b")
    result = await delete(endpoint, document("a", "b", extra=f'<ETag>"{md5_hex(b"a")}"</ETag>'))
    assert list(result.deleted) == [Deleted("a")]
    assert [(error.key, error.code) for error in result.errors] == [("b", "PreconditionFailed")]
    assert (await endpoint.get("b"))[1] == b"b"


async def test_versions_of_each_key(endpoint: Endpoint) -> None:
    await endpoint.put("a", b"a")
    unknown = "v" * 32
    result = await delete(endpoint, document("a", extra=f"<VersionId>{unknown}</VersionId>"))
    assert list(result.deleted) == [Deleted("a", unknown)]
    result = await delete(endpoint, document("a", extra="<VersionId>bad</VersionId>"))
    assert [(error.code, error.version_id) for error in result.errors] == [("NoSuchVersion", "bad")]
    assert (await endpoint.get("a"))[1] == b"a"
    await delete(endpoint, document("a", extra="<VersionId>null</VersionId>"))
    await endpoint.fails("NoSuchKey", "HeadObject", "bucket", "a")


async def test_a_thousand_keys_at_most(endpoint: Endpoint) -> None:
    keys = [f"key-{number}" for number in range(1001)]
    body = document(*keys)
    await endpoint.fails("MalformedXML", "DeleteObjects", "bucket", body=body, headers=signed(body))
    result = await delete(endpoint, document(*keys[:1000]))
    assert len(result.deleted) == 1000
    body = document()
    await endpoint.fails("MalformedXML", "DeleteObjects", "bucket", body=body, headers=signed(body))


async def test_the_document_must_be_vouched_for(endpoint: Endpoint) -> None:
    body = document("a")
    error = await endpoint.fails("InvalidRequest", "DeleteObjects", "bucket", body=body)
    assert error.message == "Missing required header for this request: Content-MD5"
    assert not endpoint.body_taken()
    await endpoint.run("DeleteObjects", "bucket", body=body, headers={"x-amz-checksum-sha256": sha256_b64(body)})
    await endpoint.run(
        "DeleteObjects",
        "bucket",
        body=body,
        headers={"x-amz-trailer": "x-amz-checksum-sha256"},
        trailers={"x-amz-checksum-sha256": sha256_b64(body)},
    )
    wrong = {"content-md5": b64(hashlib.md5(b"other").digest())}
    await endpoint.fails("BadDigest", "DeleteObjects", "bucket", body=body, headers=wrong)


async def test_absent_bucket_and_oversized_document(endpoint: Endpoint) -> None:
    body = document("a")
    await endpoint.fails("NoSuchBucket", "DeleteObjects", "absent", body=body, headers=signed(body))
    body = b" " * ((8 << 20) + 1)
    await endpoint.fails("MaxMessageLengthExceeded", "DeleteObjects", "bucket", body=body, headers=signed(body))
