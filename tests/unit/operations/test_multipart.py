import asyncio
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from s3verbs.gateway.documents import Owner
from s3verbs.gateway.operations import upload_part
from tests.unit.operations.endpoint import OTHER, SECOND, Endpoint, b64, md5_hex, sha256_b64

MIB = 1 << 20
BIG = bytes(range(256)) * (5 * MIB // 256)
LAST = b"the last part may be small"


async def begin(endpoint: Endpoint, key: str = "key", headers: Mapping[str, str] | None = None) -> str:
    reply = await endpoint.run("CreateMultipartUpload", "bucket", key, headers=headers)
    assert reply.document is not None
    return str(reply.document.upload_id)


async def upload(
    endpoint: Endpoint, upload_id: str, number: int, data: bytes, headers: Mapping[str, str] | None = None
) -> str:
    query = [("partNumber", str(number)), ("uploadId", upload_id)]
    reply = await endpoint.run("UploadPart", "bucket", "key", query=query, body=data, headers=headers)
    return reply.headers["ETag"].strip('"')


def document(parts: Sequence[tuple[int, str]], extra: Sequence[str] = ()) -> bytes:
    lines = [
        f"<Part><ETag>{etag}</ETag><PartNumber>{number}</PartNumber>{extra[index] if extra else ''}</Part>"
        for index, (number, etag) in enumerate(parts)
    ]
    return f"<CompleteMultipartUpload>{''.join(lines)}</CompleteMultipartUpload>".encode()


async def complete(endpoint: Endpoint, upload_id: str, body: bytes, headers: Mapping[str, str] | None = None) -> Any:
    query = [("uploadId", upload_id)]
    return await endpoint.run("CompleteMultipartUpload", "bucket", "key", query=query, body=body, headers=headers)


async def two_parts(
    endpoint: Endpoint, upload_id: str, headers: Sequence[Mapping[str, str]] = ({}, {})
) -> list[tuple[int, str]]:
    return [
        (1, await upload(endpoint, upload_id, 1, BIG, headers[0])),
        (2, await upload(endpoint, upload_id, 2, LAST, headers[1])),
    ]


ETAG = hashlib.md5(hashlib.md5(BIG).digest() + hashlib.md5(LAST).digest()).hexdigest() + "-2"


async def test_an_upload_becomes_the_object(endpoint: Endpoint) -> None:
    upload_id = await begin(endpoint, headers={"content-type": "text/bla", "x-amz-meta-foo": "bar"})
    parts = await two_parts(endpoint, upload_id)
    await endpoint.fails("NoSuchKey", "GetObject", "bucket", "key")
    reply = await complete(endpoint, upload_id, document(parts))
    made = reply.document
    assert (made.bucket, made.key, made.etag) == ("bucket", "key", ETAG)
    assert made.location == "http://s3.test:9000/bucket/key"
    got, received = await endpoint.get("key")
    assert received == BIG + LAST
    assert got.headers["ETag"] == f'"{ETAG}"'
    assert got.headers["Content-Type"] == "text/bla"
    assert got.headers["x-amz-meta-foo"] == "bar"
    assert "x-amz-mp-parts-count" not in got.headers


async def test_without_a_declared_checksum_the_whole_gets_a_crc64nvme(endpoint: Endpoint) -> None:
    upload_id = await begin(endpoint)
    made = (await complete(endpoint, upload_id, document(await two_parts(endpoint, upload_id)))).document
    await endpoint.put("plain", BIG + LAST)
    plain = endpoint.objects.lookup("bucket", "plain").checksum
    assert made.checksum == plain
    reply, _ = await endpoint.get("key", {"x-amz-checksum-mode": "ENABLED"})
    assert reply.headers["x-amz-checksum-crc64nvme"] == plain.value
    assert reply.headers["x-amz-checksum-type"] == "FULL_OBJECT"


async def test_ranges_cross_parts_and_parts_can_be_read_alone(endpoint: Endpoint) -> None:
    upload_id = await begin(endpoint)
    await complete(endpoint, upload_id, document(await two_parts(endpoint, upload_id)))
    size = len(BIG) + len(LAST)
    reply, received = await endpoint.get("key", {"range": f"bytes={len(BIG) - 3}-{len(BIG) + 2}"})
    assert received == BIG[-3:] + LAST[:3]
    reply, received = await endpoint.get("key", {"x-amz-checksum-mode": "ENABLED"}, [("partNumber", "2")])
    assert (reply.status, received) == (206, LAST)
    assert reply.headers["Content-Range"] == f"bytes {len(BIG)}-{size - 1}/{size}"
    assert reply.headers["x-amz-mp-parts-count"] == "2"
    assert reply.headers["ETag"] == f'"{ETAG}"'
    assert reply.headers["x-amz-checksum-type"] == "FULL_OBJECT"
    await endpoint.put("plain", LAST)
    part_checksum = endpoint.objects.lookup("bucket", "plain").checksum
    assert reply.headers["x-amz-checksum-crc64nvme"] == part_checksum.value
    error = await endpoint.fails("InvalidPartNumber", "HeadObject", "bucket", "key", query=[("partNumber", "3")])
    assert error.details == {"ActualPartCount": "2", "PartNumberRequested": "3"}


async def test_parts_are_read_by_position_whatever_their_numbers(endpoint: Endpoint) -> None:
    upload_id = await begin(endpoint)
    first, last = await upload(endpoint, upload_id, 7, BIG), await upload(endpoint, upload_id, 9, LAST)
    await complete(endpoint, upload_id, document([(7, first), (9, last)]))
    assert (await endpoint.get("key", query=[("partNumber", "1")]))[1] == BIG
    assert (await endpoint.get("key", query=[("partNumber", "2")]))[1] == LAST


async def test_an_unlisted_part_is_left_out_and_a_resent_part_counts_once(endpoint: Endpoint) -> None:
    upload_id = await begin(endpoint)
    await upload(endpoint, upload_id, 1, b"replaced")
    etag = await upload(endpoint, upload_id, 1, LAST)
    await upload(endpoint, upload_id, 2, b"left out")
    await complete(endpoint, upload_id, document([(1, f'"{etag}"')]))
    assert (await endpoint.get("key"))[1] == LAST


@pytest.mark.parametrize(
    "name", ["UploadPart", "UploadPartCopy", "AbortMultipartUpload", "ListParts", "CompleteMultipartUpload"]
)
async def test_an_unknown_upload_is_named(endpoint: Endpoint, name: str) -> None:
    await endpoint.put("source", b"x")
    headers = {"x-amz-copy-source": "bucket/source"} if name == "UploadPartCopy" else {}
    body = document([(1, md5_hex(b"x"))]) if name.startswith("Complete") else b"data"
    query = [("uploadId", "no-such-upload"), ("partNumber", "1")]
    error = await endpoint.fails("NoSuchUpload", name, "bucket", "key", query=query, body=body, headers=headers)
    assert error.details == {"UploadId": "no-such-upload"}
    if name == "UploadPart":
        assert not endpoint.body_taken()


@pytest.mark.parametrize("value", ["0", "10001", "x", ""])
async def test_part_numbers_run_from_1_to_10000(endpoint: Endpoint, value: str) -> None:
    upload_id = await begin(endpoint)
    query = [("partNumber", value), ("uploadId", upload_id)]
    error = await endpoint.fails("InvalidArgument", "UploadPart", "bucket", "key", query=query, body=b"x")
    assert error.message == "Part number must be an integer between 1 and 10000, inclusive"
    assert not endpoint.body_taken()


async def test_lists_that_cannot_be_completed(endpoint: Endpoint) -> None:
    upload_id = await begin(endpoint)
    one, two = await upload(endpoint, upload_id, 1, b"small"), await upload(endpoint, upload_id, 2, LAST)
    query = [("uploadId", upload_id)]
    for body, code in (
        (document([(2, two), (1, one)]), "InvalidPartOrder"),
        (document([(1, one), (1, one)]), "InvalidPartOrder"),
        (document([(1, "f" * 32)]), "InvalidPart"),
        (document([(9999, one)]), "InvalidPart"),
        (document([(1, one), (2, two)]), "EntityTooSmall"),
        (document([]), "MalformedXML"),
        (b"", "MalformedXML"),
        (b"<Complete", "MalformedXML"),
    ):
        error = await endpoint.fails(code, "CompleteMultipartUpload", "bucket", "key", query=query, body=body)
        if code == "InvalidPart":
            assert error.details["UploadId"] == upload_id
        if code == "EntityTooSmall":
            assert error.details["PartNumber"] == "1"
    await complete(endpoint, upload_id, document([(2, two)]))
    assert (await endpoint.get("key"))[1] == LAST


async def test_object_size_must_be_right(endpoint: Endpoint) -> None:
    upload_id = await begin(endpoint)
    body = document(await two_parts(endpoint, upload_id))
    size = len(BIG) + len(LAST)
    query = [("uploadId", upload_id)]
    for value, code in ((str(size + 1), "InvalidRequest"), ("many", "InvalidArgument")):
        headers = {"x-amz-mp-object-size": value}
        await endpoint.fails(code, "CompleteMultipartUpload", "bucket", "key", query=query, body=body, headers=headers)
    await complete(endpoint, upload_id, body, {"x-amz-mp-object-size": str(size)})


async def test_conditions_of_the_completion(endpoint: Endpoint) -> None:
    await endpoint.put("key", b"there")
    upload_id = await begin(endpoint)
    body = document([(1, await upload(endpoint, upload_id, 1, LAST))])
    query = [("uploadId", upload_id)]
    for headers in ({"if-none-match": "*"}, {"if-match": '"other"'}):
        await endpoint.fails(
            "PreconditionFailed", "CompleteMultipartUpload", "bucket", "key", query=query, body=body, headers=headers
        )
    assert (await endpoint.get("key"))[1] == b"there"
    await complete(endpoint, upload_id, body, {"if-match": f'"{md5_hex(b"there")}"'})
    assert (await endpoint.get("key"))[1] == LAST


async def test_asking_again_for_a_completion_gives_the_same_answer(endpoint: Endpoint) -> None:
    upload_id = await begin(endpoint)
    body = document(await two_parts(endpoint, upload_id))
    first = await complete(endpoint, upload_id, body, {"if-none-match": "*"})
    endpoint.now += SECOND
    again = await complete(endpoint, upload_id, body, {"if-none-match": "*"})
    assert again.document == first.document
    query = [("uploadId", upload_id)]
    error = await endpoint.fails("NoSuchUpload", "AbortMultipartUpload", "bucket", "key", query=query)
    assert error.details == {"UploadId": upload_id}
    assert (await endpoint.get("key"))[1] == BIG + LAST


async def test_two_completions_at_once_both_succeed(endpoint: Endpoint) -> None:
    upload_id = await begin(endpoint)
    body = document(await two_parts(endpoint, upload_id))
    one, two = await asyncio.gather(complete(endpoint, upload_id, body), complete(endpoint, upload_id, body))
    assert one.document == two.document


async def test_asking_again_after_the_object_changed_is_no_such_upload(endpoint: Endpoint) -> None:
    upload_id = await begin(endpoint)
    body = document(await two_parts(endpoint, upload_id))
    await complete(endpoint, upload_id, body)
    query = [("uploadId", upload_id)]
    await endpoint.put("key", BIG + LAST)
    await endpoint.fails("NoSuchUpload", "CompleteMultipartUpload", "bucket", "key", query=query, body=body)
    await endpoint.run("DeleteObject", "bucket", "key")
    await endpoint.fails("NoSuchUpload", "CompleteMultipartUpload", "bucket", "key", query=query, body=body)


async def test_an_aborted_upload_is_gone_with_its_parts(endpoint: Endpoint) -> None:
    upload_id = await begin(endpoint)
    parts = await two_parts(endpoint, upload_id)
    reply = await endpoint.run("AbortMultipartUpload", "bucket", "key", query=[("uploadId", upload_id)])
    assert (reply.status, reply.document) == (204, None)
    query = [("uploadId", upload_id)]
    await endpoint.fails("NoSuchUpload", "CompleteMultipartUpload", "bucket", "key", query=query, body=document(parts))
    assert not (await endpoint.run("ListMultipartUploads", "bucket")).document.uploads
    await endpoint.objects.reclaim()
    assert not endpoint.payloads.disk.files


async def test_a_plain_object_of_the_same_bytes_is_no_completed_upload(endpoint: Endpoint) -> None:
    upload_id = await begin(endpoint)
    body = document([(1, await upload(endpoint, upload_id, 1, LAST))])
    await complete(endpoint, upload_id, body)
    await endpoint.put("key", LAST)
    query = [("uploadId", upload_id)]
    await endpoint.fails("NoSuchUpload", "CompleteMultipartUpload", "bucket", "key", query=query, body=body)


# -- checksums --


async def test_a_composite_checksum(endpoint: Endpoint) -> None:
    reply = await endpoint.run("CreateMultipartUpload", "bucket", "key", headers={"x-amz-checksum-algorithm": "SHA256"})
    assert reply.headers == {"x-amz-checksum-algorithm": "SHA256", "x-amz-checksum-type": "COMPOSITE"}
    upload_id = reply.document.upload_id
    headers = [{"x-amz-checksum-sha256": sha256_b64(BIG)}, {"x-amz-checksum-sha256": sha256_b64(LAST)}]
    parts = await two_parts(endpoint, upload_id, headers)
    whole = sha256_b64(hashlib.sha256(BIG).digest() + hashlib.sha256(LAST).digest()) + "-2"
    extra = [f"<ChecksumSHA256>{sha256_b64(data)}</ChecksumSHA256>" for data in (BIG, LAST)]
    body = document(parts, extra)
    query = [("uploadId", upload_id)]
    wrong = {"x-amz-checksum-sha256": sha256_b64(b"other") + "-2"}
    await endpoint.fails("BadDigest", "CompleteMultipartUpload", "bucket", "key", query=query, body=body, headers=wrong)
    other_kind = {"x-amz-checksum-type": "FULL_OBJECT"}
    await endpoint.fails(
        "InvalidRequest", "CompleteMultipartUpload", "bucket", "key", query=query, body=body, headers=other_kind
    )
    bad_part = document(parts, [extra[1], extra[1]])
    await endpoint.fails("InvalidPart", "CompleteMultipartUpload", "bucket", "key", query=query, body=bad_part)
    right = {"x-amz-checksum-sha256": whole, "x-amz-checksum-type": "COMPOSITE"}
    made = (await complete(endpoint, upload_id, body, right)).document
    assert (made.checksum.value, made.checksum.kind) == (whole, "COMPOSITE")
    reply, _ = await endpoint.get("key", {"x-amz-checksum-mode": "ENABLED"}, [("partNumber", "1")])
    assert reply.headers["x-amz-checksum-sha256"] == sha256_b64(BIG)
    assert reply.headers["x-amz-checksum-type"] == "COMPOSITE"


async def test_a_full_object_checksum(endpoint: Endpoint) -> None:
    upload_id = await begin(
        endpoint, headers={"x-amz-checksum-algorithm": "CRC32", "x-amz-checksum-type": "FULL_OBJECT"}
    )
    parts = await two_parts(endpoint, upload_id)
    whole = b64(zlib.crc32(BIG + LAST).to_bytes(4, "big"))
    made = (await complete(endpoint, upload_id, document(parts), {"x-amz-checksum-crc32": whole})).document
    assert (made.checksum.value, made.checksum.kind) == (whole, "FULL_OBJECT")


async def test_a_completed_object_is_copied_as_a_plain_one(endpoint: Endpoint) -> None:
    upload_id = await begin(endpoint, headers={"x-amz-checksum-algorithm": "SHA256"})
    headers = [{"x-amz-checksum-sha256": sha256_b64(BIG)}, {"x-amz-checksum-sha256": sha256_b64(LAST)}]
    await complete(endpoint, upload_id, document(await two_parts(endpoint, upload_id, headers)))
    reply = await endpoint.run("CopyObject", "bucket", "made", headers={"x-amz-copy-source": "bucket/key"})
    assert reply.document.etag == md5_hex(BIG + LAST)
    assert reply.document.checksum.value == sha256_b64(BIG + LAST)
    assert reply.document.checksum.kind == "FULL_OBJECT"
    assert (await endpoint.get("made"))[1] == BIG + LAST


@pytest.mark.parametrize(
    "headers",
    [
        {"x-amz-checksum-algorithm": "MD4"},
        {"x-amz-checksum-algorithm": "SHA1", "x-amz-checksum-type": "FULL_OBJECT"},
        {"x-amz-checksum-algorithm": "CRC64NVME", "x-amz-checksum-type": "COMPOSITE"},
        {"x-amz-checksum-type": "FULL_OBJECT"},
        {"x-amz-checksum-algorithm": "CRC32", "x-amz-checksum-type": "PARTIAL"},
    ],
)
async def test_checksum_declarations_that_aws_does_not_know(endpoint: Endpoint, headers: dict[str, str]) -> None:
    await endpoint.fails("InvalidRequest", "CreateMultipartUpload", "bucket", "key", headers=headers)


async def test_a_part_of_another_algorithm_or_without_one_is_refused(endpoint: Endpoint) -> None:
    upload_id = await begin(endpoint, headers={"x-amz-checksum-algorithm": "CRC32"})
    query = [("partNumber", "1"), ("uploadId", upload_id)]
    headers = {"x-amz-checksum-sha256": sha256_b64(b"x")}
    error = await endpoint.fails(
        "InvalidRequest", "UploadPart", "bucket", "key", query=query, body=b"x", headers=headers
    )
    assert error.message == (
        "Checksum Type mismatch occurred, expected checksum Type: crc32, actual checksum Type: sha256"
    )
    error = await endpoint.fails("InvalidRequest", "UploadPart", "bucket", "key", query=query, body=b"x")
    assert error.message.endswith("actual checksum Type: null")
    assert not endpoint.body_taken()


async def test_an_upload_that_declared_nothing_takes_parts_with_any_checksum(endpoint: Endpoint) -> None:
    upload_id = await begin(endpoint)
    query = [("partNumber", "1"), ("uploadId", upload_id)]
    crc = b64(zlib.crc32(LAST).to_bytes(4, "big"))
    headers = {"x-amz-checksum-crc32": crc}
    reply = await endpoint.run("UploadPart", "bucket", "key", query=query, body=LAST, headers=headers)
    assert reply.headers["x-amz-checksum-crc32"] == crc
    wrong = {"x-amz-checksum-crc32": b64(b"\0\0\0\0")}
    await endpoint.fails("BadDigest", "UploadPart", "bucket", "key", query=query, body=LAST, headers=wrong)
    body = document([(1, md5_hex(LAST))], [f"<ChecksumCRC32>{crc}</ChecksumCRC32>"])
    made = (await complete(endpoint, upload_id, body)).document
    assert made.checksum.algorithm == "CRC32"


async def test_parts_of_different_algorithms_give_no_checksum_of_the_whole(endpoint: Endpoint) -> None:
    upload_id = await begin(endpoint)
    parts = await two_parts(endpoint, upload_id, [{"x-amz-checksum-sha256": sha256_b64(BIG)}, {}])
    made = (await complete(endpoint, upload_id, document(parts))).document
    assert made.checksum is None
    reply, _ = await endpoint.get("key", {"x-amz-checksum-mode": "ENABLED"})
    assert not [name for name in reply.headers if name.startswith("x-amz-checksum")]


# -- UploadPartCopy --


async def copy_part(endpoint: Endpoint, upload_id: str, number: int, headers: Mapping[str, str]) -> Any:
    query = [("partNumber", str(number)), ("uploadId", upload_id)]
    return (await endpoint.run("UploadPartCopy", "bucket", "key", query=query, headers=headers)).document


async def test_parts_are_copied_whole_and_by_range(endpoint: Endpoint) -> None:
    await endpoint.put("source", BIG + LAST)
    upload_id = await begin(endpoint, headers={"x-amz-checksum-algorithm": "CRC32C"})
    whole = await copy_part(endpoint, upload_id, 1, {"x-amz-copy-source": "bucket/source"})
    headers = {"x-amz-copy-source": "/bucket/source", "x-amz-copy-source-range": "bytes=10-99999"}
    ranged = await copy_part(endpoint, upload_id, 2, headers)
    assert (whole.etag, ranged.etag) == (md5_hex(BIG + LAST), md5_hex(BIG[10:100000]))
    assert whole.checksum.algorithm == "CRC32C"
    await complete(endpoint, upload_id, document([(1, whole.etag), (2, ranged.etag)]))
    assert (await endpoint.get("key"))[1] == BIG + LAST + BIG[10:100000]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("bytes=0-21", "InvalidRange"),
        ("bytes=5-5", "InvalidRange"),
        ("0-2", "InvalidArgument"),
        ("bytes=0", "InvalidArgument"),
        ("bytes=hello-world", "InvalidArgument"),
        ("bytes=0-bar", "InvalidArgument"),
        ("bytes=hello-", "InvalidArgument"),
        ("bytes=0-2,3-5", "InvalidArgument"),
        ("bytes=3-1", "InvalidArgument"),
        ("bytes=-2", "InvalidArgument"),
        ("bytes=1-", "InvalidArgument"),
        (" bytes=0-1", "InvalidArgument"),
        ("bytes=0-1\n", "InvalidArgument"),
    ],
)
async def test_copied_ranges_have_one_form_and_lie_within(endpoint: Endpoint, value: str, code: str) -> None:
    await endpoint.put("source", b"01234")
    upload_id = await begin(endpoint)
    query = [("partNumber", "1"), ("uploadId", upload_id)]
    headers = {"x-amz-copy-source": "bucket/source", "x-amz-copy-source-range": value}
    await endpoint.fails(code, "UploadPartCopy", "bucket", "key", query=query, headers=headers)


