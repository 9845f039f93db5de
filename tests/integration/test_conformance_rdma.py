"""`python -m conformance rdma` against the real server, and against servers that are wrong on purpose."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.integration.endpoint import ACCESS_KEY, BUCKET, ROOT, SECRET_KEY, Endpoint


def conformance(port: int, report: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit status, the JSON report and what was printed."""
    result = subprocess.run(
        [
            *(sys.executable, "-m", "conformance", "rdma", "--endpoint", f"http://127.0.0.1:{port}"),
            *("--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY, "--json", str(report), "--quiet", *arguments),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert not result.stderr, result.stderr
    return result.returncode, json.loads(report.read_text()), result.stdout


class Wrong(BaseHTTPRequestHandler):
    """Keeps objects, knows no RDMA header, answers 200 to everything."""

    protocol_version = "HTTP/1.1"
    objects: ClassVar[dict[str, bytes]]
    reply: ClassVar[dict[str, str]] = {}
    keeps = True

    def answer(self) -> None:
        path = self.path.partition("?")[0]
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        if self.command == "PUT" and self.keeps:
            self.objects[path] = body
        stored = self.objects.get(path, b"") if self.command in ("GET", "HEAD") else b""
        self.send_response(200)
        for name, value in {"Content-Length": str(len(stored)), "ETag": '"x"', **self.reply}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(stored)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def log_message(self, *_: object) -> None:
        pass


class Liar(Wrong):
    """Says that it moved bytes by RDMA, and stores nothing."""

    keeps = False
    reply: ClassVar[dict[str, str]] = {"x-amz-rdma-reply": "200", "x-amz-rdma-bytes-transferred": "4096"}


@pytest.fixture
def wrong(request: pytest.FixtureRequest) -> Iterator[int]:
    handler = type("Handler", (request.param,), {"objects": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("wrong", [Wrong, Liar], indirect=True)
def test_a_server_that_answers_200_to_everything_fails(wrong: int, tmp_path: Path) -> None:
    status, report, printed = conformance(wrong, tmp_path / "report.json", "--transport", "none")
    assert status == 1
    assert "spoken" not in report["offers"]["dialects"].values()
    failed = [row for row in report["results"] if row["outcome"] == "failed"]
    assert {row["section"] for row in failed} == {"2 token", "3 headers", "5 decline"}
    passed = {row["name"] for row in report["results"] if row["outcome"] == "passed"}
    # What only asks that a token is ignored is right of a server that ignores everything.
    assert all(" ignores " in name for name in passed), passed
    assert all(row["expected"] and row["seen"] for row in failed)
    assert printed.strip().endswith("not applicable")
