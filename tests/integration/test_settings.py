"""Every setting takes effect: one test for each, against a running server."""

import asyncio
import dataclasses
import ipaddress
import json
import os
import signal
import socket
import ssl
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

import s3verbs
from s3verbs.gateway.config import Settings, load
from s3verbs.gateway.rdma_routes import open_lanes, verbs_options
from s3verbs.rdma.errors import Declined
from s3verbs.rdma.samehost.table import SessionTable
from tests.integration.endpoint import ACCESS_KEY, BUCKET, SECRET_KEY, Endpoint, Wire, run

TESTED: set[str] = set()


def proves(*names: str) -> pytest.MarkDecorator:
    """Note which settings a test is about."""
    TESTED.update(names)
    return pytest.mark.filterwarnings("error")


@proves("data", "buckets")
def test_data_and_bucket(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    with Endpoint(first, "--data", str(second), "--bucket", "kvcache:relaxed") as endpoint:
        client = endpoint.client()
        assert {bucket["Name"] for bucket in client.list_buckets()["Buckets"]} == {BUCKET, "kvcache"}
        for number in range(16):
            client.put_object(Bucket=BUCKET, Key=str(number), Body=bytes(100_000))
    for directory in (first, second):
        assert sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) > 100_000
    listed = run("admin", "bucket", "list", "--data", str(first), "--data", str(second)).stdout
    assert "kvcache\trelaxed" in listed
    assert f"{BUCKET}\tstrict" in listed


@proves("listen", "workers", "metrics_listen")
def test_listen_workers_and_metrics_listen(tmp_path: Path) -> None:
    with Endpoint(
        tmp_path, "--listen", "127.0.0.1:0", "--listen", "[::1]:0", "--metrics-listen", "off", workers=3
    ) as one:
        assert len(one.worker_pids) == 3
        assert one.metrics_port == 0
        ports = [
            int(part.rpartition(":")[2]) for part in one.banner.partition("endpoint")[2].splitlines()[0].split(",")
        ]
        assert urllib_status(f"http://127.0.0.1:{ports[0]}/") == 403
        assert urllib_status(f"http://[::1]:{ports[1]}/") == 403
    with Endpoint(tmp_path, "--metrics-listen", "127.0.0.1:0") as two:
        assert urllib_status(f"http://127.0.0.1:{two.metrics_port}/health/live") == 200


def urllib_status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@proves("region", "enforce_region")
def test_region_and_enforce_region(tmp_path: Path) -> None:
    with Endpoint(tmp_path, "--region", "eu-west-9") as endpoint:
        assert "eu-west-9" in endpoint.banner
        assert endpoint.client().get_bucket_location(Bucket=BUCKET)["LocationConstraint"] == "eu-west-9"
    with Endpoint(tmp_path, "--region", "eu-west-9", "--enforce-region") as endpoint, endpoint.connect() as wire:
        assert wire.request("GET", "/").code == "AuthorizationHeaderMalformed"


@proves("domains")
def test_domains(tmp_path: Path) -> None:
    with Endpoint(tmp_path, "--domain", "s3.test") as endpoint, endpoint.connect() as wire:
        wire.send(f"GET /no-bucket-here/key HTTP/1.1\r\nHost: {BUCKET}.s3.test:{endpoint.port}\r\n\r\n".encode())
        response = wire.read()
        # Anonymous, so denied; the resource shows which bucket and key were meant.
        assert f"<Resource>/{BUCKET}/no-bucket-here/key</Resource>".encode() in response.body


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, private = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, private


@proves("tls_cert", "tls_key")
def test_tls(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    with Endpoint(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key)) as endpoint:
        assert f"https://127.0.0.1:{endpoint.port}" in endpoint.banner
        client = endpoint.client(endpoint_url=f"https://127.0.0.1:{endpoint.port}", verify=str(cert))
        body = bytes(range(256)) * 20_000
        client.put_object(Bucket=BUCKET, Key="large", Body=body)
        assert client.get_object(Bucket=BUCKET, Key="large")["Body"].read() == body
        context = ssl.create_default_context(cafile=str(cert))
        with socket.create_connection(("127.0.0.1", endpoint.port)) as plain:
            tls = context.wrap_socket(plain, server_hostname="127.0.0.1")
            with Wire(tls, endpoint.port) as wire:
                wire.send(b"GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n")
                assert wire.read().code == "BadRequest"
        # Plain HTTP to a TLS port ends; the server goes on.
        with endpoint.connect() as wire:
            wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            wire.closed()
        assert client.head_object(Bucket=BUCKET, Key="large")["ContentLength"] == len(body)


