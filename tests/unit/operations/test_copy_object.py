from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.operations import copy_object
from s3verbs.gateway.operations.copy_source import parse_copy_source
from s3verbs.storage.model import Version
from s3verbs.storage.objects import ObjectReader
from tests.unit.operations.endpoint import OTHER, SECOND, START_DATE, Endpoint, md5_hex, sha256_b64

DATA = bytes(range(256)) * 1000


async def copy(endpoint: Endpoint, source: str, key: str, **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    reply = await endpoint.run("CopyObject", "bucket", key, headers={"x-amz-copy-source": source, **named})
    return reply.document


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bucket/key", ("bucket", "key")),
        ("/bucket/key", ("bucket", "key")),
        ("bucket//key", ("bucket", "/key")),
        ("bucket/a/b%20c+d", ("bucket", "a/b c+d")),
        ("bucket%2Fkey", ("bucket", "key")),
        ("%2Fbucket%2Fkey", ("bucket", "key")),
        ("bucket/%3FversionId", ("bucket", "?versionId")),
        ("bucket/a%25.txt", ("bucket", "a%.txt")),
        ("bucket/gr%C3%BC%C3%9Fe", ("bucket", "grüße")),
        ("bucket/grüße", ("bucket", "grüße")),
        ("bucket/key?versionId=null", ("bucket", "key")),
    ],
)
def test_copy_sources(header: str, expected: tuple[str, str]) -> None:
    source = parse_copy_source(header)
    assert (source.bucket, source.key) == expected


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("", "InvalidArgument"),
        ("bucket", "InvalidArgument"),
        ("bucket/", "InvalidArgument"),
        ("/", "InvalidArgument"),
        ("//key", "InvalidArgument"),
        ("bucket/%ff", "InvalidArgument"),
        ("bucket/key?versionId=bad", "InvalidArgument"),
        ("bucket/key?versionId=", "InvalidArgument"),
        (f"bucket/key?versionId={'a' * 32}", "NoSuchVersion"),
    ],
)
def test_bad_copy_sources(header: str, code: str) -> None:
    with pytest.raises(S3Error) as caught:
        parse_copy_source(header)
    assert caught.value.code == code


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",)), min_size=1), st.booleans())
def test_any_key_survives_its_encoding(key: str, slash: bool) -> None:
    source = parse_copy_source(f"{'/' if slash else ''}bucket/{quote(key, safe='/~')}")
    assert (source.bucket, source.key) == ("bucket", key)


async def test_a_copy_has_the_bytes_and_its_own_time(endpoint: Endpoint) -> None:
    for key, data in (("empty", b""), ("small", b"123"), ("large", DATA)):
        await endpoint.put(key, data)
        endpoint.now += SECOND
        document = await copy(endpoint, f"/bucket/{key}", "made")
        assert (document.etag, document.last_modified_ns) == (md5_hex(data), endpoint.now)
        assert (await endpoint.get("made"))[1] == data


async def test_between_buckets(endpoint: Endpoint) -> None:
    await endpoint.run("CreateBucket", "other", headers={"x-s3verbs-durability": "relaxed"})
    await endpoint.put("key", DATA)
    await endpoint.run("CopyObject", "other", "key", headers={"x-amz-copy-source": "bucket/key"})
    assert [file.durable for file in endpoint.payloads.disk.files.values()] == [True, False]


FIRST = {
    "content-type": "audio/ogg",
    "cache-control": "no-cache",
    "x-amz-meta-one": "1",
    "x-amz-tagging": "a=1",
    "x-amz-storage-class": "STANDARD_IA",
    "x-amz-website-redirect-location": "/x",
}


