"""Fixtures of the end-to-end tests: the running server, a second client that observes it, and the rigs around both.

A module shares one server and each test has its own bucket; a test that stops or kills the server asks for
`own_server`. When a server is done with, its exit codes, log and data directory must be clean (see Server.close).

S3VERBS_E2E_ENDPOINT (with S3VERBS_E2E_ACCESS_KEY and S3VERBS_E2E_SECRET_KEY) points the tests at an endpoint that
already runs, such as another S3 server to compare with. Tests that need to control the server are skipped then.
"""

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from tests.e2e.clients import Driver
from tests.e2e.fault_proxy import FaultProxy
from tests.e2e.server import ACCESS_KEY, DEFAULT_BUCKET, SECRET_KEY, Endpoint, Server

HERE = Path(__file__).resolve().parent
EXTERNAL = os.environ.get("S3VERBS_E2E_ENDPOINT")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)


def observer_of(endpoint: Endpoint) -> Any:
    """A boto3 client of the test process: it prepares buckets and looks at what another client has done."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint.url,
        aws_access_key_id=endpoint.access_key,
        aws_secret_access_key=endpoint.secret_key,
        region_name=endpoint.region,
        verify=endpoint.ca or None,
        config=Config(s3={"addressing_style": "path"}, retries={"mode": "standard", "total_max_attempts": 2}),
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if EXTERNAL:
        pytest.skip("S3VERBS_E2E_ENDPOINT is set: this test controls the server")
    folder = tmp_path_factory.mktemp("server")
    server = Server(data=folder / "data", log=folder / "log")
    server.start()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server that the test may stop, kill and start again."""
    if EXTERNAL:
        pytest.skip("S3VERBS_E2E_ENDPOINT is set: this test controls the server")
    server = Server(data=tmp_path / "data", log=tmp_path / "server.log")
    server.start()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def endpoint(request: pytest.FixtureRequest) -> Endpoint:
    if EXTERNAL:
        return Endpoint(
            EXTERNAL,
            os.environ.get("S3VERBS_E2E_ACCESS_KEY", ACCESS_KEY),
            os.environ.get("S3VERBS_E2E_SECRET_KEY", SECRET_KEY),
        )
    running: Server = request.getfixturevalue("server")
    return running.endpoint


@pytest.fixture(scope="module")
def observer(endpoint: Endpoint) -> Iterator[Any]:
    client = observer_of(endpoint)
    yield client
    client.close()


@pytest.fixture
def bucket(observer: Any, request: pytest.FixtureRequest) -> str:
    """A new bucket, named after the test."""
    letters = "".join(c if c.isalnum() else "-" for c in request.node.name.lower())
    name = f"{letters[:50].strip('-')}-{os.urandom(4).hex()}"
    observer.create_bucket(Bucket=name)
    return name


Start = Callable[..., Driver]


@pytest.fixture
def start(endpoint: Endpoint) -> Iterator[Start]:
    """start(environment, script, case, **arguments) runs a driver and gives its handle; it ends with the test."""
    running: list[Driver] = []

    def start(
        environment: str,
        script: str,
        case: str,
        *,
        at: Endpoint = endpoint,
        extra: dict[str, str] | None = None,
        cwd: Path | None = None,
        **arguments: Any,
    ) -> Driver:
        driver = Driver(environment, script, case, at, arguments, extra, cwd)
        running.append(driver)
        return driver

    yield start
    for driver in running:
        driver.close()


@pytest.fixture
def drive(start: Start) -> Callable[..., Any]:
    """drive(environment, script, case, **arguments) runs a driver to its end and gives its result."""

    def drive(environment: str, script: str, case: str, *, timeout: float = 120, **arguments: Any) -> Any:
        driver = start(environment, script, case, **arguments)
        result = driver.result(timeout)
        driver.close()
        return result

    return drive


@pytest.fixture
def proxy(endpoint: Endpoint) -> Iterator[FaultProxy]:
    with FaultProxy(upstream=endpoint.port) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def localhost_names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment in which `bucket.localhost` is the loopback address, for clients that only know virtual hosts."""
    try:
        if socket.getaddrinfo(f"{DEFAULT_BUCKET}.localhost", 80)[0][4][0] in ("127.0.0.1", "::1"):
            return {}
    except OSError:
        pass
    library = tmp_path_factory.mktemp("names") / "localhost_names.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "localhost_names.c"], check=True)
    return {"LD_PRELOAD": str(library)}


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for localhost and 127.0.0.1, and its key: PEM files."""
    folder = tmp_path_factory.mktemp("tls")
    paths = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *(
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
                "-addext",
                "subjectAltName=DNS:localhost,DNS:*.localhost,IP:127.0.0.1",
            ),
            *("-out", str(paths[0]), "-keyout", str(paths[1])),
        ],
        check=True,
        capture_output=True,
    )
    return paths
