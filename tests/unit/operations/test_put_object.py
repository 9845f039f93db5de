import hashlib
from typing import Any

import pytest

from s3verbs.gateway.transfer import Ingested
from s3verbs.storage.model import Durability, FilePayload
from tests.unit.operations.endpoint import OTHER, OWNER, Body, Endpoint, MemoryIngest, b64, md5_hex, sha256_b64

DATA = b"0123456789" * 5000


async def test_the_reply_carries_etag_and_the_default_checksum(endpoint: Endpoint) -> None:
    reply = await endpoint.put("key", b"123456789")
    assert (reply.status, reply.document, reply.content) == (200, None, None)
    # The CRC-64/NVME check value of "123456789" is ae8b14860a799888.
    assert reply.headers == {
        "ETag": '"25f9e794323b453885f5181f1b624d0b"',
        "x-amz-checksum-crc64nvme": b64(bytes.fromhex("ae8b14860a799888")),
        "x-amz-checksum-type": "FULL_OBJECT",
    }


async def test_a_claimed_checksum_is_verified_kept_and_returned(endpoint: Endpoint) -> None:
    reply = await endpoint.put("key", DATA, {"x-amz-checksum-sha256": sha256_b64(DATA)})
    assert reply.headers["x-amz-checksum-sha256"] == sha256_b64(DATA)
    assert "x-amz-checksum-crc64nvme" not in reply.headers
    checksum = endpoint.objects.lookup("bucket", "key").checksum
    assert checksum is not None
    assert (checksum.algorithm, checksum.kind) == ("SHA256", "FULL_OBJECT")


async def test_a_wrong_checksum_or_md5_leaves_nothing(endpoint: Endpoint) -> None:
    await endpoint.fails(
        "BadDigest", "PutObject", "bucket", "key", body=b"a", headers={"x-amz-checksum-sha256": sha256_b64(b"b")}
    )
    md5 = b64(hashlib.md5(b"b").digest())
    await endpoint.fails("BadDigest", "PutObject", "bucket", "key", body=b"a", headers={"content-md5": md5})
    await endpoint.fails("InvalidDigest", "PutObject", "bucket", "key", body=b"a", headers={"content-md5": "short"})
    await endpoint.fails("NoSuchKey", "HeadObject", "bucket", "key")


async def test_a_trailing_checksum_is_kept(endpoint: Endpoint) -> None:
    reply = await endpoint.run(
        "PutObject",
        "bucket",
        "key",
        body=b"data",
        headers={"x-amz-trailer": "x-amz-checksum-sha1", "x-amz-sdk-checksum-algorithm": "SHA1"},
        trailers={"x-amz-checksum-sha1": b64(hashlib.sha1(b"data").digest())},
    )
    assert reply.headers["x-amz-checksum-sha1"] == b64(hashlib.sha1(b"data").digest())


async def test_overwriting_replaces_the_bytes(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"first")
    await endpoint.put("key", DATA)
    assert (await endpoint.get("key"))[1] == DATA
    assert isinstance(endpoint.objects.lookup("bucket", "key").parts[0].payload, FilePayload)


async def test_absent_bucket_is_told_before_the_body(endpoint: Endpoint) -> None:
    error = await endpoint.fails("NoSuchBucket", "PutObject", "absent", "key", body=DATA)
    assert error.details == {"BucketName": "absent"}
    assert not endpoint.body_taken()


async def test_if_none_match_star_creates_once(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"first", {"if-none-match": "*"})
    error = await endpoint.fails(
        "PreconditionFailed", "PutObject", "bucket", "key", body=b"second", headers={"if-none-match": "*"}
    )
    assert error.details == {"Condition": "If-None-Match"}
    assert (await endpoint.get("key"))[1] == b"first"


async def test_if_match_replaces_only_the_named_object(endpoint: Endpoint) -> None:
    error = await endpoint.fails("NoSuchKey", "PutObject", "bucket", "key", body=b"x", headers={"if-match": "*"})
    assert error.details == {"Key": "key"}
    await endpoint.put("key", b"first")
    error = await endpoint.fails(
        "PreconditionFailed", "PutObject", "bucket", "key", body=b"x", headers={"if-match": f'"{md5_hex(b"other")}"'}
    )
    assert error.details == {"Condition": "If-Match"}
    await endpoint.put("key", b"second", {"if-match": f'"{md5_hex(b"first")}"'})
    await endpoint.put("key", b"third", {"if-match": md5_hex(b"second")})
    assert (await endpoint.get("key"))[1] == b"third"