async def test_metadata_and_tags_are_kept_by_default(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x", FIRST)
    await copy(endpoint, "bucket/key", "made", content_type="ignored/type", x_amz_meta_two="ignored")
    attributes = endpoint.objects.lookup("bucket", "made").attributes
    assert dict(attributes.headers) == {"content-type": "audio/ogg", "cache-control": "no-cache"}
    assert dict(attributes.metadata) == {"one": "1"}
    assert dict(attributes.tags) == {"a": "1"}


async def test_storage_class_and_redirect_come_from_the_request(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x", FIRST)
    await copy(endpoint, "bucket/key", "made", x_amz_storage_class="GLACIER_IR", x_amz_website_redirect_location="/y")
    headers = endpoint.objects.lookup("bucket", "made").attributes.headers
    assert headers["x-amz-storage-class"] == "GLACIER_IR"
    assert headers["x-amz-website-redirect-location"] == "/y"
    assert headers["content-type"] == "audio/ogg"


async def test_replace_takes_everything_from_the_request(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x", FIRST)
    await copy(
        endpoint,
        "bucket/key",
        "made",
        x_amz_metadata_directive="REPLACE",
        x_amz_meta_two="2",
        content_type="audio/mpeg",
    )
    attributes = endpoint.objects.lookup("bucket", "made").attributes
    assert dict(attributes.headers) == {"content-type": "audio/mpeg"}
    assert dict(attributes.metadata) == {"two": "2"}
    assert dict(attributes.tags) == {"a": "1"}


async def test_tags_have_their_own_directive(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x", FIRST)
    await copy(endpoint, "bucket/key", "made", x_amz_tagging_directive="REPLACE", x_amz_tagging="b=2")
    attributes = endpoint.objects.lookup("bucket", "made").attributes
    assert dict(attributes.tags) == {"b": "2"}
    assert dict(attributes.metadata) == {"one": "1"}


@pytest.mark.parametrize("header", ["x-amz-metadata-directive", "x-amz-tagging-directive"])
async def test_unknown_directives_are_refused(endpoint: Endpoint, header: str) -> None:
    await endpoint.put("key", b"x")
    error = await endpoint.fails(
        "InvalidArgument", "CopyObject", "bucket", "m", headers={"x-amz-copy-source": "bucket/key", header: "MERGE"}
    )
    assert error.message.startswith("Unknown ")


async def test_a_copy_onto_itself_must_change_something(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x", FIRST)
    for unchanged in ({}, {"x-amz-storage-class": "STANDARD_IA"}, {"x-amz-checksum-algorithm": "CRC64NVME"}):
        headers = {"x-amz-copy-source": "bucket/key", **unchanged}
        error = await endpoint.fails("InvalidRequest", "CopyObject", "bucket", "key", headers=headers)
        assert error.message.startswith("This copy request is illegal because it is trying to copy an object to itself")
    for change in (
        {"x-amz-metadata-directive": "REPLACE", "x-amz-meta-foo": "bar", "x-amz-storage-class": "STANDARD_IA"},
        {"x-amz-storage-class": "STANDARD"},
        {"x-amz-checksum-algorithm": "SHA256"},
        {"x-amz-website-redirect-location": "/z"},
    ):
        await endpoint.run("CopyObject", "bucket", "key", headers={"x-amz-copy-source": "bucket/key", **change})
    assert (await endpoint.get("key"))[1] == b"x"
    assert endpoint.objects.lookup("bucket", "key").checksum.algorithm == "SHA256"


async def test_the_checksum_keeps_its_algorithm_unless_another_is_asked_for(endpoint: Endpoint) -> None:
    await endpoint.put("key", DATA, {"x-amz-checksum-sha256": sha256_b64(DATA)})
    document = await copy(endpoint, "bucket/key", "made")
    assert (document.checksum.algorithm, document.checksum.value) == ("SHA256", sha256_b64(DATA))
    document = await copy(endpoint, "bucket/key", "made", x_amz_checksum_algorithm="crc32c")
    assert (document.checksum.algorithm, document.checksum.kind) == ("CRC32C", "FULL_OBJECT")
    headers = {"x-amz-copy-source": "bucket/key", "x-amz-checksum-algorithm": "MD4"}
    await endpoint.fails("InvalidRequest", "CopyObject", "bucket", "made", headers=headers)


async def test_source_conditions(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    etag = f'"{md5_hex(b"x")}"'
    for condition in (
        {"x-amz-copy-source-if-match": "other"},
        {"x-amz-copy-source-if-none-match": etag},
        {"x-amz-copy-source-if-modified-since": START_DATE},
        {"x-amz-copy-source-if-unmodified-since": "Tue, 14 Nov 2023 22:13:19 GMT"},
    ):
        headers = {"x-amz-copy-source": "bucket/key", **condition}
        await endpoint.fails("PreconditionFailed", "CopyObject", "bucket", "made", headers=headers)
    await copy(endpoint, "bucket/key", "made", x_amz_copy_source_if_match=etag)


async def test_destination_conditions(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    await endpoint.put("made", b"y")
    headers = {"x-amz-copy-source": "bucket/key", "if-none-match": "*"}
    await endpoint.fails("PreconditionFailed", "CopyObject", "bucket", "made", headers=headers)
    await copy(endpoint, "bucket/key", "made", if_match=f'"{md5_hex(b"y")}"')
    assert (await endpoint.get("made"))[1] == b"x"


async def test_errors_name_the_side_they_are_about(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    for bucket, source, code, details in (
        ("bucket", "bucket/absent", "NoSuchKey", {"Key": "absent"}),
        ("bucket", "gone/key", "NoSuchBucket", {"BucketName": "gone"}),
        ("target", "bucket/key", "NoSuchBucket", {"BucketName": "target"}),
    ):
        error = await endpoint.fails(code, "CopyObject", bucket, "made", headers={"x-amz-copy-source": source})
        assert error.details == details


async def test_expected_owners_of_both_sides(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    for header in ("x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner"):
        headers = {"x-amz-copy-source": "bucket/key", header: "stranger"}
        await endpoint.fails("AccessDenied", "CopyObject", "bucket", "made", headers=headers)


async def test_the_source_needs_leave_too(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    await endpoint.run("CreateBucket", "others", principal=OTHER)
    headers = {"x-amz-copy-source": "bucket/key"}
    for name, query in (("CopyObject", []), ("UploadPartCopy", [("partNumber", "1"), ("uploadId", "made")])):
        if query:
            started = await endpoint.run("CreateMultipartUpload", "others", "made", principal=OTHER)
            query[1] = ("uploadId", started.document.upload_id)
        await endpoint.fails("AccessDenied", name, "others", "made", headers=headers, query=query, principal=OTHER)
    await endpoint.fails("NoSuchKey", "HeadObject", "others", "made", principal=OTHER)
    headers = {"x-amz-copy-source": "absent/key"}
    await endpoint.fails("NoSuchBucket", "CopyObject", "others", "made", headers=headers, principal=OTHER)


async def test_a_source_beyond_five_gib_is_refused(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    await endpoint.put("key", b"12345")
    monkeypatch.setattr(copy_object, "MAX_COPY_BYTES", 4)
    error = await endpoint.fails(
        "InvalidRequest", "CopyObject", "bucket", "made", headers={"x-amz-copy-source": "bucket/key"}
    )
    assert error.message == "The specified copy source is larger than the maximum allowable size for a copy source: 4"


async def test_a_source_replaced_while_it_is_opened_is_a_conflict(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"old")
    genuine = endpoint.objects.open

    async def replace_first(bucket: str, key: str, version: Version) -> ObjectReader:
        await endpoint.put("key", b"new")
        return await genuine(bucket, key, endpoint.objects.lookup(bucket, key))

    endpoint.objects.open = replace_first
    error = await endpoint.fails(
        "ConditionalRequestConflict", "CopyObject", "bucket", "made", headers={"x-amz-copy-source": "bucket/key"}
    )
    assert error.status == 409


async def test_a_source_whose_file_ends_early_makes_no_copy(endpoint: Endpoint) -> None:
    await endpoint.put("key", DATA)
    payload = endpoint.objects.lookup("bucket", "key").parts[0].payload
    endpoint.payloads.damage(payload, DATA[:100_000])
    error = await endpoint.fails(
        "InternalError", "CopyObject", "bucket", "made", headers={"x-amz-copy-source": "bucket/key"}
    )
    assert error.status == 500
    await endpoint.fails("NoSuchKey", "HeadObject", "bucket", "made")
    assert len(endpoint.payloads.disk.files) == 1


async def test_a_copy_without_a_source_is_refused(endpoint: Endpoint) -> None:
    await endpoint.fails("InvalidArgument", "CopyObject", "bucket", "made")
