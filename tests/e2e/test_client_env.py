"""`s3verbs client env` beside the stock NIXL wheel: what it says is what NIXL then does."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e import environments
from tests.e2e.server import ROOT, Server

LIBRARY = ROOT / "build" / "client" / "lib" / "libcuobjclient.so.1"
SCRIPT = """
import sys
from nixl_cu13._api import nixl_agent, nixl_agent_config

bucket, endpoint, accelerated, type_ = sys.argv[1:]
agent = nixl_agent("env", nixl_agent_config(backends=[]))
agent.create_backend("OBJ", {"bucket": bucket, "endpoint_override": endpoint, "scheme": "http", "region": "us-east-1",
    "use_virtual_addressing": "false", "req_checksum": "required", "accelerated": accelerated, "type": type_})
import numpy
buffer = numpy.frombuffer(bytearray(b"bytes over RDMA."), dtype=numpy.uint8)
memory = agent.register_memory([(buffer.ctypes.data, buffer.nbytes, 0, "")], "DRAM", backends=["OBJ"])
objects = agent.register_memory([(0, buffer.nbytes, 7, "key")], "OBJ", backends=["OBJ"])
handle = agent.initialize_xfer("WRITE", memory.trim(), objects.trim(), "env", b"", ["OBJ"])
state = agent.transfer(handle)
while state == "PROC":
    state = agent.check_xfer_state(handle)
print("state", state)
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return environments.ensure("nixl-accelerated")


@pytest.fixture
def clean(server: Server) -> dict[str, str]:
    """The environment of a client on the gateway's machine; the keys are AWS's own variables."""
    found = [line.split()[-1] for line in server.log_text().splitlines() if line.startswith("  same host")]
    chosen = {"S3VERBS_SOCKET": found[-1], "PYTHONPATH": str(ROOT / "src")}
    keys = {"AWS_ACCESS_KEY_ID": server.endpoint.access_key, "AWS_SECRET_ACCESS_KEY": server.endpoint.secret_key}
    inherited = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR")}
    return {**inherited, **chosen, **keys}


def client_env(*arguments: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "s3verbs.gateway", "client", "env", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def write(python: Path, server: Server, bucket: str, environment: Mapping[str, str], line: str) -> tuple[int, str, str]:
    """NIXL's accelerated engine writes an object, in a shell that has evaluated the line."""
    words = [str(python), "-c", SCRIPT, bucket, server.endpoint.url, "true", "dell"]
    shell = ["sh", "-c", 'eval "$1"; shift; exec "$@"', "sh", line, *words]
    result = subprocess.run(shell, capture_output=True, text=True, env={**environment, "PYTHONPATH": ""}, timeout=120)
    return result.returncode, result.stdout, result.stderr


def test_nixl_loads_the_engine_where_it_says_so(
    python: Path, server: Server, bucket: str, clean: dict[str, str]
) -> None:
    assert LIBRARY.exists(), "make client"
    checked = client_env(
        "--library", str(LIBRARY.parent), "--nixl", str(python), "--endpoint", server.endpoint.url, environment=clean
    )
    assert checked.returncode == 0, checked.stderr
    assert f"ok       nixl-cu13 1.5.1: its OBJ plugin loads and takes {LIBRARY}" in checked.stderr
    assert "ok       engine: host memory goes by samehost" in checked.stderr
    code, said, errors = write(python, server, bucket, clean, checked.stdout)
    assert (code, said.splitlines()[-1:]) == (0, ["state DONE"]), errors
    without, _, errors = write(python, server, bucket, clean, "")
    assert without != 0
    assert "NIXL_ERR_NOT_FOUND" in errors


def test_nixl_does_not_load_it_where_it_says_so(
    python: Path, server: Server, bucket: str, clean: dict[str, str], tmp_path: Path
) -> None:
    """A library that is none: NIXL finds no OBJ plugin, and that is what was said before."""
    (tmp_path / LIBRARY.name).write_text("")
    checked = client_env("--library", str(tmp_path), "--nixl", str(python), environment=clean)
    assert checked.returncode == 1
    assert f"problem  {tmp_path / LIBRARY.name}: " in checked.stderr
    code, _, errors = write(python, server, bucket, clean, checked.stdout)
    assert code != 0
    assert "NIXL_ERR_NOT_FOUND" in errors


def test_a_wheel_without_the_accelerated_engine_is_named(clean: dict[str, str]) -> None:
    old = environments.ensure("nixl")
    checked = client_env("--library", str(LIBRARY.parent), "--nixl", str(old), environment=clean)
    assert checked.returncode == 1
    assert "problem  nixl-cu12 1.5.1: its OBJ plugin has no accelerated engine: pip install nixl-cu13" in checked.stderr
