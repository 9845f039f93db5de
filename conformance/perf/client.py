"""The load client: builds `load.c` with the system compiler and runs it over requests that were signed beforehand."""

import json
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

SOURCE = Path(__file__).with_name("load.c")


@dataclass(frozen=True)
class Endpoint:
    """Where and how to reach a server. Without an access key, requests go unsigned (nginx)."""

    host: str
    port: int
    access_key: str = ""
    secret_key: str = ""

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@dataclass(frozen=True)
class Load:
    """One measurement. Rates are per second of wall clock; latencies in microseconds."""

    requests: int
    errors: int
    last_bad_status: int
    bytes_moved: int
    seconds: float
    p50_us: float
    p99_us: float
    client_cpu: float
    crc32: tuple[int, ...] = ()
    """Of the last body that each connection received, where it was kept."""

    @property
    def per_second(self) -> float:
        return (self.requests - self.errors) / self.seconds

    @property
    def megabytes_per_second(self) -> float:
        return self.bytes_moved / self.seconds / 1e6


def head(endpoint: Endpoint, method: str, path: str, query: str = "", body_bytes: int = 0) -> bytes:
    """A request head, signed with UNSIGNED-PAYLOAD. `path` and `query` are percent-encoded already."""
    url = f"{endpoint.url}{path}" + (f"?{query}" if query else "")
    headers = {"x-amz-content-sha256": "UNSIGNED-PAYLOAD"}
    if method in ("PUT", "POST"):
        headers["Content-Length"] = str(body_bytes)
    request = AWSRequest(method=method, url=url, headers=headers)
    if endpoint.access_key:
        request.context["payload_signing_enabled"] = False
        request.context["client_config"] = None
        _Signer(Credentials(endpoint.access_key, endpoint.secret_key), "s3", "us-east-1").add_auth(request)
    target = path + (f"?{query}" if query else "")
    lines = [f"{method} {target} HTTP/1.1", f"Host: {endpoint.host}:{endpoint.port}"]
    lines += [f"{name}: {value}" for name, value in request.headers.items() if name.lower() != "host"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class _Signer(S3SigV4Auth):
    """botocore signs the payload over plain HTTP unless told otherwise; the load client never does."""

    def _should_sha256_sign_payload(self, request: AWSRequest) -> bool:
        return False


def compile_c(source: Path, binary: Path) -> Path:
    """Build one C file with the compiler that built this Python, or cc; returns `binary`."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    subprocess.run([compiler, "-O2", "-o", str(binary), str(source)], check=True)
    return binary


class LoadClient:
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="s3verbs-load-")
        self._binary = compile_c(SOURCE, Path(self._folder.name) / "load")

    def run(
        self,
        endpoint: Endpoint,
        heads: Iterable[bytes],
        *,
        connections: int,
        seconds: float,
        body_bytes: int = 0,
        total: int = 0,
        receive_bytes: int = 0,
    ) -> Load:
        """`receive_bytes`: the size of each connection's buffer for bodies; 0 drops them."""
        requests = b"".join(b"%d\n%s" % (len(each), each) for each in heads)
        command = [
            str(self._binary),
            endpoint.host,
            str(endpoint.port),
            str(connections),
            str(seconds),
            str(body_bytes),
            str(total),
            *([str(receive_bytes)] if receive_bytes else []),
        ]
        result = subprocess.run(command, input=requests, check=True, capture_output=True, timeout=seconds + 120)
        out = json.loads(result.stdout)
        return Load(
            requests=out["requests"],
            errors=out["errors"],
            last_bad_status=out["last_bad_status"],
            bytes_moved=out["bytes_in"] + out["bytes_out"],
            seconds=out["seconds"],
            p50_us=out["p50_us"],
            p99_us=out["p99_us"],
            client_cpu=out["client_cpu"],
            crc32=tuple(out["crc32"]),
        )

    def close(self) -> None:
        self._folder.cleanup()
