"""What the processes that run NIXL are told."""

import argparse
import socket
from pathlib import Path

import pytest

from s3verbs.bench.endpoint import Access, from_chain
from s3verbs.bench.errors import CannotStart
from s3verbs.bench.jobs import job_for, local_socket
from s3verbs.bench.options import add_arguments
from s3verbs.bench.worker_process import Job

ACCESS = Access("https://10.0.1.1:9000", "AK", "SK", token="TOKEN", region="eu-1", ca_bundle="/ca.pem")
LIBRARY = "libcuobjclient.so.1"


def job(transport: str, *arguments: str, socket: str = "") -> Job:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return job_for(parser.parse_args(arguments), transport, ACCESS, "bk", socket, 2, 4096)


def test_the_transports_differ_in_the_engine_only() -> None:
    http, rdma = job("http", "--num-threads", "7").parameters, job("rdma", "--num-threads", "7").parameters
    assert dict(rdma) == {**http, "accelerated": "true", "type": "dell"}
    assert dict(http) == {
        "endpoint_override": "https://10.0.1.1:9000",
        "scheme": "https",
        "access_key": "AK",
        "secret_key": "SK",
        "session_token": "TOKEN",
        "bucket": "bk",
        "region": "eu-1",
        "ca_bundle": "/ca.pem",
        "use_virtual_addressing": "false",
        "req_checksum": "required",
        "num_threads": "7",
    }


def test_a_further_parameter_is_for_the_transport_that_it_names() -> None:
    given = ["--nixl", "http:crtMinLimit=5", "--nixl", "req_checksum=supported"]
    assert job("http", *given).parameters["crtMinLimit"] == "5"
    assert "crtMinLimit" not in job("rdma", *given).parameters
    assert job("rdma", *given).parameters["req_checksum"] == "supported"


def test_the_engine_gets_its_transport_and_the_gateways_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / LIBRARY).touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", "/else")
    told = job("rdma", "--rdma-transport", "rc", "--library", str(tmp_path), socket="/run/9000.sock").environment
    assert told == {
        "S3VERBS_SOCKET": "/run/9000.sock",
        "S3VERBS_TRANSPORT": "rc",
        "LD_LIBRARY_PATH": f"{tmp_path}:/else",
    }


def test_an_engine_that_the_loader_finds_already_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / LIBRARY).touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f":/else:{tmp_path}")
    assert job("rdma").environment == {}


def test_the_socket_of_a_gateway_on_this_machine_is_found_by_its_port(tmp_path: Path) -> None:
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path)}
    (tmp_path / "s3verbs").mkdir(mode=0o700)
    place = tmp_path / "s3verbs" / "19871.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(place))
        listener.listen()
        assert local_socket("http://127.0.0.1:19871", runtime) == str(place)
        assert local_socket("http://127.0.0.1:19872", runtime) == ""
        assert local_socket("http://192.0.2.1:19871", runtime) == ""
        assert local_socket("http://127.0.0.1:19871", {**runtime, "S3VERBS_SOCKET": "/mine"}) == ""
    assert local_socket("http://127.0.0.1:19871", runtime) == "", "nobody listens there any more"


@pytest.mark.parametrize(
    "url",
    ["", "10.0.1.1:9000", "ftp://h", "http://", "http://h:9000/bucket", "http://h?x=1", "http://h:99999", "http://[h"],
)
def test_what_is_no_endpoint_is_refused(url: str) -> None:
    with pytest.raises(CannotStart, match="must be http://HOST:PORT"):
        from_chain(url, "us-east-1")


def test_keys_come_from_the_usual_chain_and_without_any_it_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(CannotStart, match="no access key found: set AWS_ACCESS_KEY_ID"):
        from_chain("http://h:9000", "us-east-1")
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = A\naws_secret_access_key = S\n")
    assert from_chain("http://h:9000/", "us-east-1") == Access("http://h:9000", "A", "S")