def test_a_certificate_without_its_key_is_refused_at_start(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, _ = certificate
    bad = tmp_path / "bad.pem"
    bad.write_text("no key")
    result = run("serve", "--data", str(tmp_path / "d"), "--tls-cert", str(cert), "--tls-key", str(bad))
    assert result.returncode == 2
    assert result.stderr.startswith(f"s3verbs: tls_cert: {cert} with tls_key {bad}: ")


@proves("root_access_key", "root_secret_key")
def test_root_keys_come_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "s3verbs.toml"
    file.write_text('root_access_key = "FROMTHEFILE"\nroot_secret_key = "and-its-secret"\n')
    with Endpoint(tmp_path / "data", "--config", str(file), keys=False) as endpoint:
        assert "FROMTHEFILE" in endpoint.banner
        assert "and-its-secret" not in endpoint.banner
        client = endpoint.client(access_key="FROMTHEFILE", secret_key="and-its-secret")
        assert client.list_buckets()["Buckets"]
        with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
            endpoint.client(access_key="FROMTHEFILE", secret_key="another-secret").list_buckets()


@proves("access_log", "audit_log")
def test_logs_go_to_files_that_can_be_rotated(tmp_path: Path) -> None:
    access, audit = tmp_path / "access.log", tmp_path / "audit.log"
    with Endpoint(tmp_path / "data", "--access-log", str(access), "--audit-log", str(audit), workers=2) as endpoint:
        with endpoint.connect() as wire:
            assert wire.request("GET", "/").status == 200
        lines = eventually(access)
        assert lines[0]["operation"] == "ListBuckets"
        assert eventually(audit)[0]["decision"] == "allowed"
        access.rename(tmp_path / "access.log.1")
        endpoint.process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        with endpoint.connect() as wire:
            assert wire.request("GET", f"/{BUCKET}").status == 200
        assert eventually(access)[0]["operation"] == "ListObjects"


def test_logs_go_to_stdout(tmp_path: Path) -> None:
    with Endpoint(tmp_path, "--access-log", "stdout") as endpoint:
        with endpoint.connect() as wire:
            assert wire.request("GET", "/").status == 200
        deadline = time.monotonic() + 5
        while '"operation": "ListBuckets"' not in endpoint.output and time.monotonic() < deadline:
            time.sleep(0.05)
        assert '"operation": "ListBuckets"' in endpoint.output


def eventually(file: Path) -> list[dict[str, object]]:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if file.exists() and (lines := file.read_text().splitlines()):
            return [json.loads(line) for line in lines]
        time.sleep(0.05)
    raise AssertionError(f"{file} stays empty")


@proves("header_timeout", "body_timeout", "keep_alive_timeout")
def test_timeouts(tmp_path: Path) -> None:
    times = ["--header-timeout", "0.5", "--body-timeout", "0.8", "--keep-alive-timeout", "1.4"]
    with Endpoint(tmp_path, *times) as endpoint:
        with endpoint.connect() as wire:
            assert 0.3 < seconds_until_closed(wire) < 1.2
        with endpoint.connect() as wire:
            wire.send(wire.signed("PUT", f"/{BUCKET}/k", b"12345")[:-1])
            started = time.monotonic()
            assert wire.read().code == "RequestTimeout"
            assert 0.6 < time.monotonic() - started < 2
        with endpoint.connect() as wire:
            assert wire.request("GET", "/").status == 200
            assert 1.1 < seconds_until_closed(wire) < 3


def seconds_until_closed(wire: Wire) -> float:
    started = time.monotonic()
    assert wire.closed()
    return time.monotonic() - started


@proves("drain_timeout")
def test_drain_timeout(tmp_path: Path) -> None:
    with Endpoint(tmp_path, "--drain-timeout", "1") as endpoint, endpoint.connect() as wire:
        wire.send(wire.signed("PUT", f"/{BUCKET}/k", b"12345")[:-1])
        time.sleep(0.2)
        started = time.monotonic()
        endpoint.stop()
        assert 0.8 < time.monotonic() - started < 5


@proves("max_connections")
def test_max_connections(tmp_path: Path) -> None:
    with Endpoint(tmp_path, "--max-connections", "2") as endpoint:
        held = [endpoint.connect() for _ in range(2)]
        for wire in held:
            assert wire.request("GET", "/").status == 200
        with endpoint.connect() as refused:
            response = refused.read()
            assert (response.status, response.code) == (503, "SlowDown")
            assert refused.closed()
        held.pop().close()
        time.sleep(0.2)
        with endpoint.connect() as wire:
            assert wire.request("GET", "/").status == 200
        held.pop().close()


@proves("buffer_pool")
def test_buffer_pool(tmp_path: Path) -> None:
    with Endpoint(tmp_path, "--buffer-pool", "4MiB", "--body-timeout", "30") as endpoint:
        held = []
        for number in range(4):
            wire = endpoint.connect()
            wire.send(wire.signed("PUT", f"/{BUCKET}/{number}", b"x" * 3_000_000)[:1000])
            held.append(wire)
        time.sleep(0.3)
        with endpoint.connect() as late:
            assert late.request("PUT", f"/{BUCKET}/small", b"small").status == 200
            started = time.monotonic()
            response = late.request("PUT", f"/{BUCKET}/late", b"x" * 3_000_000)
            assert (response.status, response.code) == (503, "SlowDown")
            assert 8 < time.monotonic() - started < 15
        for wire in held:
            wire.close()


@proves("map_bytes")
def test_map_bytes(tmp_path: Path) -> None:
    # LMDB's data file has the size of its map, sparse.
    with Endpoint(tmp_path, "--map-bytes", "32MiB"):
        assert (tmp_path / "metadata" / "data.mdb").stat().st_size <= 32 << 20
        assert mapped(tmp_path / "metadata" / "data.mdb") == 32 << 20


def mapped(file: Path) -> int:
    """The size of the map that the running worker has of a file."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = [line for line in maps.read_text().splitlines() if line.endswith(str(file))]
        except OSError:
            continue
        if lines:
            return sum(int(end, 16) - int(begin, 16) for begin, end in (line.split()[0].split("-") for line in lines))
    return 0


@proves("reserve_bytes")
def test_reserve_bytes(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path)
    available = free.f_bavail * free.f_frsize
    reserve = min(available * 2, 1 << 40)
    with Endpoint(tmp_path / "a", "--reserve-bytes", "0") as endpoint, endpoint.connect() as wire:
        assert wire.request("PUT", f"/{BUCKET}/k", b"x" * 100_000).status == 200
    if reserve > available:
        with Endpoint(tmp_path / "a", "--reserve-bytes", str(reserve)) as endpoint, endpoint.connect() as wire:
            assert wire.request("PUT", f"/{BUCKET}/k", b"x" * 100_000).code == "InsufficientStorage"
            assert wire.request("DELETE", f"/{BUCKET}/k").status == 204


@proves("stale_upload_days")
def test_stale_upload_days(tmp_path: Path) -> None:
    with Endpoint(tmp_path, "--stale-upload-days", "0") as endpoint:
        endpoint.client().create_multipart_upload(Bucket=BUCKET, Key="k")
        time.sleep(0.1)
    with Endpoint(tmp_path, "--stale-upload-days", "1") as endpoint:
        assert len(endpoint.client().list_multipart_uploads(Bucket=BUCKET)["Uploads"]) == 1
    with Endpoint(tmp_path, "--stale-upload-days", "0.000001") as endpoint:
        deadline = time.monotonic() + 10
        while "Uploads" in endpoint.client().list_multipart_uploads(Bucket=BUCKET) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "Uploads" not in endpoint.client().list_multipart_uploads(Bucket=BUCKET)


@proves("trusted_proxies")
@pytest.mark.parametrize("trusted", ["127.0.0.0/8", "10.0.0.0/8"])
def test_trusted_proxies(tmp_path: Path, trusted: str) -> None:
    log = tmp_path / "access.log"
    arguments = ["--trusted-proxy", trusted, "--access-log", str(log)]
    believed = trusted.startswith("127.")
    with Endpoint(tmp_path / "data", *arguments) as endpoint, endpoint.connect() as wire:
        signed = wire.signed("GET", "/").decode()
        host = f"127.0.0.1:{endpoint.port}"
        # The client signed the host it knows; the proxy asks for another.
        passed_on = signed.replace(
            f"Host: {host}\r\n",
            f"Host: backend:1\r\nX-Forwarded-Host: {host}\r\nX-Forwarded-For: 6.6.6.6, 192.0.2.7\r\n",
        )
        wire.send(passed_on.encode())
        assert wire.read().status == (200 if believed else 403)
        assert eventually(log)[0]["remote"] == ("192.0.2.7" if believed else "127.0.0.1")


TOKEN = "00007f1dc46fd010:00100000:0000abcd:0000:001234:1:00000000000000000000ffff7f000001"


@proves("rdma", "rdma_devices")
def test_rdma_and_rdma_devices(tmp_path: Path) -> None:
    with Endpoint(tmp_path / "auto") as endpoint, endpoint.connect() as wire:
        assert "rdma         no RC or DC: " in endpoint.banner
        assert f"same host    /run/s3verbs/{endpoint.port}.sock" in endpoint.banner or "XDG_RUNTIME_DIR" in os.environ
        assert gets_by(endpoint) == "samehost"
        declined = wire.request("PUT", f"/{BUCKET}/k2", x_amz_rdma_token=TOKEN)
        assert (declined.status, declined.code, declined.headers["x-amz-rdma-reply"]) == (501, "NotImplemented", "501")
    with Endpoint(tmp_path / "off", "--rdma", "off") as endpoint:
        assert endpoint.banner.count("off by setting") == 2
        assert gets_by(endpoint) == "http"
    result = run(
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--data",
        str(tmp_path / "x"),
        "--rdma",
        "required",
        "--rdma-device",
        "nosuch0",
    )
    assert result.returncode == 2
    assert "nosuch0" in result.stderr
    assert "Traceback" not in result.stderr


def gets_by(endpoint: Endpoint) -> str:
    """The transport that a client in this process gets."""
    with closing(
        s3verbs.Client(f"http://127.0.0.1:{endpoint.port}", access_key=ACCESS_KEY, secret_key=SECRET_KEY)
    ) as one:
        buffer = bytearray(100_000)
        with one.register(buffer) as region:
            one.put_from(BUCKET, "k", region)
            return one.get_into(BUCKET, "k", region).transport


@proves("socket")
def test_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Endpoint(tmp_path / "off", "--socket", "off") as endpoint:
        assert "same host    off by setting" in endpoint.banner
        assert gets_by(endpoint) == "http"
    path = tmp_path / "own.sock"
    with Endpoint(tmp_path / "own", "--socket", str(path)) as endpoint:
        assert f"same host    {path}" in endpoint.banner
        assert gets_by(endpoint) == "http"
        monkeypatch.setenv("S3VERBS_SOCKET", str(path))
        assert gets_by(endpoint) == "samehost"
    assert not path.exists()
    result = run(
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--data",
        str(tmp_path / "x"),
        "--socket",
        str(tmp_path / "no" / "such" / "folder"),
    )
    assert result.returncode == 2
    assert "socket: " in result.stderr


@proves("rdma_pool_bytes")
def test_rdma_pool_bytes(tmp_path: Path) -> None:
    with Endpoint(tmp_path, "--rdma-pool-bytes", "6MiB", workers=2) as endpoint:
        deadline = time.monotonic() + 10
        pool = 0.0
        while pool != 6 << 20 and time.monotonic() < deadline:
            time.sleep(0.1)
            page = urllib.request.urlopen(f"http://127.0.0.1:{endpoint.metrics_port}/metrics").read().decode()
            pool = float(page.partition("\ns3verbs_rdma_pool_bytes ")[2].partition("\n")[0] or 0)
        assert pool == 6 << 20


@proves("rdma_transfer_timeout", "rdma_queue_timeout")
async def test_rdma_times(tmp_path: Path) -> None:
    """Both are about clients that do not move; see test_rdma_operations for what they do to one."""
    table = SessionTable(1)
    settings = Settings(data=(tmp_path,), workers=1, rdma_transfer_timeout=0.7, rdma_queue_timeout=0.01)
    with ThreadPoolExecutor(1) as threads:
        lanes = open_lanes(settings, asyncio.get_running_loop(), threads, worker=0, sessions=table)
        assert lanes.transfer_timeout == 0.7
        held = [lanes.pool.try_acquire() for _ in range(lanes.pool.total)]
        with pytest.raises(Declined, match=r"0\.01 s"):
            await lanes.pool.acquire()
        for buffer in held:
            assert buffer is not None
            lanes.pool.release(buffer)
        await lanes.close()


@proves("rdma_dc_key", "rdma_allowed_peers", "rdma_max_connections", "rdma_idle_timeout")
def test_what_needs_a_device_gets_to_the_verbs() -> None:
    """There is none here; what they do is tested in the virtual machine, and for dynamic connections by their work
    requests."""
    flags = {"rdma_dc_key": "0x1234", "rdma_allowed_peers": ["10.1.0.0/16"]}
    found = verbs_options(load(None, {}, flags).settings)
    assert (found.dc_key, found.allowed_peers) == (0x1234, (ipaddress.ip_network("10.1.0.0/16"),))
    other = verbs_options(Settings(workers=4, rdma_max_connections=40, rdma_idle_timeout=9))
    assert (other.max_connections, other.idle_timeout) == (10, 9)


def test_settings_come_from_the_environment(tmp_path: Path) -> None:
    with Endpoint(tmp_path, env={"S3VERBS_REGION": "env-region-1"}) as endpoint:
        assert "env-region-1" in endpoint.banner
        assert ACCESS_KEY in endpoint.banner


def test_every_setting_has_such_a_test() -> None:
    assert {field.name for field in dataclasses.fields(Settings)} == TESTED