async def test_a_refused_conditional_write_leaves_no_payload_file(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"first")
    await endpoint.fails("PreconditionFailed", "PutObject", "bucket", "key", body=DATA, headers={"if-none-match": "*"})
    await endpoint.objects.reclaim()
    assert not endpoint.payloads.disk.files


async def test_keys_beside_and_below_each_other_coexist(endpoint: Endpoint) -> None:
    keys = ["foo", "foo/", "foo/bar", "foo//bar", "foo/../bar", "/foo", "ünï", "a\tb"]
    for key in keys:
        await endpoint.put(key, key.encode())
    for key in keys:
        assert (await endpoint.get(key))[1] == key.encode()


async def test_a_key_has_at_most_1024_bytes(endpoint: Endpoint) -> None:
    await endpoint.put("k" * 1024, b"x")
    await endpoint.put("é" * 512, b"x")
    for name in ("PutObject", "GetObject", "HeadObject", "DeleteObject", "CreateMultipartUpload"):
        error = await endpoint.fails("KeyTooLongError", name, "bucket", "é" * 512 + "x")
        assert error.details == {"Size": "1025", "MaxSizeAllowed": "1024"}


@pytest.mark.parametrize("durability", list(Durability))
async def test_the_buckets_durability_reaches_the_payload(endpoint: Endpoint, durability: Durability) -> None:
    await endpoint.run("CreateBucket", "other", headers={"x-s3verbs-durability": durability.value})
    await endpoint.run("PutObject", "other", "key", body=DATA)
    [file] = endpoint.payloads.disk.files.values()
    assert file.durable is (durability is Durability.STRICT)


async def test_the_etag_in_a_relaxed_bucket_is_no_md5_unless_the_client_sent_one(endpoint: Endpoint) -> None:
    await endpoint.run("CreateBucket", "cache", headers={"x-s3verbs-durability": "relaxed"})
    reply = await endpoint.run("PutObject", "cache", "key", body=b"123456789")
    assert reply.headers["ETag"] == '"ae8b14860a7998880000000000000009-1"'
    claimed = {"content-md5": b64(hashlib.md5(b"123456789").digest())}
    reply = await endpoint.run("PutObject", "cache", "key", body=b"123456789", headers=claimed)
    assert reply.headers["ETag"] == '"25f9e794323b453885f5181f1b624d0b"'


@pytest.mark.parametrize("name", ["PutObject", "CopyObject", "DeleteObjects"])
async def test_a_bucket_that_another_account_made_meanwhile_is_not_touched(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """While the body comes in, another process deletes the bucket and makes it again for another account."""
    await endpoint.objects.create_bucket("source", owner=OWNER.id)
    await endpoint.run("PutObject", "source", "key", body=DATA)

    async def swap() -> None:
        await endpoint.objects.delete_bucket("bucket")
        await endpoint.objects.create_bucket("bucket", owner=OTHER.id)
        await endpoint.put("theirs", b"x")

    ingest, read_document = MemoryIngest.__call__, Body.read_document
    swapping = iter((True,))

    async def slow_ingest(self: MemoryIngest, **options: Any) -> Ingested:
        if next(swapping, False):
            await swap()
        return await ingest(self, **options)

    async def slow_document(self: Body, limit: int, *, checksums: bool = True) -> bytes:
        await swap()
        return await read_document(self, limit, checksums=checksums)

    monkeypatch.setattr(MemoryIngest, "__call__", slow_ingest)
    monkeypatch.setattr(Body, "read_document", slow_document)
    deletion = b"<Delete><Object><Key>theirs</Key></Object></Delete>"
    body, headers = {
        "PutObject": (DATA, {}),
        "CopyObject": (b"", {"x-amz-copy-source": "source/key"}),
        "DeleteObjects": (deletion, {"content-md5": b64(hashlib.md5(deletion).digest())}),
    }[name]
    await endpoint.fails(
        "NoSuchBucket", name, "bucket", "" if name == "DeleteObjects" else "key", body=body, headers=headers
    )
    assert [version.key for version in endpoint.objects.list_objects("bucket").versions] == ["theirs"]
