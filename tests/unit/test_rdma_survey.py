"""What is collected for the doctor: from a made-up root, and from sockets of this test."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from s3verbs.rdma.samehost.location import VARIABLE, bind_socket
from s3verbs.rdma.survey import find_endpoint, survey
from tests.fake_sysfs import FakeSysfs

NOBODY = 65534


@contextmanager
def server(answer: bytes) -> Iterator[int]:
    """One connection on loopback that gets this answer to whatever it says; the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(30)
        assert not thread.is_alive()


def test_devices_and_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    sysfs = FakeSysfs(tmp_path / "sys")
    sysfs.device("mlx5_0")
    sysfs.device("mlx5_1")
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    (tmp_path / "dev/infiniband/uverbs0").touch()
    found = survey(root=tmp_path, port=9001)
    assert [device.name for device in found.inventory.devices] == ["mlx5_0", "mlx5_1"]
    assert found.closed == {"mlx5_1": "uverbs1"}
    assert found.rails == ()
    assert {place.path.name for place in found.sockets} == {"9001.sock"}
    assert bool(found.verbs) != bool(found.verbs_problem)


def test_a_malformed_pin(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mlx5_0:1:3"):
        survey(["a b"], root=tmp_path)


def test_the_same_host_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "socket"
    monkeypatch.setenv(VARIABLE, str(path))
    assert survey(root=tmp_path).same_host_socket is None
    with bind_socket(9000):
        assert survey(root=tmp_path).same_host_socket == path
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
    (place,) = survey(root=tmp_path).sockets
    assert (place.there, place.problem) == (True, "Connection refused")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a socket another owner")
def test_a_server_of_somebody_else_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "socket"
    monkeypatch.setenv(VARIABLE, str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        # The kernel names the user who called listen.
        steps = (
            "import os, socket",
            f"listener = socket.socket(fileno={listener.fileno()})",
            f"os.setresuid({NOBODY}, {NOBODY}, {NOBODY})",
            "listener.listen()",
            "print('.', flush=True)",
            "input()",
        )
        with subprocess.Popen(
            [sys.executable, "-c", "; ".join(steps)],
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as child:
            assert child.stdout is not None
            assert child.stdin is not None
            assert child.stdout.readline() == b".\n"
            (place,) = survey(root=tmp_path).sockets
            child.stdin.write(b"\n")
    assert place.problem == f"uid {NOBODY} is there, which is not trusted"


def test_an_endpoint_on_this_machine() -> None:
    with server(b"HTTP/1.1 403 Forbidden\r\n\r\n") as port:
        found = find_endpoint(f"http://127.0.0.1:{port}")
    assert (found.problem, found.local, str(found.address), found.port) == ("", True, "127.0.0.1", port)


def test_what_is_no_http_server() -> None:
    with server(b"SSH-2.0-OpenSSH_9.2\r\n") as port:
        found = find_endpoint(f"http://localhost:{port}")
    assert found.problem.endswith("accepts connections, but does not speak HTTP")


def test_an_endpoint_without_tls() -> None:
    with server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        found = find_endpoint(f"https://127.0.0.1:{port}")
    assert "port" in found.problem


def test_nobody_listens() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        found = find_endpoint(f"http://127.0.0.1:{held.getsockname()[1]}")
    assert found.problem.endswith("Connection refused")


@pytest.mark.parametrize("url", ["", "host:9000", "ftp://host", "http://", "http://[::1", "http://host:port"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        find_endpoint(url)
