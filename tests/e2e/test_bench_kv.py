"""`s3verbs bench kv` with the stock NIXL wheel: over HTTP and over the engine that `make client` builds."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from s3verbs.rdma.nixl.readiness import find_library
from tests.e2e import environments
from tests.e2e.clients import client_environment
from tests.e2e.server import DEFAULT_BUCKET, ROOT, Server


@pytest.fixture(scope="module")
def library() -> Path:
    try:
        return find_library(ROOT / "build" / "client" / "lib")
    except FileNotFoundError as error:
        pytest.fail(str(error), pytrace=False)


def test_both_transports_are_measured_from_an_environment_without_the_server(
    server: Server, observer: Any, library: Path, tmp_path: Path
) -> None:
    """300 tokens are two objects, the second one shorter; 2000 go through the buffer in four rounds."""
    python = str(environments.ensure("bench"))
    written, drawn = tmp_path / "out.json", tmp_path / "out.png"
    done = subprocess.run(
        [
            *(python, "-m", "s3verbs.gateway", "bench", "kv", "--endpoint", server.endpoint.url),
            *("--layers", "4", "--kv-heads", "2", "--head-dim", "64", "--contexts", "300,2000"),
            *("--memory", str(2 * 2 * 512 * 1024), "--repeat", "2", "--bucket", DEFAULT_BUCKET),
            *("--library", str(library.parent), "--json", str(written), "--plot", str(drawn), "--recompute", "1"),
        ],
        env=client_environment(server.endpoint, {"PYTHONPATH": str(ROOT / "src"), "HOME": os.environ["HOME"]}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("|     300 |") == done.stdout.count("|    2000 |") == 2
    found = json.loads(written.read_text())
    assert [(each["objects"], each["kv_bytes"]) for each in found["measurements"][::4]] == [
        (2, 300 * 2048),
        (8, 2000 * 2048),
    ]
    assert found["nixl"] == "nixl_cu13 1.5.1"
    assert any("samehost" in line for line in found["library_says"])
    assert drawn.read_bytes().startswith(b"\x89PNG")
    requests = [json.loads(line) for line in Path(f"{server.log}.access").read_text().splitlines()]
    moved = {
        (entry["method"], entry["rdma"]) for entry in requests if "/rdma/" in entry["key"] or "/http/" in entry["key"]
    }
    assert moved == {(method, transport) for method in ("PUT", "GET") for transport in ("samehost", "")}
    assert "Contents" not in observer.list_objects_v2(Bucket=DEFAULT_BUCKET, Prefix="s3verbs-bench/")
