"""s3cmd as Debian ships it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clients import MIB, payload, program, run
from tests.e2e.server import Endpoint

S3cmd = Callable[..., str]


@pytest.fixture(params=["path", "virtual"])
def s3cmd(request: pytest.FixtureRequest, endpoint: Endpoint, localhost_names: dict[str, str], tmp_path: Path) -> S3cmd:
    hosts = {"path": f"127.0.0.1:{endpoint.port}", "virtual": f"%(bucket)s.localhost:{endpoint.port}"}
    host = "localhost" if request.param == "virtual" else "127.0.0.1"
    config = tmp_path / "s3cfg"
    config.write_text(
        "[default]\n"
        f"access_key = {endpoint.access_key}\nsecret_key = {endpoint.secret_key}\n"
        f"host_base = {host}:{endpoint.port}\nhost_bucket = {hosts[request.param]}\n"
        f"bucket_location = {endpoint.region}\nuse_https = False\nsignature_v2 = False\n"
    )

    def s3cmd(*arguments: str) -> str:
        return run([program("s3cmd"), "-c", str(config), *arguments], endpoint, extra=localhost_names).stdout

    return s3cmd


@pytest.mark.parametrize("size", [0, 4096, 17 * MIB])
def test_put_get_info_and_del(s3cmd: S3cmd, observer: Any, bucket: str, tmp_path: Path, size: int) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(payload("s3cmd", size))
    url = f"s3://{bucket}/a dir/f=1+é~.bin"
    s3cmd("put", "--multipart-chunk-size-mb=5", str(source), url)
    head = observer.head_object(Bucket=bucket, Key="a dir/f=1+é~.bin")
    assert (head["ContentLength"], head["ETag"].endswith('-4"')) == (size, size > 5 * MIB)
    s3cmd("get", url, str(target))
    assert target.read_bytes() == payload("s3cmd", size)
    assert f"File size: {size}" in s3cmd("info", url)
    s3cmd("del", url)
    assert observer.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_ls_sync_and_recursive_del(s3cmd: S3cmd, observer: Any, bucket: str, tmp_path: Path) -> None:
    names = ["one", "d/two", "d/e/three"]
    for name in names:
        path = tmp_path / "up" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(payload(name, 1234))
    s3cmd("sync", f"{tmp_path / 'up'}/", f"s3://{bucket}/t/")
    for name in names:
        assert observer.get_object(Bucket=bucket, Key=f"t/{name}")["Body"].read() == payload(name, 1234)
    listed = s3cmd("ls", "--recursive", f"s3://{bucket}/t/")
    assert sorted(line.split()[3] for line in listed.splitlines()) == sorted(
        f"s3://{bucket}/t/{name}" for name in names
    )
    (tmp_path / "down").mkdir()
    s3cmd("sync", f"s3://{bucket}/t/", f"{tmp_path / 'down'}/")
    assert all((tmp_path / "down" / name).read_bytes() == payload(name, 1234) for name in names)
    s3cmd("cp", f"s3://{bucket}/t/one", f"s3://{bucket}/copy")
    assert observer.get_object(Bucket=bucket, Key="copy")["Body"].read() == payload("one", 1234)
    s3cmd("del", "--recursive", "--force", f"s3://{bucket}/t/d/")
    assert [entry["Key"] for entry in observer.list_objects_v2(Bucket=bucket)["Contents"]] == ["copy", "t/one"]


def test_buckets_come_and_go(s3cmd: S3cmd, bucket: str) -> None:
    name = f"s3cmd-{bucket[-20:]}"
    s3cmd("mb", f"s3://{name}")
    assert f"s3://{name}" in s3cmd("ls")
    s3cmd("rb", f"s3://{name}")
    assert f"s3://{name}" not in s3cmd("ls")
