import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.operations.object_headers import attributes_from, check_write, version_headers
from s3verbs.gateway.operations.tagging_header import parse_tagging
from tests.unit.operations.endpoint import START_DATE, Endpoint


async def test_system_headers_come_back_verbatim(endpoint: Endpoint) -> None:
    sent = {
        "content-type": "text/x; charset=weird",
        "cache-control": "public, max-age=14400",
        "content-disposition": 'attachment; filename="a b.txt"',
        "content-encoding": "gzip",
        "content-language": "en, de",
        "expires": "not even a date",
        "x-amz-website-redirect-location": "/elsewhere",
        "x-amz-storage-class": "STANDARD_IA",
    }
    await endpoint.put("key", b"x", sent)
    reply, _ = await endpoint.get("key")
    returned = {name.lower(): value for name, value in reply.headers.items()}
    assert {name: returned[name] for name in sent} == sent


async def test_defaults_without_any_header(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    reply, _ = await endpoint.get("key")
    assert reply.headers == {
        "ETag": '"9dd4e461268c8034f5c8564e155c67a6"',
        "Last-Modified": START_DATE,
        "Accept-Ranges": "bytes",
        "Content-Type": "binary/octet-stream",
    }


async def test_user_metadata_comes_back_lower_case_and_is_replaced_as_a_whole(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x", {"x-amz-meta-one": "1", "x-amz-meta-two": "", "x-amz-metadata-directive": "COPY"})
    reply, _ = await endpoint.get("key")
    assert {name: value for name, value in reply.headers.items() if name.startswith("x-amz-meta")} == {
        "x-amz-meta-one": "1",
        "x-amz-meta-two": "",
    }
    await endpoint.put("key", b"x", {"x-amz-meta-three": "3"})
    reply, _ = await endpoint.get("key")
    assert [name for name in reply.headers if name.startswith("x-amz-meta")] == ["x-amz-meta-three"]


async def test_metadata_beyond_ascii_is_returned_as_an_encoded_word(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x", {"x-amz-meta-name": "Grüße"})
    reply, _ = await endpoint.get("key")
    assert reply.headers["x-amz-meta-name"] == "=?UTF-8?B?R3LDvMOfZQ==?="


async def test_two_kilobytes_of_metadata_fit_and_no_more(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x", {"x-amz-meta-k": "v" * 2047})
    error = await endpoint.fails("MetadataTooLarge", "PutObject", "bucket", "key", headers={"x-amz-meta-k": "v" * 2048})
    assert error.details == {"Size": "2049", "MaxSizeAllowed": "2048"}
    assert not endpoint.body_taken()


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("gzip", "gzip"),
        ("deflate, gzip", "deflate, gzip"),
        ("gzip,br", "gzip,br"),
        ("gzip, aws-chunked", "gzip"),
        ("aws-chunked, gzip", "gzip"),
        ("aws-chunked,gzip,br", "gzip, br"),
        ("AWS-Chunked", None),
        ("aws-chunked, aws-chunked", None),
        ("", None),
    ],
)
def test_aws_chunked_is_no_part_of_the_content_encoding(sent: str, stored: str | None) -> None:
    assert attributes_from({"content-encoding": sent}).headers.get("content-encoding") == stored


async def test_an_empty_content_type_becomes_the_default(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x", {"content-type": ""})
    assert (await endpoint.get("key"))[0].headers["Content-Type"] == "binary/octet-stream"


async def test_storage_class_is_checked_and_standard_is_not_returned(endpoint: Endpoint) -> None:
    error = await endpoint.fails(
        "InvalidStorageClass", "PutObject", "bucket", "k", headers={"x-amz-storage-class": "HOT"}
    )
    assert error.details == {"StorageClassRequested": "HOT"}
    await endpoint.put("k", b"", {"x-amz-storage-class": "STANDARD"})
    assert "x-amz-storage-class" not in (await endpoint.get("k"))[0].headers


@pytest.mark.parametrize("location", ["/page", "http://example.com/", "https://example.com/x"])
def test_redirect_locations(location: str) -> None:
    assert attributes_from({"x-amz-website-redirect-location": location}).headers
    with pytest.raises(S3Error) as caught:
        attributes_from({"x-amz-website-redirect-location": "page"})
    assert caught.value.code == "InvalidRedirectLocation"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"x-amz-acl": "public-read"}, "AccessControlListNotSupported"),
        ({"x-amz-acl": "whatever"}, "InvalidArgument"),
        ({"x-amz-grant-full-control": "id=1"}, "AccessControlListNotSupported"),
        ({"x-amz-object-lock-mode": "GOVERNANCE"}, "InvalidRequest"),
        ({"x-amz-object-lock-legal-hold": "ON"}, "InvalidRequest"),
        ({"x-amz-server-side-encryption": "AES256"}, "NotImplemented"),
        ({"x-amz-server-side-encryption-customer-key": "k"}, "NotImplemented"),
        ({"x-amz-write-offset-bytes": "5"}, "NotImplemented"),
    ],
)
@pytest.mark.parametrize("name", ["PutObject", "CreateMultipartUpload"])
async def test_what_is_not_kept_is_refused_before_the_body(
    endpoint: Endpoint, name: str, headers: dict[str, str], code: str
) -> None:
    await endpoint.fails(code, name, "bucket", "key", headers=headers, body=b"data")
    assert not endpoint.body_taken()
    await endpoint.fails("NoSuchKey", "HeadObject", "bucket", "key")


def test_object_lock_message_and_accepted_acls() -> None:
    with pytest.raises(S3Error, match="Bucket is missing Object Lock Configuration"):
        check_write({"x-amz-object-lock-mode": "GOVERNANCE"})
    check_write({"x-amz-acl": "private"})
    check_write({"x-amz-acl": "bucket-owner-full-control"})


async def test_tags_are_counted_on_reads(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"", {"x-amz-tagging": "a=1&b=two%20words&c"})
    reply, _ = await endpoint.get("key")
    assert reply.headers["x-amz-tagging-count"] == "3"
    assert dict(endpoint.objects.lookup("bucket", "key").attributes.tags) == {"a": "1", "b": "two words", "c": ""}


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("&".join(f"k{number}=v" for number in range(11)), "BadRequest"),
        ("a=1&a=2", "InvalidArgument"),
        ("a=%ff", "InvalidArgument"),
        ("k" * 129 + "=v", "InvalidTag"),
        ("k=" + "v" * 257, "InvalidTag"),
        ("=v", "InvalidTag"),
        ("a!=1", "InvalidTag"),
        ("aws:x=1", "InvalidTag"),
    ],
)
def test_tags_that_break_a_limit(header: str, code: str) -> None:
    with pytest.raises(S3Error) as caught:
        parse_tagging(header)
    assert caught.value.code == code


def test_ten_tags_of_full_size_fit() -> None:
    header = "&".join(f"{number}{'k' * 127}={'v' * 256}" for number in range(10))
    assert len(parse_tagging(header)) == 10


@given(st.text(max_size=60))
def test_a_tagging_header_gives_legal_tags_or_an_s3_error(header: str) -> None:
    try:
        tags = parse_tagging(header)
    except S3Error:
        return
    assert len(tags) <= 10
    assert all(0 < len(key) <= 128 and len(value) <= 256 for key, value in tags.items())


async def test_the_header_dict_belongs_to_the_caller(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    version = endpoint.objects.lookup("bucket", "key")
    version_headers(version)["ETag"] = "changed"
    assert version_headers(version)["ETag"] == '"9dd4e461268c8034f5c8564e155c67a6"'
