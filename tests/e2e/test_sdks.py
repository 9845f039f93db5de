"""minio-py, s3fs, pyarrow (AWS SDK for C++) and obstore (Rust): each with its own signer and its own idea of S3."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clients import MIB, payload, sha256
from tests.e2e.server import Endpoint

Drive = Callable[..., Any]


def etag_of(data: bytes, part: int) -> str:
    """The ETag of an upload in parts of `part` bytes, or of a plain put where the data fits in one."""
    if len(data) <= part:
        return hashlib.md5(data).hexdigest()
    digests = [hashlib.md5(data[start : start + part]).digest() for start in range(0, len(data), part)]
    return f"{hashlib.md5(b''.join(digests)).hexdigest()}-{len(digests)}"


def test_minio_py(drive: Drive, bucket: str, tmp_path: Path) -> None:
    sizes = [0, 1000, 5 * MIB, 12 * MIB]
    result = drive("sdk", "minio_client", "objects", bucket=bucket, sizes=sizes, folder=str(tmp_path))
    for size in sizes:
        data = payload(size, size)
        expected = {"etag": etag_of(data, 5 * MIB), "same": True, "size": size, "metadata": "1", "sha256": sha256(data)}
        assert result["stored"][str(size)] == expected
    largest = payload(12 * MIB, 12 * MIB)
    for name in ("unknown", "file", "presigned"):
        assert result[name] == sha256(largest), name
    assert result["range"] == sha256(largest[1000:6000])
    assert result["copy"] == [sha256(largest), "2"]
    assert result["composed"] == sha256(largest + largest)
    keys = [f"größe/{size} +=@~%" for size in sizes]
    assert result["listed"] == sorted([*keys, "unknown length", "copy", "composed"], key=str.encode)
    assert result["folders"] == ["größe/"]
    assert result["absent"] == ["NoSuchKey", "NoSuchKey"]
    assert (result["errors"], result["left"]) == ([], 0)


def test_minio_py_buckets(drive: Drive, bucket: str) -> None:
    result = drive("sdk", "minio_client", "buckets", name=f"m-{bucket[-20:]}")
    assert (result["before"], result["made"], result["after"]) == (False, [True, True], False)
    # AWS answers 200 to the owner in us-east-1 and this code everywhere else.
    assert result["again"] in ("", "BucketAlreadyOwnedByYou")


def test_s3fs(drive: Drive, bucket: str) -> None:
    size = 17 * MIB
    result = drive("s3fs", "s3fs_client", "files", bucket=bucket, size=size)
    data = payload("s3fs", size)
    assert result["whole"] == result["copied"] == sha256(data)
    assert result["tail"] == sha256(data[-777_777:])
    assert result["range"] == sha256(data[10:5010])
    assert result["many"] == {"deep/er/big file=1": sha256(data), "deep/small": sha256(data[:1000])}
    assert result["info"] == [size, "file", "directory"]
    assert result["ls"] == ["deep/er", "deep/small"]
    assert result["find"] == ["deep/er/big file=1", "deep/small"]
    assert result["glob"] == ["deep/er/big file=1"]
    assert result["moved"] == [False, sha256(data)]
    assert result["absent"] == "FileNotFoundError"
    assert result["left"] == ["moved"]


def test_pyarrow(drive: Drive, bucket: str) -> None:
    size = 23 * MIB
    result = drive("sdk", "pyarrow_client", "files", bucket=bucket, size=size)
    data = payload("pyarrow", size)
    assert result["whole"] == sha256(data)
    assert result["type"] == "application/x-arrow"
    assert result["range"] == sha256(data[size - 6000 : size - 1000])
    expected = [
        ["dir", "Directory", 0],
        ["dir/big=1 +é", "File", size],
        ["dir/copy", "File", size],
        ["dir/moved", "File", 10],
    ]
    assert result["found"] == expected
    assert result["absent"] == "NotFound"
    assert result["rows"] == [9000, sum(range(1, 9000, 3))]
    assert result["left"] == ["dir/copy", "dir/moved"]


@pytest.mark.parametrize(("style", "checksum"), [("path", ""), ("path", "SHA256"), ("virtual", "")])
def test_obstore(
    drive: Drive, endpoint: Endpoint, bucket: str, localhost_names: dict[str, str], style: str, checksum: str
) -> None:
    sizes = [0, 1000, 13 * MIB]
    at = Endpoint(url=f"http://localhost:{endpoint.port}") if style == "virtual" else endpoint
    arguments = {"bucket": bucket, "sizes": sizes, "checksum": checksum, "style": style}
    result = drive("sdk", "obstore_client", "objects", at=at, extra=localhost_names, **arguments)
    for size in sizes:
        data = payload(size, size)
        expected = {"size": size, "etag": f'"{etag_of(data, 5 * MIB)}"', "sha256": sha256(data), "type": "x/y"}
        assert result["stored"][str(size)] == expected
    largest = payload(13 * MIB, 13 * MIB)
    assert result["range"] == sha256(largest[100:9000])
    assert result["ranges"] == [sha256(largest[:10]), sha256(largest[4 * MIB : 4 * MIB + 10])]
    assert (result["again"], result["stale"], result["once"]) == ("AlreadyExistsError", "PreconditionError", "third")
    assert result["copy"] == sha256(largest)
    keys = [f"dir/{size} =+@é" for size in sizes]
    assert result["listed"] == sorted([*keys, "once", "copy"])
    assert result["folders"] == [["dir"], ["copy", "once"]]
    assert result["absent"] == "FileNotFoundError"
    assert result["left"] == []
