"""aws-cli: version 1 of today, with integrity checksums by default, and the version 2 that Debian ships."""

import contextlib
import http.client
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e import environments
from tests.e2e.clients import MIB, payload, program, run
from tests.e2e.server import Endpoint

Aws = Callable[..., str]


@pytest.fixture(params=["v1", "v2"])
def aws(request: pytest.FixtureRequest, endpoint: Endpoint, tmp_path: Path) -> Aws:
    if request.param == "v1":
        command = [str(environments.ensure("sdk")), str(environments.VENVS / "sdk" / "bin" / "aws")]
    else:
        command = [program("/usr/bin/aws")]

    # Version 1 signs URLs with SigV2 unless it is told otherwise.
    config = tmp_path / "aws-config"
    config.write_text("[default]\ns3 =\n  signature_version = s3v4\n")

    def aws(*arguments: str, status: int = 0) -> str:
        extra = {"AWS_CONFIG_FILE": str(config)}
        done = run([*command, "--endpoint-url", endpoint.url, *arguments], endpoint, extra=extra, check=False)
        assert done.returncode == status, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout if status == 0 else done.stderr

    return aws


def read(observer: Any, bucket: str, key: str) -> bytes:
    return bytes(observer.get_object(Bucket=bucket, Key=key)["Body"].read())


@pytest.mark.parametrize("size", [0, 5000, 20 * MIB])
def test_cp_up_and_down(aws: Aws, observer: Any, bucket: str, tmp_path: Path, size: int) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(payload("cp", size))
    aws("s3", "cp", str(source), f"s3://{bucket}/a dir/f=1+é.bin")
    assert read(observer, bucket, "a dir/f=1+é.bin") == payload("cp", size)
    aws("s3", "cp", f"s3://{bucket}/a dir/f=1+é.bin", str(target))
    assert target.read_bytes() == payload("cp", size)
    head = observer.head_object(Bucket=bucket, Key="a dir/f=1+é.bin")
    # The default threshold and part size are 8 MiB.
    assert head["ETag"].endswith('-3"') == (size > 8 * MIB)


def test_cp_between_keys_and_mv(aws: Aws, observer: Any, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(payload("mv", 10 * MIB))
    aws("s3", "cp", str(tmp_path / "f"), f"s3://{bucket}/one")
    # Above 8 MiB version 2 also copies tags, which needs GetObjectTagging.
    options = ("--copy-props", "metadata-directive") if is_v2(aws) else ()
    aws("s3", "cp", *options, f"s3://{bucket}/one", f"s3://{bucket}/two")
    aws("s3", "mv", *options, f"s3://{bucket}/two", f"s3://{bucket}/three")
    assert read(observer, bucket, "three") == payload("mv", 10 * MIB)
    assert [entry["Key"] for entry in observer.list_objects_v2(Bucket=bucket)["Contents"]] == ["one", "three"]


def test_sync_ls_and_rm(aws: Aws, observer: Any, bucket: str, tmp_path: Path) -> None:
    files = {f"d{number % 3}/f{number}": payload(number, number * 1000) for number in range(12)}
    for name, data in files.items():
        path = tmp_path / "up" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        # sync compares with the time of the object, which S3 lists in whole seconds.
        os.utime(path, (time.time() - 3600, time.time() - 3600))
    aws("s3", "sync", str(tmp_path / "up"), f"s3://{bucket}/tree")
    assert {name: read(observer, bucket, f"tree/{name}") for name in files} == files
    assert aws("s3", "sync", str(tmp_path / "up"), f"s3://{bucket}/tree") == "", "nothing changed, so nothing is sent"
    listed = aws("s3", "ls", f"s3://{bucket}/tree/")
    assert [line.split()[1] for line in listed.splitlines()] == ["d0/", "d1/", "d2/"]
    listed = aws("s3", "ls", "--recursive", f"s3://{bucket}/tree/")
    sizes = {line.split()[3]: int(line.split()[2]) for line in listed.splitlines()}
    assert sizes == {f"tree/{name}": len(data) for name, data in files.items()}
    aws("s3", "sync", f"s3://{bucket}/tree", str(tmp_path / "down"))
    assert {name: (tmp_path / "down" / name).read_bytes() for name in files} == files
    aws("s3", "rm", "--recursive", f"s3://{bucket}/tree/d1")
    left = [entry["Key"] for entry in observer.list_objects_v2(Bucket=bucket)["Contents"]]
    assert left == sorted(f"tree/{name}" for name in files if not name.startswith("d1/"))


def test_buckets_come_and_go(aws: Aws, bucket: str) -> None:
    name = f"cli-{bucket[-20:]}"
    aws("s3", "mb", f"s3://{name}")
    assert name in [line.split()[2] for line in aws("s3", "ls").splitlines()]
    aws("s3", "rb", f"s3://{name}")
    assert name not in aws("s3", "ls")
    assert "NoSuchBucket" in aws("s3api", "list-objects-v2", "--bucket", name, status=254 if is_v2(aws) else 255)


def test_presign(aws: Aws, observer: Any, bucket: str) -> None:
    observer.put_object(Bucket=bucket, Key="a key", Body=b"presigned")
    url = urlsplit(aws("s3", "presign", f"s3://{bucket}/a key", "--region", "us-east-1").strip())
    with contextlib.closing(http.client.HTTPConnection(url.netloc)) as connection:
        connection.request("GET", f"{url.path}?{url.query}")
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b"presigned")


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA256"])
def test_put_object_with_a_chosen_checksum(aws: Aws, bucket: str, tmp_path: Path, algorithm: str) -> None:
    (tmp_path / "f").write_bytes(payload("api", 70_000))
    where = ("--bucket", bucket, "--key", "k")
    put = json.loads(
        aws("s3api", "put-object", *where, "--body", str(tmp_path / "f"), "--checksum-algorithm", algorithm)
    )
    head = json.loads(aws("s3api", "head-object", *where, "--checksum-mode", "ENABLED"))
    assert put[f"Checksum{algorithm}"] == head[f"Checksum{algorithm}"]
    aws("s3api", "get-object", *where, "--checksum-mode", "ENABLED", str(tmp_path / "g"))
    assert (tmp_path / "g").read_bytes() == payload("api", 70_000)


def is_v2(aws: Aws) -> bool:
    return aws("--version").startswith("aws-cli/2")
