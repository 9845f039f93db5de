"""Over HTTPS the SDKs move the checksum into a trailer: aws-chunked with STREAMING-UNSIGNED-PAYLOAD-TRAILER."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import environments
from tests.e2e.clients import MIB, payload, run, sha256
from tests.e2e.conftest import EXTERNAL
from tests.e2e.server import Endpoint, Server
from tests.e2e.test_boto3 import LMCACHE_KEY, check_presigned, crc32, quoted_md5

Drive = Callable[..., Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[Server]:
    """In place of the plain server of the other modules."""
    if EXTERNAL:
        pytest.skip("S3VERBS_E2E_ENDPOINT is set: this test controls the server")
    folder = tmp_path_factory.mktemp("tls-server")
    server = Server(data=folder / "data", log=folder / "log", tls=certificate)
    server.start()
    try:
        yield server
    finally:
        server.close()


@pytest.mark.parametrize("size", [0, 1, 70_000, 3 * MIB])
def test_boto3_puts_with_trailers(drive: Drive, bucket: str, size: int) -> None:
    keys = ["k", LMCACHE_KEY]
    done = drive("sdk", "boto3_client", "round_trip", bucket=bucket, keys=keys, size=size)
    for key, answer in zip(keys, done, strict=True):
        data = payload(key, size)
        assert answer["put"]["ETag"] == quoted_md5(data)
        assert answer["head"]["ChecksumCRC32"] == crc32(data)
        assert "ContentEncoding" not in answer["head"]
        assert answer["get"]["sha256"] == sha256(data)


def test_boto3_parts_carry_trailers_too(drive: Drive, bucket: str, tmp_path: Path) -> None:
    size, part = 20 * MIB, 8 * MIB
    result = drive("sdk", "boto3_client", "transfer", bucket=bucket, folder=str(tmp_path), size=size, part=part)
    assert result["file"] == result["whole"]["sha256"] == sha256(payload("transfer", size))
    assert result["head"]["ChecksumCRC32"].endswith("-3")


def test_boto3_presigned_urls(drive: Drive, bucket: str) -> None:
    check_presigned(drive("sdk", "boto3_client", "presigned", bucket=bucket))


def test_the_common_runtime(drive: Drive, bucket: str, tmp_path: Path) -> None:
    sizes = [5000, 20 * MIB]
    result = drive("sdk", "crt_client", "transfer", bucket=bucket, folder=str(tmp_path), sizes=sizes)
    assert {size: answer["sha256"] for size, answer in result.items()} == {str(s): sha256(payload(s, s)) for s in sizes}


def test_aws_cli(endpoint: Endpoint, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "up").write_bytes(payload("cli", 20 * MIB))
    aws = [
        str(environments.ensure("sdk")),
        str(environments.VENVS / "sdk" / "bin" / "aws"),
        "--endpoint-url",
        endpoint.url,
    ]
    run([*aws, "s3", "cp", str(tmp_path / "up"), f"s3://{bucket}/big"], endpoint)
    run([*aws, "s3", "cp", f"s3://{bucket}/big", str(tmp_path / "down")], endpoint)
    assert (tmp_path / "down").read_bytes() == payload("cli", 20 * MIB)


@pytest.mark.parametrize("parameters", [{"req_checksum": "required"}, {}], ids=["standard", "trailer"])
def test_nixl_with_a_private_authority(drive: Drive, bucket: str, parameters: dict[str, str]) -> None:
    arguments = {"bucket": bucket, "keys": ["k"], "sizes": [3 * MIB], "parameters": parameters}
    result = drive("nixl", "nixl_client", "round_trip", **arguments)
    assert result["write"]["state"] == "DONE"
    assert (result["read"]["state"], result["read"]["sha256"]) == ("DONE", [sha256(payload("k", 3 * MIB))])
