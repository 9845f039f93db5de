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

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815  http.server's names

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


def failures(report: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    fields = ("name", "transport", "expected", "seen")
    return [tuple(row[field] for field in fields) for row in report["results"] if row["outcome"] == "failed"]


@pytest.mark.parametrize("bucket", ["", BUCKET])
def test_the_server_does_as_the_contract_says(bucket: str, tmp_path: Path) -> None:
    """Every case, those that move bytes too, in a bucket of its own (strict) and in one that was there."""
    with Endpoint(tmp_path / "data", "--rdma", "auto", workers=2) as server:
        arguments = ["--transport", "samehost", *(["--bucket", bucket] if bucket else [])]
        status, report, printed = conformance(server.port, tmp_path / "report.json", *arguments)
        left = server.client().list_objects_v2(Bucket=BUCKET).get("Contents", [])
        uploads = server.client().list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        buckets = [each["Name"] for each in server.client().list_buckets()["Buckets"]]
        logged = server.errors
    assert failures(report) == []
    assert status == 0, printed
    assert "Traceback" not in logged
    assert " ERROR " not in logged
    offers = report["offers"]
    assert offers["dialects"] == {"x-amz-rdma-token": "spoken", "x-rdma-info": "spoken"}
    assert offers["extensions"] == {"rc1": "spoken", "cma1": "spoken"}
    assert offers["transports"]["samehost"] == "spoken"
    assert report["summary"]["not applicable"] == 0
    assert (left, uploads, buckets) == ([], [], [BUCKET])


def test_a_server_with_rdma_off_declines_every_token(tmp_path: Path) -> None:
    with Endpoint(tmp_path / "data", "--rdma", "off") as server:
        status, report, printed = conformance(server.port, tmp_path / "report.json")
    assert failures(report) == []
    assert status == 0, printed
    assert report["offers"]["dialects"] == {"x-amz-rdma-token": "spoken", "x-rdma-info": "spoken"}
    assert report["offers"]["transports"]["samehost"] != "spoken"
    skipped = {row["why"] for row in report["results"] if row["outcome"] == "not applicable"}
    assert skipped == {"no transport moves bytes"}
