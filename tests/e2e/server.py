"""The endpoint under test: `s3verbs serve` as a child process that can be stopped, killed, frozen and started again."""

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ACCESS_KEY = "E2EROOTACCESSKEY0001"
SECRET_KEY = "e2e/secret+key=0123456789abcdefghijklmnop"
REGION = "us-east-1"
DEFAULT_BUCKET = "kvcache"


def free_port() -> int:
    """A port of 127.0.0.1 outside the range that the kernel gives to outgoing connections, so that a server which is
    down for a while finds it free when it comes back."""
    for _ in range(200):
        port = random.randint(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port on 127.0.0.1")


@dataclass(frozen=True)
class Endpoint:
    """What a client needs to reach a bucket. `ca` is a PEM file for an https endpoint with its own authority."""

    url: str
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY
    region: str = REGION
    ca: str = ""

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])


@dataclass
class Server:
    """One `s3verbs serve` with one data directory, and `extra` in its environment. The log holds the output of all its
    starts; beside it, with `.access` after its name, lies the access log."""

    data: Path
    log: Path
    workers: int = 2
    options: Sequence[str] = ()
    tls: tuple[Path, Path] | None = None
    extra: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    health_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    exit_codes: list[int] = field(default_factory=list)

    @property
    def endpoint(self) -> Endpoint:
        if self.tls:
            return Endpoint(url=f"https://localhost:{self.port}", ca=str(self.tls[0]))
        return Endpoint(url=f"http://127.0.0.1:{self.port}")

    def start(self, *, timeout: float = 30) -> None:
        """Return once the server says that it is ready."""
        tls = ["--tls-cert", str(self.tls[0]), "--tls-key", str(self.tls[1])] if self.tls else []
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *s3verbs("serve"),
                    *("--data", str(self.data), "--workers", str(self.workers)),
                    *("--listen", f"127.0.0.1:{self.port}", "--metrics-listen", f"127.0.0.1:{self.health_port}"),
                    *("--bucket", DEFAULT_BUCKET, "--domain", "localhost", "--access-log", f"{self.log}.access"),
                    *tls,
                    *self.options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment() | self.extra,
                start_new_session=True,
            )
        deadline = time.monotonic() + timeout
        while not self.is_ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"the server left with {self.process.returncode}:\n{self.log_text()[-4000:]}")
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the server was not ready within {timeout} s:\n{self.log_text()[-4000:]}")
            time.sleep(0.05)

    def is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.health_port, timeout=2)
        try:
            connection.request("GET", "/health/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def stop(self, *, timeout: float = 30) -> int:
        """Ask it to stop as a service manager does, and wait. The exit code."""
        assert self.process is not None
        self.process.terminate()
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"the server did not stop within {timeout} s:\n{self.log_text()[-4000:]}") from None
        self.exit_codes.append(code)
        self.process = None
        return code

    def kill(self) -> None:
        """SIGKILL to the supervisor and to every worker, as a power cut of the process would."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None
        wait_until(lambda: not listens(self.port), 10)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Keep all its processes from running: connections open, nothing answers."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.process.pid, signal.SIGCONT)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def requests(self) -> list[dict[str, Any]]:
        """The lines of the access log so far."""
        lines = Path(f"{self.log}.access").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def refusals(self) -> list[dict[str, Any]]:
        """The lines of the access log whose status is 400 or more."""
        return [entry for entry in self.requests() if entry["status"] >= 400]

    def check(self) -> subprocess.CompletedProcess[str]:
        """`s3verbs admin check` on the data directory of the stopped server."""
        return subprocess.run(
            [*s3verbs("admin", "check"), "--data", str(self.data)],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment(),
            check=False,
        )

    def close(self) -> None:
        """Stop it if it runs, then require that nothing went wrong inside: exit codes, log, stored data."""
        if self.process is not None:
            self.stop()
        assert all(code == 0 for code in self.exit_codes), f"exit codes {self.exit_codes}\n{self.log_text()[-4000:]}"
        log = self.log_text()
        assert "Traceback (most recent call last)" not in log, log[log.index("Traceback (most recent call last)") :][
            :6000
        ]
        checked = self.check()
        assert checked.returncode == 0, f"admin check found damage:\n{checked.stdout}\n{checked.stderr}"


def s3verbs(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "s3verbs.gateway", *arguments]


def environment() -> dict[str, str]:
    """The server's environment: the checkout's code, the root key, and none of the settings of the person who tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("S3VERBS_", "AWS_"))}
    return {
        **kept,
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONUNBUFFERED": "1",
        "S3VERBS_ROOT_ACCESS_KEY": ACCESS_KEY,
        "S3VERBS_ROOT_SECRET_KEY": SECRET_KEY,
    }


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition: object, timeout: float) -> None:
    """Poll a callable until it is true; raise TimeoutError after `timeout` seconds."""
    assert callable(condition)
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout} s")
        time.sleep(0.05)
