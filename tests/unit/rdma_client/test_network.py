"""TLS with an authority of one's own, HTTP proxies, endpoints and their spelling."""

import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from s3verbs.rdma.client.errors import ConnectFailed, S3Error
from tests.unit.rdma_client.scripted import FakeTransport, Guarded, ScriptedServer, Store, answer, client, read_request

DATA = bytes(range(256)) * 1000


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(certificate, key) of 127.0.0.1, its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "s3verbs test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *private))
    return folder / "cert.pem", folder / "key.pem"


class TlsServer(ScriptedServer):
    def __init__(self, certificate: tuple[Path, Path]) -> None:
        super().__init__()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*certificate)

    def __enter__(self) -> "TlsServer":
        super().__enter__()
        self.url = f"https://127.0.0.1:{self.port}"
        return self

    def _serve(self, sock: socket.socket) -> None:
        try:
            wrapped = self._context.wrap_socket(sock, server_side=True)
        except (OSError, ssl.SSLError):
            sock.close()
            return
        self._sockets.append(wrapped)
        super()._serve(wrapped)


@pytest.fixture
def tls(certificate: tuple[Path, Path]) -> Iterator[TlsServer]:
    with TlsServer(certificate) as running:
        yield running


@pytest.mark.parametrize("way", ["path", "environment", "not at all"])
def test_over_tls_with_an_authority_of_ones_own(
    tls: TlsServer, transport: FakeTransport, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    store = Store(transport)
    tls.script += [store.put, store.get, answer(200, DATA, x_amz_rdma_reply="501")]
    if way == "environment":
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate[0]))
    verify = {"path": str(certificate[0]), "environment": True, "not at all": False}[way]
    memory = Guarded(len(DATA))
    memory.view[:] = DATA
    with client(tls, transport, verify=verify) as s3, s3.register(memory.view) as region:
        s3.put_from("b", "k", region)
        assert s3.get_into("b", "k", region).transport == "samehost"
        memory.view[:] = bytes(len(DATA))
        assert s3.get_into("b", "k", region).transport == "http"
    assert memory.content == DATA == store.data
    assert tls.accepted == 1


def test_bodies_go_over_tls_too(tls: TlsServer, certificate: tuple[Path, Path]) -> None:
    store = Store(FakeTransport())
    tls.script += [store.put, store.get] * 2
    with client(tls, "http", verify=str(certificate[0])) as s3, s3.register(bytearray(DATA)) as region:
        for _ in range(2):
            assert s3.put_from("b", "k", region).size == len(DATA)
            assert s3.get_into("b", "k", region).size == len(DATA)
    assert store.data == DATA
    assert tls.accepted == 1


