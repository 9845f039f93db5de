"""boto3 with default settings over HTTP: bytes, codes, headers."""

import base64
import hashlib
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clients import MIB, payload, sha256
from tests.e2e.server import Endpoint

Drive = Callable[..., Any]

LMCACHE_KEY = "tiny_llama_1_0_2f%3A9c1d_bfloat16"
AWKWARD_KEYS = [
    "a=b",
    "a+b",
    "a@b=c",
    "100%",
    "%41 is not A",
    "tilde~",
    "two  spaces",
    " leading and trailing ",
    "double//slash",
    "//leading",
    "/",
    "trailing/",
    "dot/./here",
    "dots/../up",
    "..",
    "üñí/çødé",
    "日本語/キー",
    "emoji/\N{ROCKET}\N{SNOWMAN}",
    "quote\"'<&>;",
    "hash#query?x=y&z",
    "back\\slash",
    "{[(|^`)]}",
    "foo",
    "foo/",
    "foo/bar",
    "é combining",
    "a" * 1019,
    LMCACHE_KEY,
    "vllm@tiny/llama@1@0@abcdef0123456789",
]


def crc32(data: bytes) -> str:
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def quoted_md5(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


@pytest.mark.parametrize("size", [0, 1, 4096, 16 * 1024, 16 * 1024 + 1, 8 * MIB + 3])
def test_put_head_and_get_agree(drive: Drive, bucket: str, size: int) -> None:
    attributes = {
        "Metadata": {"made-by": "a test", "empty": ""},
        "ContentType": "application/x-kv",
        "CacheControl": "max-age=60",
        "ContentDisposition": "attachment",
        "ContentLanguage": "en",
    }
    (done,) = drive("sdk", "boto3_client", "round_trip", bucket=bucket, keys=["k"], size=size, **attributes)
    data = payload("k", size)
    assert done["put"]["status"] == 200
    assert done["put"]["ETag"] == done["head"]["ETag"] == done["get"]["ETag"] == quoted_md5(data)
    assert done["put"]["ChecksumCRC32"] == done["head"]["ChecksumCRC32"] == crc32(data)
    assert done["get"]["sha256"] == sha256(data)
    for answer in (done["head"], done["get"]):
        assert answer["ContentLength"] == size
        assert {name: answer[name] for name in attributes} == attributes
    assert len({done[name]["request_id"] for name in ("put", "head", "get")}) == 3


@pytest.mark.parametrize("style", ["path", "virtual"])
def test_awkward_keys_survive(
    drive: Drive, endpoint: Endpoint, bucket: str, localhost_names: dict[str, str], style: str
) -> None:
    at = Endpoint(url=f"http://localhost:{endpoint.port}") if style == "virtual" else endpoint
    result = drive(
        "sdk",
        "boto3_client",
        "keys_survive",
        at=at,
        extra=localhost_names,
        bucket=bucket,
        keys=AWKWARD_KEYS,
        style=style,
    )
    expected = {key: sha256(payload(key, 100)) for key in AWKWARD_KEYS}
    assert result["read"] == expected
    assert result["copied"] == expected
    everything = [*AWKWARD_KEYS, *(f"copy/{key}" for key in AWKWARD_KEYS)]
    assert result["listed"] == sorted(everything, key=str.encode)
    assert result["deleted"] == sorted(AWKWARD_KEYS[1::2])
    assert result["errors"] == []
    assert result["left"] == sorted((f"copy/{key}" for key in AWKWARD_KEYS), key=str.encode)


def test_a_key_may_have_1024_bytes_and_no_more(observer: Any, bucket: str) -> None:
    observer.put_object(Bucket=bucket, Key="é" * 512, Body=b"longest")
    assert observer.get_object(Bucket=bucket, Key="é" * 512)["Body"].read() == b"longest"
    with pytest.raises(observer.exceptions.ClientError) as refused:
        observer.put_object(Bucket=bucket, Key="é" * 512 + "x", Body=b"")
    assert refused.value.response["Error"]["Code"] == "KeyTooLongError"


def test_pages_neither_repeat_nor_lose_a_key(drive: Drive, bucket: str) -> None:
    keys = sorted(
        [f"a/{number:03}" for number in range(25)]
        + [f"a/deep/{number}" for number in range(5)]
        + [f"{letter}/x" for letter in "bcdefgh"]
        + ["a", "b", "z", "a-", "a0", "é"],
        key=str.encode,
    )
    result = drive("sdk", "boto3_client", "listing", bucket=bucket, keys=keys, page_size=4)
    top = [key for key in keys if "/" not in key]
    for name in ("list_objects", "list_objects_v2"):
        assert result[f"{name} flat"] == {"keys": keys, "prefixes": [], "largest": 4}
        assert result[f"{name} folders"] == {"keys": top, "prefixes": [f"{x}/" for x in "abcdefgh"], "largest": 4}
        below = [f"a/{number:03}" for number in range(25)]
        assert result[f"{name} prefix"] == {"keys": below, "prefixes": ["a/deep/"], "largest": 4}
    assert result["after"] == keys[len(keys) // 2 + 1 :]


def test_delete_one_and_a_thousand(drive: Drive, bucket: str) -> None:
    result = drive("sdk", "boto3_client", "delete", bucket=bucket, count=1000)
    assert (result["one"], result["absent"]) == (204, 204)
    assert (result["deleted"], result["errors"], result["left"]) == (1000, [], 0)
    assert (result["gone"]["status"], result["gone"]["code"]) == (404, "NoSuchKey")


@pytest.mark.parametrize("size", [1000, 9 * MIB])
def test_a_copy_outlives_its_source(drive: Drive, observer: Any, bucket: str, size: int) -> None:
    other = f"other-{bucket[-20:]}"
    observer.create_bucket(Bucket=other)
    result = drive("sdk", "boto3_client", "copy", bucket=bucket, other=other, size=size)
    data = payload("copy", size)
    for name, metadata, kind in (("kept", {"a": "1"}, "text/x-a"), ("replaced", {"b": "2"}, "text/x-b")):
        assert result[name]["sha256"] == sha256(data)
        assert result[name]["ETag"] == quoted_md5(data)
        assert (result[name]["Metadata"], result[name]["ContentType"]) == (metadata, kind)
    assert (result["itself"]["status"], result["itself"]["code"]) == (400, "InvalidRequest")
    assert (result["absent"]["status"], result["absent"]["code"]) == (404, "NoSuchKey")


def test_the_transfer_manager_moves_64_mib_in_parts(drive: Drive, bucket: str, tmp_path: Path) -> None:
    size, part = 64 * MIB, 8 * MIB
    result = drive("sdk", "boto3_client", "transfer", bucket=bucket, folder=str(tmp_path), size=size, part=part)
    data = payload("transfer", size)
    parts = [data[start : start + part] for start in range(0, size, part)]
    etag = hashlib.md5(b"".join(hashlib.md5(piece).digest() for piece in parts)).hexdigest() + "-8"
    head = result["head"]
    assert (head["ETag"], head["ContentLength"], head["Metadata"]) == (f'"{etag}"', size, {"made": "by boto3"})
    # boto3 declares CRC32 at the start and sends no type, which AWS takes as COMPOSITE.
    composite = base64.b64encode(
        zlib.crc32(b"".join(zlib.crc32(p).to_bytes(4, "big") for p in parts)).to_bytes(4, "big")
    )
    assert (head["ChecksumCRC32"], head["ChecksumType"]) == (composite.decode() + "-8", "COMPOSITE")
    assert result["file"] == result["whole"]["sha256"] == result["copied"]["sha256"] == sha256(data)
    assert result["copied"]["ETag"] == f'"{etag}"'
    assert (result["part"]["status"], result["part"]["parts"]) == (206, 8)
    assert result["part"]["sha256"] == sha256(parts[1])
    assert result["part"]["ContentRange"] == f"bytes {part}-{2 * part - 1}/{size}"
    assert result["uploads"] == 0


def test_an_aborted_upload_is_gone_and_a_complete_one_is_final(drive: Drive, bucket: str) -> None:
    result = drive("sdk", "boto3_client", "abort", bucket=bucket)
    assert result["before"] == [True]
    assert (result["after"]["status"], result["after"]["code"]) == (404, "NoSuchUpload")
    assert (result["invalid"]["status"], result["invalid"]["code"]) == (400, "InvalidPart")
    assert (result["late"]["status"], result["late"]["code"]) == (404, "NoSuchUpload")
    assert result["kept"] == "kept"


def test_one_of_64_conditional_writers_wins(drive: Drive, bucket: str) -> None:
    result = drive("sdk", "boto3_client", "conditional_writers", bucket=bucket, writers=64)
    codes = Counter((outcome["status"], outcome["code"]) for outcome in result["outcomes"])
    assert codes == {(200, ""): 1, (412, "PreconditionFailed"): 63}
    winner = next(number for number, outcome in enumerate(result["outcomes"]) if outcome["status"] == 200)
    assert result["stored"] == sha256(payload(winner, 32_768))
    assert (result["stale"]["status"], result["stale"]["code"]) == (412, "PreconditionFailed")
    assert (result["absent"]["status"], result["absent"]["code"]) == (404, "NoSuchKey")
    assert (result["current"]["status"], result["unchanged"]["status"], result["changed"]["status"]) == (200, 304, 412)


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_each_checksum_is_kept_verified_and_given_back(drive: Drive, bucket: str, algorithm: str) -> None:
    part = 5 * MIB
    result = drive("sdk", "boto3_client", "checksums", bucket=bucket, algorithm=algorithm, part=part)
    field = f"Checksum{algorithm}"
    data = payload(algorithm, 100_000)
    known = {"CRC32": crc32, "SHA1": lambda d: b64(hashlib.sha1(d)), "SHA256": lambda d: b64(hashlib.sha256(d))}
    if algorithm in known:
        assert result["put"][field] == known[algorithm](data)
    assert result["get"][field] == result["put"][field]
    assert (result["get"]["sha256"], result["get"]["ChecksumType"]) == (sha256(data), "FULL_OBJECT")
    assert (result["refused"]["status"], result["refused"]["code"]) == (400, "BadDigest")
    assert result["absent"]["status"] == 404
    whole = payload(f"{algorithm}1", part) + payload(f"{algorithm}2", 1000)
    assert result["whole"]["sha256"] == sha256(whole)
    composite = algorithm != "CRC64NVME"
    assert result["head"]["ChecksumType"] == ("COMPOSITE" if composite else "FULL_OBJECT")
    assert result["head"][field].endswith("-2") == composite
    assert result["complete"][field] == result["head"][field] == result["whole"][field]
    if algorithm == "SHA256":
        pieces = whole[:part], whole[part:]
        digests = b"".join(hashlib.sha256(piece).digest() for piece in pieces)
        assert result["head"][field] == b64(hashlib.sha256(digests)) + "-2"
    assert result["without"]["sha256"] == sha256(whole)


def b64(digest: Any) -> str:
    return base64.b64encode(digest.digest()).decode()


@pytest.mark.parametrize("size", [10_000, 3 * MIB])
def test_ranges(drive: Drive, bucket: str, size: int) -> None:
    data = payload("ranges", size)
    served = {
        "bytes=0-0": (0, 1),
        "bytes=5-": (5, size),
        "bytes=-7": (size - 7, size),
        f"bytes=-{size + 1}": (0, size),
        f"bytes={size - 1}-{size + 500}": (size - 1, size),
        "bytes=100-8000": (100, 8001),
    }
    refused = [f"bytes={size}-", f"bytes={size}-{size + 1}", "bytes=-0"]
    ignored = ["bytes=5-1", "lines=1-2", "bytes=x-y"]
    result = drive("sdk", "boto3_client", "ranges", bucket=bucket, size=size, wanted=[*served, *refused, *ignored])
    for value, (start, end) in served.items():
        answer = result[value]
        assert (answer["status"], answer["sha256"]) == (206, sha256(data[start:end])), value
        assert answer["ContentRange"] == f"bytes {start}-{end - 1}/{size}"
        assert answer["ContentLength"] == end - start
    for value in refused:
        assert result[value] == {"status": 416, "code": "InvalidRange"}, value
    for value in ignored:
        assert (result[value]["status"], result[value]["sha256"]) == (200, sha256(data)), value


def test_presigned_urls(drive: Drive, bucket: str) -> None:
    result = drive("sdk", "boto3_client", "presigned", bucket=bucket)
    check_presigned(result)


def check_presigned(result: dict[str, Any]) -> None:
    data = payload("presigned", 70_000)
    assert result["put"]["status"] == 200
    assert (result["get"]["status"], result["get"]["sha256"]) == (200, sha256(data))
    assert (result["head"]["status"], result["head"]["length"]) == (200, "70000")
    assert (result["tampered"]["status"], code(result["tampered"])) == (403, "SignatureDoesNotMatch")
    assert (result["method"]["status"], code(result["method"])) == (403, "SignatureDoesNotMatch")
    assert (result["unsigned"]["status"], code(result["unsigned"])) == (403, "AccessDenied")
    assert (result["expired"]["status"], code(result["expired"])) == (403, "AccessDenied")
    assert "expired" in result["expired"]["text"]


def code(answer: dict[str, Any]) -> str:
    return str(answer.get("text", "").partition("<Code>")[2].partition("</Code>")[0])


def test_refusals_carry_the_codes_of_aws(drive: Drive, bucket: str) -> None:
    result = drive("sdk", "boto3_client", "refusals", bucket=bucket)
    seen = {name: (value["status"], value["code"]) for name, value in result.items() if name != "not empty"}
    assert seen == {
        "key": (404, "NoSuchKey"),
        "head": (404, "404"),
        "bucket": (404, "NoSuchBucket"),
        "access key": (403, "InvalidAccessKeyId"),
        "secret key": (403, "SignatureDoesNotMatch"),
        "not here": (501, "NotImplemented"),
    }
    assert result["key"]["details"]["Key"] == "absent"
    stored, refused = result["not empty"]
    assert (stored, refused["status"], refused["code"]) == (200, 409, "BucketNotEmpty")


@pytest.mark.parametrize("style", ["path", "virtual"])
def test_the_common_runtime_transfers_files(
    drive: Drive, endpoint: Endpoint, bucket: str, tmp_path: Path, localhost_names: dict[str, str], style: str
) -> None:
    at = Endpoint(url=f"http://localhost:{endpoint.port}") if style == "virtual" else endpoint
    arguments = {"bucket": bucket, "folder": str(tmp_path), "sizes": [0, 5000, 8 * MIB, 64 * MIB - 1], "style": style}
    result = drive("sdk", "crt_client", "transfer", at=at, extra=localhost_names, **arguments)
    for size, answer in result.items():
        assert answer["sha256"] == sha256(payload(int(size), int(size)))
        assert answer["length"] == int(size)
        assert answer["etag"].endswith('-8"') == (int(size) > 8 * MIB)
