"""The same-host transport under Yama, which the kernels of development machines seldom have, and Ubuntu's always.

Gateway and client are two processes of one user without any capability, neither the other's ancestor."""

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from s3verbs.rdma.client.samehost import SameHostTransport
from s3verbs.rdma.client.transport import TransportUnavailable
from s3verbs.rdma.samehost import process_memory
from tests.robustness.samehost_client import Child, Guarded
from tests.robustness.samehost_gateway import Gateway, pattern

SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
NOBODY = 65534
PR_SET_DUMPABLE = 4


@pytest.fixture
def socket_path() -> Iterator[Path]:
    directory = Path(f"/tmp/samehost-{os.getpid()}")
    directory.mkdir(mode=0o755)
    os.chown(directory, NOBODY, NOBODY)
    before = SCOPE.read_text()
    yield directory / "s.sock"
    # 3 cannot be taken back; no test goes there.
    SCOPE.write_text(before)
    directory.rmdir()


def become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0


@pytest.mark.parametrize("scope", [0, 1])
def test_the_client_lets_the_gateway_in(socket_path: Path, scope: int) -> None:
    SCOPE.write_text(str(scope))
    buffer = Guarded(100_000, 3, guard=1 << 20)
    named: list[int] = []
    allow = process_memory.allow_tracer

    def spy(pid: int) -> None:
        named.append(pid)
        allow(pid)

    def client(say: Callable[[str], None], wait: Callable[[], str]) -> None:
        become_nobody()
        process_memory.allow_tracer = spy
        transport = SameHostTransport("localhost", 1, str(socket_path))
        registration = transport.register(buffer.memory)
        say(registration.token(0, buffer.size))
        supervisor = int(wait())
        assert named == ([supervisor] if scope == 1 else [])
        assert buffer.content == pattern(4, buffer.size)
        assert buffer.guards_are_whole()
        assert registration.revoke()
        transport.close()

    with Gateway(socket_path, workers=2, uid=NOBODY) as gateway, Child(client) as child:
        token = child.hear()
        for worker in (0, 1):
            assert gateway.write(token, 4, buffer.size, worker) == ""
        child.tell(str(gateway.process.pid))
        assert child.ended() == 0


@pytest.mark.parametrize(("scope", "words"), [(1, "PR_SET_PTRACER"), (2, "set it to 1 or 0, or give")])
def test_whom_the_kernel_keeps_out_is_told_what_would_change_it(socket_path: Path, scope: int, words: str) -> None:
    SCOPE.write_text(str(scope))
    buffer = Guarded(100, guard=4096)

    def client(say: Callable[[str], None], wait: Callable[[], str]) -> None:
        become_nobody()
        if scope == 1:
            process_memory.allow_tracer = lambda pid: None
        transport = SameHostTransport("localhost", 1, str(socket_path))
        with pytest.raises(TransportUnavailable, match=words):
            transport.register(buffer.memory)
        transport.close()

    with Gateway(socket_path, uid=NOBODY), Child(client) as child:
        assert child.ended() == 0


def test_a_gateway_of_root_needs_no_permission(socket_path: Path) -> None:
    SCOPE.write_text("2")
    buffer = Guarded(5000, guard=4096)

    def client(say: Callable[[str], None], wait: Callable[[], str]) -> None:
        become_nobody()
        transport = SameHostTransport("localhost", 1, str(socket_path))
        say(transport.register(buffer.memory).token(0, 5000))
        wait()
        assert buffer.content == pattern(4, 5000)
        transport.close()

    with Gateway(socket_path) as gateway, Child(client) as child:
        assert gateway.write(child.hear(), 4, 5000) == ""
        child.tell()
        assert child.ended() == 0
