import hashlib
from typing import Any

import pytest

from s3verbs.storage.model import MIN_PART_SIZE
from tests.unit.operations.endpoint import START_DATE, Endpoint, b64, md5_hex

ALL = "ETag,Checksum,ObjectParts,StorageClass,ObjectSize"


async def attributes(endpoint: Endpoint, wanted: str, key: str = "key", **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    reply = await endpoint.run(
        "GetObjectAttributes", "bucket", key, headers={"x-amz-object-attributes": wanted, **named}
    )
    assert reply.headers == {"Last-Modified": START_DATE}
    return reply.document


@pytest.fixture
async def uploaded(endpoint: Endpoint) -> Endpoint:
    """An object of the parts 3, 5 and 9, with SHA1 checksums."""
    headers = {"x-amz-checksum-algorithm": "SHA1"}
    upload_id = (await endpoint.run("CreateMultipartUpload", "bucket", "key", headers=headers)).document.upload_id
    lines = ""
    for number, size in ((3, MIN_PART_SIZE), (5, MIN_PART_SIZE), (9, 7)):
        query = [("partNumber", str(number)), ("uploadId", upload_id)]
        headers = {"x-amz-checksum-sha1": b64(hashlib.sha1(bytes(size)).digest())}
        reply = await endpoint.run("UploadPart", "bucket", "key", query=query, headers=headers, body=bytes(size))
        lines += (
            f"<Part><PartNumber>{number}</PartNumber><ETag>{reply.headers['ETag']}</ETag>"
            f"<ChecksumSHA1>{reply.headers['x-amz-checksum-sha1']}</ChecksumSHA1></Part>"
        )
    body = f"<CompleteMultipartUpload>{lines}</CompleteMultipartUpload>".encode()
    await endpoint.run("CompleteMultipartUpload", "bucket", "key", query=[("uploadId", upload_id)], body=body)
    return endpoint


async def test_a_plain_object_has_all_but_parts(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"123456789", {"x-amz-checksum-crc32": b64(bytes.fromhex("cbf43926"))})
    document = await attributes(endpoint, ALL)
    assert (document.etag, document.size, document.storage_class) == (md5_hex(b"123456789"), 9, "STANDARD")
    assert (document.checksum.algorithm, document.checksum.value) == ("CRC32", "y/Q5Jg==")
    assert document.parts is None


async def test_only_what_is_asked_for_is_given(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"", {"x-amz-storage-class": "GLACIER_IR"})
    document = await attributes(endpoint, "ObjectSize, StorageClass")
    assert (document.size, document.storage_class) == (0, "GLACIER_IR")
    assert (document.etag, document.checksum, document.parts) == ("", None, None)
    document = await attributes(endpoint, "ETag")
    assert (document.etag, document.storage_class, document.size) == (md5_hex(b""), "", None)


async def test_parts_of_an_upload_have_sizes_and_checksums(uploaded: Endpoint) -> None:
    document = await attributes(uploaded, ALL)
    assert document.etag.endswith("-3")
    assert (document.checksum.algorithm, document.checksum.kind) == ("SHA1", "COMPOSITE")
    parts = document.parts
    assert (parts.count, parts.part_number_marker, parts.max_parts, parts.truncated) == (3, 0, 1000, False)
    assert [part.size for part in parts.parts] == [MIN_PART_SIZE, MIN_PART_SIZE, 7]
    assert {part.checksum.algorithm for part in parts.parts} == {"SHA1"}


async def test_pages_of_parts(uploaded: Endpoint) -> None:
    sizes: list[int] = []
    for marker, truncated in ((0, True), (1, True), (2, False)):
        headers = {"x_amz_max_parts": "1", "x_amz_part_number_marker": str(marker)}
        parts = (await attributes(uploaded, "ObjectParts", **headers)).parts
        assert (parts.count, parts.part_number_marker, parts.max_parts, parts.truncated) == (3, marker, 1, truncated)
        sizes += [part.size for part in parts.parts]
    assert sizes == [MIN_PART_SIZE, MIN_PART_SIZE, 7]
    for headers in ({"x_amz_part_number_marker": "3"}, {"x_amz_max_parts": "0"}):
        parts = (await attributes(uploaded, "ObjectParts", **headers)).parts
        assert (list(parts.parts), parts.truncated) == ([], False)
    assert (await attributes(uploaded, "ObjectParts", x_amz_max_parts="2000")).parts.max_parts == 1000


async def test_what_cannot_be_asked_is_refused(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"x")
    for code, headers in (
        ("InvalidRequest", {}),
        ("InvalidRequest", {"x-amz-object-attributes": " , "}),
        ("InvalidArgument", {"x-amz-object-attributes": "ETag,Colour"}),
        ("InvalidArgument", {"x-amz-object-attributes": "ETag", "x-amz-max-parts": "-1"}),
        ("InvalidArgument", {"x-amz-object-attributes": "ETag", "x-amz-part-number-marker": "first"}),
    ):
        await endpoint.fails(code, "GetObjectAttributes", "bucket", "key", headers=headers)
    headers = {"x-amz-object-attributes": "ETag"}
    await endpoint.fails("NoSuchKey", "GetObjectAttributes", "bucket", "absent", headers=headers)
    query = [("versionId", "a" * 32)]
    await endpoint.fails("NoSuchVersion", "GetObjectAttributes", "bucket", "key", headers=headers, query=query)
    reply = await endpoint.run("GetObjectAttributes", "bucket", "key", headers=headers, query=[("versionId", "null")])
    assert reply.headers["x-amz-version-id"] == "null"
