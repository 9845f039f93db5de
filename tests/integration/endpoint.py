"""A running server for tests: the real command in processes of its own, on ports that the kernel chooses."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

ROOT = Path(__file__).resolve().parents[2]
ACCESS_KEY = "AKIATESTTESTTEST"
SECRET_KEY = "secret-of-the-tests"
BUCKET = "test-bucket"


def environment(extra: Mapping[str, str] = {}) -> dict[str, str]:
    """The environment of a server process: nothing of the caller's settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("S3VERBS_")}
    return {**inherited, "PYTHONPATH": str(ROOT / "src"), **extra}


def run(*arguments: str, env: Mapping[str, str] = {}, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """One command of s3verbs, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "s3verbs.gateway", *arguments],
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


class Endpoint:
    """A server process with its workers. Use as a context manager."""

    def __init__(
        self,
        data: Path,
        *arguments: str,
        workers: int = 1,
        bucket: str | None = BUCKET,
        keys: bool = True,
        env: Mapping[str, str] = {},
        patience: float = 30,
    ) -> None:
        """`patience`: seconds that the start may take."""
        self.data = data
        self._patience = patience
        self._arguments = [
            *("serve", "--data", str(data), "--workers", str(workers)),
            *(["--listen", "127.0.0.1:0"] if "--listen" not in arguments else []),
            *(["--metrics-listen", "127.0.0.1:0"] if "--metrics-listen" not in arguments else []),
            *(["--bucket", bucket] if bucket else []),
            *arguments,
        ]
        root = {"S3VERBS_ROOT_ACCESS_KEY": ACCESS_KEY, "S3VERBS_ROOT_SECRET_KEY": SECRET_KEY} if keys else {}
        self._environment = environment({**root, **env})
        self.banner = ""
        self.port = 0
        self.metrics_port = 0

    def __enter__(self) -> "Endpoint":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._stdout.parent)

    def start(self) -> None:
        outputs = Path(tempfile.mkdtemp(prefix="s3verbs-test-"))
        self._stdout = outputs / "stdout"
        self._stderr = outputs / "stderr"
        with self._stdout.open("wb") as stdout, self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "s3verbs.gateway", *self._arguments],
                env=self._environment,
                stdout=stdout,
                stderr=stderr,
            )
        deadline = time.monotonic() + self._patience
        while "access key" not in self.output:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"the server did not start: {self.errors}")
            time.sleep(0.02)
        self.banner = self.output
        self.port = int(re.search(r"endpoint +\S+:(\d+)", self.banner)[1])  # type: ignore[index]
        metrics = re.search(r"metrics +http://\S+?:(\d+)/", self.banner)
        self.metrics_port = int(metrics[1]) if metrics else 0

    def stop(self, number: int = signal.SIGTERM, timeout: float = 20) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    @property
    def output(self) -> str:
        return self._stdout.read_text()

    @property
    def errors(self) -> str:
        return self._stderr.read_text()

    @property
    def worker_pids(self) -> list[int]:
        return [
            int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

    def connect(self, timeout: float = 20) -> "Wire":
        return Wire(socket.create_connection(("127.0.0.1", self.port), timeout=timeout), self.port)

    def client(self, **options: Any) -> Any:
        """A boto3 client with default settings."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=options.pop("endpoint_url", f"http://127.0.0.1:{self.port}"),
            aws_access_key_id=options.pop("access_key", ACCESS_KEY),
            aws_secret_access_key=options.pop("secret_key", SECRET_KEY),
            region_name="us-east-1",
            **options,
        )


class Response:
    """`headers` has lower-case names."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def code(self) -> str:
        """The S3 error code in the body."""
        found = re.search(rb"<Code>(\w+)</Code>", self.body)
        return found[1].decode() if found else ""

    @property
    def keeps_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"


class Signer(S3SigV4Auth):  # type: ignore[misc, unused-ignore]
    """botocore's signer with a payload hash that the test chooses."""

    payload_hash = ""

    def payload(self, request: AWSRequest) -> str:
        return self.payload_hash or str(super().payload(request))


class Wire:
    """A client that writes bytes and reads responses, one connection."""

    def __init__(self, sock: socket.socket, port: int) -> None:
        self.sock = sock
        self.port = port
        self._file = sock.makefile("rb")

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.sock.close()

    def again(self) -> "Wire":
        """A second connection to the same server."""
        return Wire(socket.create_connection(("127.0.0.1", self.port), timeout=20), self.port)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def read(self, method: str = "GET") -> Response:
        """The next response, 100 Continue included. Raises EOFError when the connection is closed before."""
        line = self._file.readline()
        if not line:
            raise EOFError("closed")
        version, status, _ = line.decode().split(" ", 2)
        assert version == "HTTP/1.1"
        headers: dict[str, str] = {}
        while (line := self._file.readline()) != b"\r\n":
            if not line:
                raise EOFError("closed in a head")
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        body = b""
        if method != "HEAD" and status not in ("100", "204", "304"):
            if headers.get("transfer-encoding") == "chunked":
                body = self._chunks()
            else:
                body = self._exactly(int(headers.get("content-length", "0")))
        return Response(int(status), headers, body)

    def closed(self) -> bool:
        """Whether the server has closed; waits for it."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> Response:
        """Send a signed request and read its response."""
        self.send(self.signed(method, path, body, **headers))
        return self.read(method)

    def signed(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        head_only: bool = False,
        absolute: bool = False,
        **headers: str,
    ) -> bytes:
        """The bytes of a signed request. Header names are given with "_" for "-"."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        request = AWSRequest(method, f"http://127.0.0.1:{self.port}{path}", headers=dict(fields), data=body)
        signer = Signer(Credentials(ACCESS_KEY, SECRET_KEY), "s3", "us-east-1")
        signer.payload_hash = fields.get("x-amz-content-sha256", "")
        signer.add_auth(request)
        target = f"http://127.0.0.1:{self.port}{path}" if absolute else path
        lines = [f"{method} {target} HTTP/1.1", f"Host: 127.0.0.1:{self.port}"]
        lines += [f"{name}: {value}" for name, value in request.headers.items() if name.lower() != "host"]
        names = {name.lower() for name in fields}
        if (body or method in ("PUT", "POST")) and not names & {"content-length", "transfer-encoding"}:
            lines.append(f"Content-Length: {len(body)}")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode()
        return head if head_only else head + body

    def _exactly(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise EOFError(f"closed after {len(data)} of {count} bytes")
        return data

    def _chunks(self) -> bytes:
        pieces = []
        while size := int(self._file.readline(), 16):
            pieces.append(self._exactly(size))
            self._file.readline()
        self._file.readline()
        return b"".join(pieces)