def test_a_server_that_no_authority_vouches_for_gets_nothing(tls: TlsServer, transport: FakeTransport) -> None:
    with (
        client(tls, transport) as s3,
        s3.register(bytearray(10)) as region,
        pytest.raises(ConnectFailed, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        s3.get_into("b", "k", region)
    assert not tls.requests


class Proxy(ScriptedServer):
    """Forwards plain requests, and tunnels CONNECT. Notes the first line and the credentials of each connection."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            stream = sock.makefile("rb")
            try:
                while (request := read_request(stream, sock)) is not None:
                    self.seen.append(
                        (f"{request.method} {request.target}", request.headers.get("proxy-authorization", ""))
                    )
                    if request.method == "CONNECT":
                        self._tunnel(sock, request.target)
                        return
                    self._forward(sock, request)
            except OSError:
                return
            finally:
                stream.close()

    def _forward(self, sock: socket.socket, request: object) -> None:
        host, _, path = request.target.removeprefix("http://").partition("/")  # type: ignore[attr-defined]
        with socket.create_connection((host.split(":")[0], int(host.split(":")[1])), timeout=20) as upstream:
            lines = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items() if name != "connection")  # type: ignore[attr-defined]
            head = f"{request.method} /{path} HTTP/1.1\r\n{lines}connection: close\r\n\r\n"  # type: ignore[attr-defined]
            upstream.sendall(head.encode() + request.body)  # type: ignore[attr-defined]
            upstream.shutdown(socket.SHUT_WR)
            while data := upstream.recv(65536):
                sock.sendall(data)

    def _tunnel(self, sock: socket.socket, target: str) -> None:
        host, port = target.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=20) as upstream:
            sock.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")

            def copy(source: socket.socket, target: socket.socket) -> None:
                try:
                    while data := source.recv(65536):
                        target.sendall(data)
                    target.shutdown(socket.SHUT_WR)
                except OSError:
                    return

            back = threading.Thread(target=copy, args=(upstream, sock))
            back.start()
            copy(sock, upstream)
            back.join()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as running:
        yield running


def test_requests_go_through_a_proxy_of_the_environment(
    server: ScriptedServer, transport: FakeTransport, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://us%40er:pw@127.0.0.1:{proxy.port}")
    store = Store(transport)
    declined = s3_error_501()
    server.script += [store.put, store.get, declined, store.put, answer(200, DATA, x_amz_rdma_reply="501")]
    memory = Guarded(len(DATA))
    memory.view[:] = DATA
    with client(server, transport) as s3, s3.register(memory.view) as region:
        assert s3.put_from("b", "k ey", region).transport == "samehost"
        assert s3.get_into("b", "k ey", region).transport == "samehost"
        store.data = b""
        assert s3.put_from("b", "k ey", region).transport == "http"
        assert store.data == DATA
        memory.view[:] = bytes(len(DATA))
        assert s3.get_into("b", "k ey", region).transport == "http"
    assert memory.content == DATA
    assert {line for line, _ in proxy.seen} == {f"{verb} {server.url}/b/k%20ey" for verb in ("PUT", "GET")}
    assert all(credentials.startswith("Basic ") for _, credentials in proxy.seen)


def s3_error_501() -> bytes:
    return answer(501, b"<Error><Code>NotImplemented</Code></Error>", x_amz_rdma_reply="501")


def test_tls_is_tunnelled_through_a_proxy(
    tls: TlsServer,
    transport: FakeTransport,
    proxy: Proxy,
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("https_proxy", f"127.0.0.1:{proxy.port}")
    store = Store(transport)
    tls.script += [store.put, store.get]
    with client(tls, transport, verify=str(certificate[0])) as s3, s3.register(bytearray(DATA)) as region:
        s3.put_from("b", "k", region)
        s3.get_into("b", "k", region)
    assert [line for line, _ in proxy.seen] == [f"CONNECT 127.0.0.1:{tls.port}"]


def test_no_proxy_is_respected(
    server: ScriptedServer, transport: FakeTransport, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server.script.append(Store(transport, b"1").get)
    with client(server, transport) as s3, s3.register(bytearray(1)) as region:
        s3.get_into("b", "k", region)
    assert not proxy.seen


def test_a_proxy_that_is_not_there_or_loses_the_request(
    server: ScriptedServer, transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedServer() as gone:
        pass
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{gone.port}")
    with client(server, transport) as s3, s3.register(bytearray(1)) as region:
        with pytest.raises(ConnectFailed, match="proxy"):
            s3.get_into("b", "k", region)
        assert transport.revokes == 0
    with ScriptedServer([answer(502, b"bad gateway", x_amz_request_id="")] * 3) as failing:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{failing.port}")
        with client(server, transport) as s3, s3.register(bytearray(1)) as region:
            revoked = transport.revokes
            with pytest.raises(S3Error, match="502"):
                s3.get_into("b", "k", region)
            assert transport.revokes == revoked + 3


@pytest.mark.parametrize(
    "endpoint", ["ftp://host", "http://", "http://host/path", "http://host?x=1", "https://host:9000/a/b"]
)
def test_an_endpoint_is_a_scheme_a_host_and_a_port(endpoint: str) -> None:
    import s3verbs

    with pytest.raises(ValueError, match="endpoint"):
        s3verbs.Client(endpoint, access_key="a", secret_key="b", transport="http")


@pytest.mark.parametrize(
    ("endpoint", "host", "port", "header"),
    [
        ("http://h", "h", 80, "h"),
        ("https://h/", "h", 443, "h"),
        ("h:9000", "h", 9000, "h:9000"),
        ("http://[::1]:9000", "::1", 9000, "[::1]:9000"),
        ("https://[::1]", "::1", 443, "[::1]"),
    ],
)
def test_the_host_header_names_the_port_where_it_must(endpoint: str, host: str, port: int, header: str) -> None:
    import s3verbs

    with s3verbs.Client(endpoint, access_key="a", secret_key="b", transport="http") as s3:
        control = s3._control
        assert (control.host, control.port, control._signer._host) == (host, port, header)


@pytest.mark.parametrize(
    "options",
    [
        {"secret_key": None},
        {"timeout": 0},
        {"max_attempts": 0},
        {"concurrency": 0},
        {"max_in_flight": 0},
        {"part_size": 0},
        {"part_size": 1 << 32},
        {"transport": "smoke"},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    import s3verbs

    with pytest.raises(ValueError, match=r"\w"):
        s3verbs.Client(
            "http://h",
            **{"access_key": "a", "secret_key": "b", "transport": "http", **options},  # type: ignore[arg-type]
        )