async def test_copying_a_part_checks_source_and_conditions(endpoint: Endpoint) -> None:
    await endpoint.put("source", b"01234")
    upload_id = await begin(endpoint)
    query = [("partNumber", "1"), ("uploadId", upload_id)]
    for headers, code in (
        ({"x-amz-copy-source": "bucket/absent"}, "NoSuchKey"),
        ({"x-amz-copy-source": "absent/source"}, "NoSuchBucket"),
        ({"x-amz-copy-source": "bucket/source", "x-amz-copy-source-if-match": "x"}, "PreconditionFailed"),
    ):
        await endpoint.fails(code, "UploadPartCopy", "bucket", "key", query=query, headers=headers)


async def test_a_copied_part_has_at_most_five_gib(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    await endpoint.put("source", b"01234")
    upload_id = await begin(endpoint)
    monkeypatch.setattr(upload_part, "MAX_COPY_BYTES", 4)
    query = [("partNumber", "1"), ("uploadId", upload_id)]
    headers = {"x-amz-copy-source": "bucket/source"}
    await endpoint.fails("InvalidRequest", "UploadPartCopy", "bucket", "key", query=query, headers=headers)
    await copy_part(endpoint, upload_id, 1, {**headers, "x-amz-copy-source-range": "bytes=0-3"})


# -- listings --


async def test_parts_are_listed_in_pages(endpoint: Endpoint) -> None:
    upload_id = await begin(endpoint)
    for number in (3, 1, 2):
        await upload(endpoint, upload_id, number, b"x" * number)
    query = [("uploadId", upload_id), ("max-parts", "2")]
    first = (await endpoint.run("ListParts", "bucket", "key", query=query)).document
    assert [(part.number, part.size) for part in first.parts] == [(1, 1), (2, 2)]
    assert (first.truncated, first.next_part_number_marker, first.max_parts) == (True, 2, 2)
    assert (first.upload.id, first.owner, first.initiator) == (
        upload_id,
        Owner("owner-id", "owner"),
        Owner("owner-id", "owner"),
    )
    query += [("part-number-marker", "2")]
    second = (await endpoint.run("ListParts", "bucket", "key", query=query)).document
    assert [part.number for part in second.parts] == [3]
    assert (second.truncated, second.part_number_marker) == (False, 2)
    query = [("uploadId", upload_id), ("max-parts", "0")]
    assert not (await endpoint.run("ListParts", "bucket", "key", query=query)).document.parts
    for name in ("max-parts", "part-number-marker"):
        query = [("uploadId", upload_id), (name, "x")]
        await endpoint.fails("InvalidArgument", "ListParts", "bucket", "key", query=query)


async def test_uploads_are_listed_in_pages_with_prefixes(endpoint: Endpoint) -> None:
    made = []
    for key in ("a", "a", "dir/x", "dir/y", "z"):
        endpoint.now += SECOND
        made.append((key, await begin(endpoint, key)))
    seen = []
    markers: list[tuple[str, str]] = []
    while True:
        page = (await endpoint.run("ListMultipartUploads", "bucket", query=[("max-uploads", "2"), *markers])).document
        seen += [(upload.key, upload.id) for upload in page.uploads]
        if not page.truncated:
            break
        markers = [("key-marker", page.next_key_marker), ("upload-id-marker", page.next_upload_id_marker)]
    assert sorted(seen) == sorted(made)
    assert [key for key, _ in seen] == [key for key, _ in made]
    page = (await endpoint.run("ListMultipartUploads", "bucket", query=[("delimiter", "/")])).document
    assert [upload.key for upload in page.uploads] == ["a", "a", "z"]
    assert list(page.common_prefixes) == ["dir/"]
    assert page.owner == Owner("owner-id", "owner")
    query = [("upload-id-marker", made[0][1])]
    assert len((await endpoint.run("ListMultipartUploads", "bucket", query=query)).document.uploads) == 5
    await endpoint.fails("InvalidArgument", "ListMultipartUploads", "bucket", query=[("max-uploads", "-1")])
    page = (await endpoint.run("ListMultipartUploads", "bucket", query=[("max-uploads", "0")])).document
    assert (list(page.uploads), page.truncated, page.max_uploads) == ([], False, 0)


async def test_the_initiator_is_whoever_began(endpoint: Endpoint) -> None:
    reply = await endpoint.run("CreateMultipartUpload", "bucket", "key", principal=OTHER)
    query = [("uploadId", reply.document.upload_id)]
    listed = (await endpoint.run("ListParts", "bucket", "key", query=query)).document
    assert (listed.initiator.id, listed.owner.id) == ("other-id", "owner-id")


async def test_https_shows_in_the_location(endpoint: Endpoint) -> None:
    upload_id = await begin(endpoint)
    body = document([(1, await upload(endpoint, upload_id, 1, LAST))])
    query = [("uploadId", upload_id)]
    reply = await endpoint.run("CompleteMultipartUpload", "bucket", "key", query=query, body=body, secure=True)
    assert reply.document.location == "https://s3.test:9000/bucket/key"
