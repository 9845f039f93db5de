import pytest

from s3verbs.gateway.auth.principal import ANONYMOUS
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.operations.base import Call
from s3verbs.gateway.operations.registry import find
from s3verbs.storage.model import Version
from s3verbs.storage.objects import ObjectReader
from tests.unit.operations.endpoint import SECOND, START_DATE, Endpoint, b64, content, md5_hex, sha256_b64

DATA = bytes(range(256)) * 400
BEFORE = "Tue, 14 Nov 2023 22:13:19 GMT"


async def test_a_small_and_a_large_object_come_back_whole(endpoint: Endpoint) -> None:
    for key, data in (("empty", b""), ("small", b"0123456789"), ("large", DATA)):
        await endpoint.put(key, data)
        reply, received = await endpoint.get(key)
        assert (reply.status, received) == (200, data)
        assert reply.headers["ETag"] == f'"{md5_hex(data)}"'
        assert "Content-Range" not in reply.headers


async def test_absent_objects_and_buckets_are_named(endpoint: Endpoint) -> None:
    for name in ("GetObject", "HeadObject"):
        error = await endpoint.fails("NoSuchKey", name, "bucket", "absent")
        assert error.details == {"Key": "absent"}
        error = await endpoint.fails("NoSuchBucket", name, "absent", "key")
        assert error.details == {"BucketName": "absent"}


@pytest.mark.parametrize(
    ("value", "start", "stop"),
    [
        ("bytes=0-9", 0, 10),
        ("bytes=100-", 100, len(DATA)),
        ("bytes=-7", len(DATA) - 7, len(DATA)),
        ("bytes=0-99999999", 0, len(DATA)),
        ("bytes=5-5", 5, 6),
    ],
)
async def test_a_range_is_206_with_its_content_range(endpoint: Endpoint, value: str, start: int, stop: int) -> None:
    await endpoint.put("key", DATA)
    reply, received = await endpoint.get("key", {"range": value})
    assert (reply.status, received) == (206, DATA[start:stop])
    assert reply.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{len(DATA)}"
    assert reply.headers["Accept-Ranges"] == "bytes"


async def test_a_range_counts_beside_query_parameters(endpoint: Endpoint) -> None:
    await endpoint.put("key", DATA)
    reply, received = await endpoint.get("key", {"range": "bytes=1-3"}, [("x-id", "GetObject"), ("X-Amz-Expires", "9")])
    assert (reply.status, received) == (206, DATA[1:4])


async def test_a_range_outside_is_416(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"01234")
    await endpoint.put("empty", b"")
    for key, value in (("key", "bytes=5-9"), ("empty", "bytes=0-4"), ("empty", "bytes=-1")):
        error = await endpoint.fails("InvalidRange", "GetObject", "bucket", key, headers={"range": value})
        assert error.status == 416


async def test_a_range_that_is_none_is_ignored(endpoint: Endpoint) -> None:
    await endpoint.put("key", DATA)
    for value in ("bytes=5-2", "items=0-3", "bytes=0-1,5-6", "bytes="):
        reply, received = await endpoint.get("key", {"range": value})
        assert (reply.status, received) == (200, DATA)


async def test_if_range_of_another_state_gives_the_whole(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"0123456789")
    asked = {"range": "bytes=0-1"}
    for validator, expected in (
        (f'"{md5_hex(b"0123456789")}"', b"01"),
        ('"other"', b"0123456789"),
        (START_DATE, b"01"),
    ):
        assert (await endpoint.get("key", {**asked, "if-range": validator}))[1] == expected


