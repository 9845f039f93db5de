"""The client library against moto, a server that has never heard of RDMA: it takes a token for a header like any other,
and an RDMA PUT for one of no bytes."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

import s3verbs
from s3verbs.rdma.client.errors import Declined, NotFound, PreconditionFailed, TokenIgnored
from tests.unit.rdma_client.scripted import FakeTransport, Guarded

BUCKET = "moto-bucket"
KEYS = {"access_key": "AK", "secret_key": "SK"}
DATA = bytes(range(256)) * 4096


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL."""
    output = tmp_path_factory.mktemp("moto") / "output"
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    with output.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    try:
        yield _url(process, output)
    finally:
        process.terminate()
        process.wait(20)


def _url(process: "subprocess.Popen[bytes]", output: Path) -> str:
    deadline = time.monotonic() + 60
    while (found := re.search(r"Running on (http://127\.0\.0\.1:\d+)", output.read_text())) is None:
        assert process.poll() is None, output.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found[1]


@pytest.fixture
def boto(moto: str) -> Iterator[Any]:
    client = boto3.client(
        "s3", endpoint_url=moto, aws_access_key_id="AK", aws_secret_access_key="SK", region_name="us-east-1"
    )
    client.create_bucket(Bucket=BUCKET)
    yield client
    client.close()


def test_a_put_with_a_token_is_not_a_success(moto: str, boto: Any) -> None:
    boto.put_object(Bucket=BUCKET, Key="before", Body=b"older")
    with s3verbs.Client(moto, transport=FakeTransport(), **KEYS) as s3, s3.register(DATA) as region:
        with pytest.raises(TokenIgnored, match=f"EMPTY object at {BUCKET}/lost"):
            s3.put_from(BUCKET, "lost", region)
        # What the error says is what happened, and it happens to no second object.
        assert boto.head_object(Bucket=BUCKET, Key="lost")["ContentLength"] == 0
        assert s3.put_from(BUCKET, "before", region).transport == "http"
        assert boto.get_object(Bucket=BUCKET, Key="before")["Body"].read() == DATA
        assert s3.counters().rdma_share == 0


def test_a_get_before_a_put_saves_the_object(moto: str, boto: Any) -> None:
    boto.put_object(Bucket=BUCKET, Key="k", Body=DATA)
    memory = Guarded(len(DATA))
    with s3verbs.Client(moto, transport=FakeTransport(), **KEYS) as s3, s3.register(memory.view) as region:
        result = s3.get_into(BUCKET, "k", region)
        assert (result.size, result.transport) == (len(DATA), "http")
        assert memory.content == DATA
        assert s3.put_from(BUCKET, "other", region).transport == "http"
    assert boto.get_object(Bucket=BUCKET, Key="other")["Body"].read() == DATA


def test_without_fallback_it_is_an_error_and_nothing_is_stored(moto: str, boto: Any) -> None:
    boto.put_object(Bucket=BUCKET, Key="k", Body=DATA)
    options = {**KEYS, "transport": FakeTransport(), "fallback": False}
    with s3verbs.Client(moto, **options) as s3, s3.register(bytearray(DATA)) as region:
        with pytest.raises(Declined, match="ignores"):
            s3.get_into(BUCKET, "k", region)
        with pytest.raises(Declined, match="ignores"):
            s3.put_from(BUCKET, "never", region)
        with pytest.raises(NotFound):
            s3.get_into(BUCKET, "never", region)


def test_as_an_ordinary_s3_client(moto: str, boto: Any) -> None:
    memory = Guarded(12 << 20)
    memory.view[:] = DATA * 12
    with s3verbs.Client(moto, transport="http", part_size=5 << 20, **KEYS) as s3:
        region = s3.register(memory.view)
        put = s3.put_from(BUCKET, "large ä+/key", region, metadata={"Colour": "red"}, checksum="crc32")
        assert put.parts == 3
        head = boto.head_object(Bucket=BUCKET, Key="large ä+/key")
        assert (head["ContentLength"], head["Metadata"], head["ETag"]) == (12 << 20, {"colour": "red"}, put.etag)
        memory.view[:] = bytes(12 << 20)
        got = s3.get_into(BUCKET, "large ä+/key", region)
        assert (got.size, got.parts) == (12 << 20, 3)
        assert memory.content == DATA * 12

        small = region[: len(DATA)]
        s3.put_from(BUCKET, "small", small, checksum="sha256", if_none_match="*")
        with pytest.raises(PreconditionFailed):
            s3.put_from(BUCKET, "small", small, if_none_match="*")
        assert s3.get_into(BUCKET, "small", region, (1 << 10, 3 << 10)).size == 2 << 10
        assert bytes(region.memory.place.chunks(0, 2048).__next__()) == DATA[1 << 10 : 3 << 10]
        assert s3.get_into(BUCKET, "small", region[:100], "bytes=-100").size == 100
        s3.put_from(BUCKET, "empty", region[:0])
        assert s3.get_into(BUCKET, "empty", region).size == 0
        with pytest.raises(NotFound) as missing:
            s3.get_into(BUCKET, "missing", small)
        assert missing.value.code == "NoSuchKey"
    assert len(memory.content) == 12 << 20