async def test_not_modified_has_no_body_but_etag_date_and_cache_headers(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x", {"cache-control": "no-store", "expires": "never", "content-type": "text/plain"})
    etag = f'"{md5_hex(b"x")}"'
    for headers in ({"if-none-match": etag}, {"if-modified-since": START_DATE}):
        reply, received = await endpoint.get("key", headers)
        assert (reply.status, received) == (304, b"")
        assert reply.headers == {
            "ETag": etag,
            "Last-Modified": START_DATE,
            "Cache-Control": "no-store",
            "Expires": "never",
        }


async def test_failed_preconditions_are_412(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    for headers in ({"if-match": '"other"'}, {"if-unmodified-since": BEFORE}):
        for name in ("GetObject", "HeadObject"):
            error = await endpoint.fails("PreconditionFailed", name, "bucket", "key", headers=headers)
            assert error.status == 412
    for headers in (
        {"if-match": f'"{md5_hex(b"x")}"', "if-unmodified-since": BEFORE},
        {"if-none-match": '"other"', "if-modified-since": START_DATE},
        {"if-modified-since": BEFORE},
    ):
        assert (await endpoint.get("key", headers))[0].status == 200


async def test_conditions_come_before_the_range(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    reply, _ = await endpoint.get("key", {"if-none-match": f'"{md5_hex(b"x")}"', "range": "bytes=7-8"})
    assert reply.status == 304


OVERRIDES = [
    ("response-content-type", "foo/bar"),
    ("response-content-language", "esperanto"),
    ("response-expires", "123"),
    ("response-cache-control", "no-cache"),
    ("response-content-disposition", "bla"),
    ("response-content-encoding", "aaa"),
]


async def test_response_headers_are_overridden_for_signed_requests(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x", {"content-type": "text/plain", "cache-control": "max-age=1"})
    reply, _ = await endpoint.get("key", query=OVERRIDES)
    assert {
        "Content-Type": "foo/bar",
        "Content-Language": "esperanto",
        "Expires": "123",
        "Cache-Control": "no-cache",
        "Content-Disposition": "bla",
        "Content-Encoding": "aaa",
    }.items() <= reply.headers.items()
    assert (await endpoint.get("key"))[0].headers["Content-Type"] == "text/plain"


@pytest.mark.parametrize("value", ["a\r\nx-injected: 1", "a\nb", "\0", "\x7f"])
async def test_an_override_cannot_break_out_of_its_header(endpoint: Endpoint, value: str) -> None:
    await endpoint.put("key", b"x")
    query = [("response-content-disposition", value)]
    error = await endpoint.fails("InvalidArgument", "GetObject", "bucket", "key", query=query)
    assert error.details["ArgumentName"] == "response-content-disposition"


async def test_an_override_may_hold_any_text(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    value = 'attachment; filename="größe\u00a0.txt"'
    reply, _ = await endpoint.get("key", query=[("response-content-disposition", value)])
    assert reply.headers["Content-Disposition"] == value


async def test_anonymous_requests_may_not_override(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    error = await endpoint.fails(
        "InvalidRequest", "GetObject", "bucket", "key", query=OVERRIDES[:1], principal=ANONYMOUS
    )
    assert error.message == "Request specific response headers cannot be used for anonymous GET requests."


async def test_checksums_only_on_request_and_only_with_the_whole(endpoint: Endpoint) -> None:
    await endpoint.put("key", DATA, {"x-amz-checksum-sha256": sha256_b64(DATA)})
    for headers in ({}, {"x-amz-checksum-mode": "ENABLED", "range": "bytes=0-9"}, {"x-amz-checksum-mode": "off"}):
        reply, _ = await endpoint.get("key", headers)
        assert not [name for name in reply.headers if name.startswith("x-amz-checksum")]
    for mode in ("ENABLED", "enabled"):
        reply, _ = await endpoint.get("key", {"x-amz-checksum-mode": mode})
        assert reply.headers["x-amz-checksum-sha256"] == sha256_b64(DATA)
        assert reply.headers["x-amz-checksum-type"] == "FULL_OBJECT"


async def test_part_one_of_a_plain_object_is_the_object(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"123456789")
    reply, received = await endpoint.get("key", {"x-amz-checksum-mode": "ENABLED"}, [("partNumber", "1")])
    assert (reply.status, received) == (206, b"123456789")
    assert reply.headers["Content-Range"] == "bytes 0-8/9"
    assert reply.headers["x-amz-checksum-crc64nvme"] == b64(bytes.fromhex("ae8b14860a799888"))
    assert "x-amz-mp-parts-count" not in reply.headers
    error = await endpoint.fails("InvalidPartNumber", "GetObject", "bucket", "key", query=[("partNumber", "2")])
    assert error.status == 416
    assert error.details == {"ActualPartCount": "1", "PartNumberRequested": "2"}


@pytest.mark.parametrize("value", ["0", "10001", "-1", "x", "", "1.0", "٣"])
async def test_part_numbers_run_from_1_to_10000(endpoint: Endpoint, value: str) -> None:
    await endpoint.put("key", b"x")
    error = await endpoint.fails("InvalidArgument", "GetObject", "bucket", "key", query=[("partNumber", value)])
    assert error.message == "Part number must be an integer between 1 and 10000, inclusive"


async def test_part_number_and_range_exclude_each_other(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    error = await endpoint.fails(
        "InvalidRequest", "GetObject", "bucket", "key", query=[("partNumber", "1")], headers={"range": "bytes=0-0"}
    )
    assert error.message == "Cannot specify both Range header and partNumber query parameter"


async def test_only_the_null_version_exists(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    reply, received = await endpoint.get("key", query=[("versionId", "null")])
    assert (received, reply.headers["x-amz-version-id"]) == (b"x", "null")
    unknown = "a" * 32
    error = await endpoint.fails("NoSuchVersion", "GetObject", "bucket", "key", query=[("versionId", unknown)])
    assert error.details == {"Key": "key", "VersionId": unknown}
    for value in ("bogus", "", "!" * 32):
        error = await endpoint.fails("InvalidArgument", "HeadObject", "bucket", "key", query=[("versionId", value)])
        assert error.details["ArgumentName"] == "versionId"


async def test_customer_keys_are_refused(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    header = "x-amz-server-side-encryption-customer-algorithm"
    error = await endpoint.fails("NotImplemented", "GetObject", "bucket", "key", headers={header: "AES256"})
    assert error.details == {"Header": header}


async def test_expected_bucket_owner_is_compared(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    await endpoint.fails("AccessDenied", "GetObject", "bucket", "key", headers={"x-amz-expected-bucket-owner": "no"})
    await endpoint.get("key", {"x-amz-expected-bucket-owner": "owner-id"})


async def replaced_while_opening(endpoint: Endpoint, data: bytes, headers: dict[str, str]) -> Call:
    """A GET between whose lookup and open the object "key" becomes `data`."""
    call = endpoint.call("bucket", "key", headers=headers)
    genuine = endpoint.objects.open

    async def replace_first(bucket: str, key: str, version: Version) -> ObjectReader:
        endpoint.now += 5 * SECOND
        await endpoint.put("key", data)
        endpoint.objects.open = genuine
        return await genuine(bucket, key, endpoint.objects.lookup(bucket, key))

    endpoint.objects.open = replace_first
    return call


async def test_an_object_replaced_in_between_is_answered_as_one_state(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"long old content")
    call = await replaced_while_opening(endpoint, b"new", {"range": "bytes=0-9"})
    reply = await find("GetObject").handler(call)
    assert reply.headers["ETag"] == f'"{md5_hex(b"new")}"'
    assert reply.headers["Content-Range"] == "bytes 0-2/3"
    assert content(reply) == b"new"


async def test_conditions_hold_for_what_was_opened(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"old")
    call = await replaced_while_opening(endpoint, b"new", {"if-match": f'"{md5_hex(b"old")}"'})
    with pytest.raises(S3Error) as caught:
        await find("GetObject").handler(call)
    assert caught.value.code == "PreconditionFailed"


async def test_what_was_opened_may_be_what_the_client_has(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"old")
    call = await replaced_while_opening(endpoint, b"new", {"if-none-match": f'"{md5_hex(b"new")}"'})
    reply = await find("GetObject").handler(call)
    assert (reply.status, reply.content) == (304, None)
