"""Whom the same-host service serves: only the process that speaks, and only what it registered, as long as it did."""

import ctypes
import mmap
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from s3verbs.rdma.client.samehost import SameHostTransport
from s3verbs.rdma.samehost import protocol
from s3verbs.rdma.samehost.protocol import Message, Refusal
from tests.robustness.samehost_client import Child, Guarded, RawClient
from tests.robustness.samehost_gateway import Gateway, pattern

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user or to choose a pid")


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with Gateway(tmp_path / "s.sock", workers=2) as started:
        yield started


@pytest.fixture
def buffer() -> Guarded:
    return Guarded(8192, 5, guard=1 << 20)


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def refusal(answer: Message | None) -> Refusal:
    assert isinstance(answer, protocol.Refused), answer
    assert answer.text
    return answer.code


def test_only_what_is_registered_is_reached(gateway: Gateway, buffer: Guarded) -> None:
    with RawClient(gateway.path) as client:
        assert gateway.write(client.token(buffer.address, 8192), 1, 10) == "RemoteAccess"
        handle = client.register(buffer.address + 100, 1000)
        for start, size in ((99, 10), (0, 8192), (1091, 10), (1100, 1), (99, 1002), (100, 1001)):
            assert gateway.write(client.token(buffer.address + start, size), 1, 1) == "RemoteAccess"
        assert buffer.untouched()
        assert gateway.write(client.token(buffer.address + 100, 1000), 1, 1000) == ""
        assert gateway.write(client.token(buffer.address + 1099, 1), 2, 1, worker=1) == ""
        assert client.ask(protocol.Unregister(9, handle)) == protocol.Unregistered(9, handle)
        buffer.content = b"\xa5" * 8192
        for worker in (0, 1):
            assert gateway.write(client.token(buffer.address + 100, 1000), 1, 10, worker) == "RemoteAccess"
            assert gateway.read(client.token(buffer.address + 100, 1000), 10, worker) == ("", "RemoteAccess")
        assert buffer.untouched()


def test_overlapping_and_equal_regions_are_regions_of_their_own(gateway: Gateway, buffer: Guarded) -> None:
    with RawClient(gateway.path) as client:
        wide, narrow = client.register(buffer.address, 8192), client.register(buffer.address + 4000, 100)
        first, second = (client.register(buffer.address + 1, 10) for _ in range(2))
        assert len({wide, narrow, first, second}) == 4
        assert gateway.write(client.token(buffer.address + 3999, 102), 1, 102) == ""
        client.ask(protocol.Unregister(9, wide))
        assert gateway.write(client.token(buffer.address + 3999, 102), 1, 102) == "RemoteAccess"
        assert gateway.write(client.token(buffer.address + 4000, 100), 1, 100) == ""
        client.ask(protocol.Unregister(9, first))
        assert gateway.write(client.token(buffer.address + 1, 10), 1, 10) == ""
        client.ask(protocol.Unregister(9, second))
        assert gateway.write(client.token(buffer.address + 1, 10), 1, 10) == "RemoteAccess"


@pytest.mark.parametrize(
    ("address", "length"),
    [
        (0x1000, 0),
        (0xFFFF_8000_0000_0000, 4096),
        (0xFFFF_FFFF_FFFF_F000, 0x1000),
        (0xFFFF_FFFF_FFFF_F000, 0x2000),
        (0, (1 << 64) - 1),
        ((1 << 64) - 1, (1 << 64) - 1),
        ((1 << 56) - 1, 2),
    ],
)
def test_no_process_has_that_memory(gateway: Gateway, buffer: Guarded, address: int, length: int) -> None:
    with RawClient(gateway.path) as client:
        assert refusal(client.ask(protocol.Register(1, address, length))) is Refusal.BAD_RANGE
        client.register(buffer.address, 1)
        assert gateway.write(client.token(buffer.address, 1), 1, 1) == ""


def test_addresses_below_the_kernels_without_memory_are_an_error_of_the_client(gateway: Gateway) -> None:
    with RawClient(gateway.path) as client:
        for address in (4096, 0x7FFF_FFFF_F000 - 4096, 0x7FFF_FFFF_F000, 1 << 47, (1 << 56) - 4096):
            client.register(address, 4096)
            for offset in (0, 4095):
                assert gateway.write(client.token(address, 4096), 1, 1, offset=offset) == "RemoteAccess"
                assert gateway.read(client.token(address, 4096), 1, offset=offset) == ("", "RemoteAccess")


def test_a_session_names_its_own_process_only(gateway: Gateway, buffer: Guarded) -> None:
    """The same addresses are mapped in a forked process: what another session registers is written there."""

    def own_session(say: Callable[[str], None], wait: Callable[[], str]) -> None:
        with RawClient(gateway.path) as client:
            client.register(buffer.address, 8192)
            say(client.token(buffer.address, 8192))
            wait()
            assert buffer.content[:100] == pattern(7, 100)

    with Child(own_session) as child, RawClient(gateway.path) as client:
        token = child.hear()
        assert gateway.write(client.token(buffer.address, 8192), 7, 100) == "RemoteAccess"
        assert gateway.write(token, 7, 100) == ""
        assert buffer.untouched()
        child.tell()
        assert child.ended() == 0


def test_a_session_id_that_nobody_has_is_declined(gateway: Gateway, buffer: Guarded) -> None:
    with RawClient(gateway.path) as client:
        client.register(buffer.address, 8192)
        for id in (bytes(15) + client.id[-1:], bytes(16), b"\xff" * 16, client.id[:-1] + bytes((client.id[-1] ^ 1,))):
            answer = gateway.ask(do="write", token=client.token(buffer.address, 9, id), seed=1, length=9, offset=0)
            assert (answer["error"], answer["reason"]) == ("Declined", "no_session")
    assert buffer.untouched()


def test_a_session_ends_with_its_connection(gateway: Gateway, buffer: Guarded) -> None:
    client = RawClient(gateway.path)
    with client:
        client.register(buffer.address, 8192)
        token = client.token(buffer.address, 8192)
        assert gateway.write(token, 1, 1) == ""
    eventually(lambda: gateway.write(token, 1, 1) == "Declined")
    assert gateway.write(token, 1, 1, worker=1) == "Declined"


def test_a_session_ends_with_its_process_though_others_hold_the_socket(gateway: Gateway, buffer: Guarded) -> None:
    held, passed = socket.socketpair()

    def die(say: Callable[[str], None], wait: Callable[[], str]) -> None:
        with RawClient(gateway.path) as client:
            client.register(buffer.address, 8192)
            socket.send_fds(passed, [b"x"], [client.socket.fileno()])
            say(client.token(buffer.address, 8192))
            wait()

    with held, passed, Child(die) as child:
        token = child.hear()
        _, descriptors, _, _ = socket.recv_fds(held, 1, 1)
        assert gateway.write(token, 1, 1) == ""
        child.kill()
        eventually(lambda: gateway.write(token, 1, 1) == "Declined")
        assert gateway.write(token, 1, 1, worker=1) == "Declined"
        with socket.socket(fileno=descriptors[0]) as inherited:
            inherited.settimeout(20)
            assert protocol.decode(inherited.recv(4096)) == protocol.Ended(0)
            assert inherited.recv(4096) == b""


@pytest.mark.parametrize("stage", ["hello", "proof", "register", "unregister"])
@pytest.mark.parametrize("how", ["inherited", "passed"])
def test_another_process_cannot_speak_in_a_session(gateway: Gateway, buffer: Guarded, stage: str, how: str) -> None:
    nonces: list[bytes] = []
    with RawClient(gateway.path, handshake=False) as client:
        if stage != "hello":
            challenge = client.ask(protocol.Hello(1))
            assert isinstance(challenge, protocol.Challenge)
            nonces.append(challenge.nonce)
        if stage in ("register", "unregister"):
            session = client.ask(protocol.Proof(2, nonces[0]))
            assert isinstance(session, protocol.Session)
            client.id = session.id
            assert client.register(buffer.address, 4096) == 1
        left, right = socket.socketpair()

        def speak(say: Callable[[str], None], wait: Callable[[], str]) -> None:
            if how == "passed":
                _, (descriptor,), _, _ = socket.recv_fds(right, 1, 1)
                client.socket.close()
                client.socket = socket.socket(fileno=descriptor)
            message: dict[str, Message] = {
                "hello": protocol.Hello(1),
                "proof": protocol.Proof(2, nonces[0] if nonces else bytes(16)),
                "register": protocol.Register(3, buffer.address, 8192),
                "unregister": protocol.Unregister(3, 1),
            }
            client.send(message[stage])

        with left, right, Child(speak) as child:
            if how == "passed":
                socket.send_fds(left, [b"x"], [client.socket.fileno()])
            assert child.ended() == 0
            answer = client.receive()
            if stage == "hello":
                # The child is the speaker then, and its death is the end of the connection; its nonce is of no use.
                if isinstance(answer, protocol.Challenge):
                    answer = client.ask(protocol.Proof(2, answer.nonce)) if not ended(client) else None
                assert answer is None or refusal(answer) is Refusal.IDENTITY
                return
            assert refusal(answer) is Refusal.IDENTITY
            if stage != "proof":
                assert client.receive() == protocol.Ended(0)
                assert gateway.write(client.token(buffer.address, 1), 1, 1) == "Declined"
            assert client.receive() is None
    assert buffer.untouched()


def ended(client: RawClient) -> bool:
    try:
        return client.socket.recv(1, socket.MSG_PEEK) == b""
    except ConnectionResetError:
        return True


@as_root
def test_the_same_pid_is_not_the_same_process(gateway: Gateway, buffer: Guarded) -> None:
    """A process says HELLO and dies; another gets its pid and its socket, and answers the challenge."""
    client = RawClient(gateway.path, handshake=False)

    def hello(say: Callable[[str], None], wait: Callable[[], str]) -> None:
        client.send(protocol.Hello(1))
        wait()

    with client, Child(hello) as child:
        challenge = client.receive()
        assert isinstance(challenge, protocol.Challenge)
        pid = child.pid
        os.kill(gateway.process.pid, signal.SIGSTOP)
        try:
            child.kill()

            def prove(say: Callable[[str], None], wait: Callable[[], str]) -> None:
                client.send(protocol.Proof(2, challenge.nonce))
                say("sent")
                wait()

            with take_pid(pid, prove) as second:
                assert second.hear() == "sent"
                os.kill(gateway.process.pid, signal.SIGCONT)
                answer = client.receive()
                assert answer is None or refusal(answer) is Refusal.IDENTITY
                assert answer is None or client.receive() is None
        finally:
            os.kill(gateway.process.pid, signal.SIGCONT)


@as_root
def test_a_session_does_not_pass_to_the_next_process_with_that_pid(gateway: Gateway, buffer: Guarded) -> None:
    """While the parent sleeps, nobody ends the dead process's session: the worker notices by itself."""

    def register(say: Callable[[str], None], wait: Callable[[], str]) -> None:
        with RawClient(gateway.path) as client:
            client.register(buffer.address, 8192)
            say(client.token(buffer.address, 8192))
            wait()

    with Child(register) as child:
        token = child.hear()
        assert gateway.write(token, 1, 1) == ""
        pid = child.pid
        os.kill(gateway.process.pid, signal.SIGSTOP)
        try:
            child.kill()

            def look(say: Callable[[str], None], wait: Callable[[], str]) -> None:
                say("here")
                wait()
                assert buffer.untouched()

            with take_pid(pid, look) as second:
                assert second.hear() == "here"
                for worker in (0, 1):  # One that knew the session, and one that meets it now.
                    answer = gateway.ask(worker, do="write", token=token, seed=1, length=9, offset=0)
                    assert (answer["error"], answer["reason"]) == ("Declined", "no_session")
                second.tell()
                assert second.ended() == 0
        finally:
            os.kill(gateway.process.pid, signal.SIGCONT)


def take_pid(pid: int, act: Callable[[Callable[[str], None], Callable[[], str]], None]) -> Child:
    """A child with that pid; others on the machine may be quicker now and then."""
    for _ in range(200):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        child = Child(act)
        if child.pid == pid:
            return child
        child.kill()
        child._ours.close()
    raise AssertionError(f"pid {pid} could not be had")


def test_an_exec_ends_what_a_session_can_do(gateway: Gateway) -> None:
    """The socket lives on in a child, and the pid in another program, with other memory at the same addresses."""
    program = (
        "import os, sys, time; sys.path[:0] = sys.argv[2:]\n"
        "from tests.robustness.samehost_client import Guarded, RawClient\n"
        "from pathlib import Path\n"
        "buffer = Guarded(8192, guard=4096)\n"
        "client = RawClient(Path(sys.argv[1])); client.register(buffer.address, 8192)\n"
        "print(client.token(buffer.address, 8192), flush=True); sys.stdin.readline()\n"
        "if os.fork() == 0: sys.stdin.read(); os._exit(0)\n"
        "os.execv(sys.executable, [sys.executable, '-c', 'print(1, flush=True); input()'])\n"
    )
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(gateway.path), str(root), str(root / "src")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        token = process.stdout.readline().decode().strip()
        assert gateway.write(token, 1, 10) == ""
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"1\n"
        for worker in (0, 1):
            answer = gateway.ask(worker, do="write", token=token, seed=1, length=10, offset=0)
            assert (answer["error"], answer["reason"]) == ("Declined", "no_session")
    finally:
        process.communicate(b"\n", timeout=20)


@as_root
def test_a_gateway_of_another_user_says_why_it_cannot(tmp_path: Path, buffer: Guarded) -> None:
    directory = Path(f"/tmp/samehost-{os.getpid()}")
    directory.mkdir(mode=0o755)
    try:
        os.chown(directory, NOBODY, NOBODY)
        with Gateway(directory / "s.sock", uid=NOBODY) as gateway, RawClient(gateway.path) as client:
            answer = client.ask(protocol.Register(3, buffer.address, 8192))
            assert refusal(answer) is Refusal.NOT_PERMITTED
            assert isinstance(answer, protocol.Refused)
            assert f"uid {NOBODY}" in answer.text
            assert "CAP_SYS_PTRACE" in answer.text
            declined = gateway.ask(do="write", token=client.token(buffer.address, 1), seed=1, length=1, offset=0)
            assert (declined["error"], declined["reason"]) == ("Declined", "not_permitted")
            # The session goes on: what it was refused for may change.
            assert refusal(client.ask(protocol.Register(4, buffer.address, 1))) is Refusal.NOT_PERMITTED
    finally:
        directory.rmdir()
    assert buffer.untouched()


@as_root
def test_a_root_gateway_serves_another_users_process_its_own_memory_only(tmp_path: Path, buffer: Guarded) -> None:
    directory = Path(f"/tmp/samehost-{os.getpid()}")
    directory.mkdir(mode=0o755)

    def nobody(say: Callable[[str], None], wait: Callable[[], str]) -> None:
        become_nobody()
        with RawClient(directory / "s.sock") as client:
            client.register(buffer.address, 8192)
            say(client.token(buffer.address, 8192))
            wait()
            assert buffer.content[:50] == pattern(3, 50)

    try:
        with Gateway(directory / "s.sock", workers=2) as gateway, Child(nobody) as child:
            token = child.hear()
            assert gateway.write(token, 3, 50) == ""
            assert gateway.read(token, 50, worker=1)[1] == ""
            assert buffer.untouched()
            with RawClient(gateway.path) as own:
                assert gateway.write(own.token(buffer.address, 10), 1, 10) == "RemoteAccess"
            child.tell()
            assert child.ended() == 0
    finally:
        directory.rmdir()


def become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    # A process that changed its user is not dumpable, and its /proc files are root's.
    assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0


@as_root
def test_a_gateway_without_rights_serves_its_own_user(tmp_path: Path, buffer: Guarded) -> None:
    directory = Path(f"/tmp/samehost-{os.getpid()}")
    directory.mkdir(mode=0o755)

    def nobody(say: Callable[[str], None], wait: Callable[[], str]) -> None:
        become_nobody()
        with RawClient(directory / "s.sock") as client:
            client.register(buffer.address, 8192)
            say(client.token(buffer.address, 8192))
            wait()
            assert buffer.content[:50] == pattern(3, 50)

    def hidden(say: Callable[[str], None], wait: Callable[[], str]) -> None:
        become_nobody()
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
        with RawClient(directory / "s.sock") as client:
            answer = client.ask(protocol.Register(1, buffer.address, 10))
            assert refusal(answer) is Refusal.NOT_PERMITTED
            assert "dumpable" in str(answer)
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
            # Who said HELLO could not be seen well enough.
            assert refusal(client.ask(protocol.Register(1, buffer.address, 10))) is Refusal.IDENTITY

    try:
        os.chown(directory, NOBODY, NOBODY)
        with Gateway(directory / "s.sock", uid=NOBODY) as gateway:
            with Child(nobody) as child:
                assert gateway.write(child.hear(), 3, 50) == ""
                child.tell()
                assert child.ended() == 0
            with Child(hidden) as child:
                assert child.ended() == 0
    finally:
        directory.rmdir()


@as_root
def test_a_process_outside_of_the_gateways_pid_namespace_is_refused(tmp_path: Path) -> None:
    prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with (
        Gateway(tmp_path / "s.sock", prefix=prefix) as gateway,
        RawClient(gateway.path, handshake=False) as client,
    ):
        answer = client.ask(protocol.Hello(1))
        assert refusal(answer) is Refusal.IDENTITY
        assert "hostPID" in str(answer)


@as_root
def test_a_gateway_with_a_strange_proc_serves_nobody(tmp_path: Path) -> None:
    """Its pids would be other processes there."""
    prefix = ["unshare", "--pid", "--fork", "--kill-child"]
    with (
        Gateway(tmp_path / "s.sock", prefix=prefix) as gateway,
        RawClient(gateway.path, handshake=False) as client,
    ):
        answer = client.ask(protocol.Hello(1))
        assert refusal(answer) is Refusal.UNAVAILABLE
        assert "/proc" in str(answer)


@as_root
def test_a_client_in_a_pid_namespace_of_its_own_is_served(gateway: Gateway, buffer: Guarded) -> None:
    def outer(say: Callable[[str], None], wait: Callable[[], str]) -> None:
        clone_newpid = 0x20000000
        assert ctypes.CDLL(None).unshare(clone_newpid) == 0

        def inner(say_inside: Callable[[str], None], wait_inside: Callable[[], str]) -> None:
            assert os.getpid() == 1
            transport = SameHostTransport("localhost", 1, str(gateway.path))
            registration = transport.register(buffer.memory)
            say(registration.token(0, 8192))
            wait_inside()
            assert buffer.content[:30] == pattern(3, 30)
            assert registration.revoke()
            transport.close()

        with Child(inner) as child:
            child.tell(wait())
            assert child.ended() == 0

    with Child(outer) as child:
        assert gateway.write(child.hear(), 3, 30) == ""
        child.tell()
        assert child.ended() == 0
    assert buffer.untouched()


@as_root
def test_forged_credentials_of_another_process_are_refused(gateway: Gateway, buffer: Guarded) -> None:
    """Root may put any pid on a packet. It can do so from the start and reach that process, as it can anyway; but not
    in a session that exists."""
    with RawClient(gateway.path) as client:
        client.send_as(protocol.Register(5, buffer.address, 10), gateway.process.pid, 0)
        assert refusal(client.receive()) is Refusal.IDENTITY
        assert client.receive() == protocol.Ended(0)
        assert client.receive() is None


def test_unregister_waits_for_what_is_in_flight(gateway: Gateway, buffer: Guarded) -> None:
    with RawClient(gateway.path) as client:
        busy, idle = client.register(buffer.address, 4096), client.register(buffer.address + 4096, 4096)
        assert gateway.ask(do="hold", token=client.token(buffer.address, 4096))["error"] == ""
        client.send(protocol.Unregister(10, busy))
        assert client.ask(protocol.Unregister(11, idle)) == protocol.Unregistered(11, idle)
        # Nothing new begins meanwhile, in any worker.
        assert gateway.write(client.token(buffer.address, 1), 1, 1, worker=1) == "RemoteAccess"
        client.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.receive()
        client.socket.settimeout(20)
        gateway.ask(do="let_go")
        assert client.receive() == protocol.Unregistered(10, busy)
        assert refusal(client.ask(protocol.Unregister(12, busy))) is Refusal.NO_SUCH_REGION


def test_a_killed_worker_holds_nothing(gateway: Gateway, buffer: Guarded) -> None:
    with RawClient(gateway.path) as client:
        handle = client.register(buffer.address, 4096)
        assert gateway.ask(do="hold", token=client.token(buffer.address, 4096))["error"] == ""
        pid = gateway.ask(do="pid")["pid"]
        os.kill(pid, signal.SIGSTOP)
        client.send(protocol.Unregister(10, handle))
        client.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.receive()
        client.socket.settimeout(20)
        os.kill(pid, signal.SIGKILL)
        assert client.receive() == protocol.Unregistered(10, handle)
        # The next worker in its place serves the session.
        client.register(buffer.address, 4096)
        assert gateway.write(client.token(buffer.address, 10), 4, 10) == ""
        assert buffer.content[:10] == pattern(4, 10)


def test_nothing_is_written_after_unregistered(gateway: Gateway) -> None:
    """While two workers write without a pause."""
    buffer = Guarded(4 << 20, guard=4096)
    with RawClient(gateway.path) as client:
        for _ in range(15):
            handle = client.register(buffer.address, buffer.size)
            token = client.token(buffer.address, buffer.size)
            for worker in (0, 1):
                gateway.send(worker, do="repeat", token=token, length=buffer.size, seconds=30)
            eventually(lambda: buffer.content[-1] != 0xA5)
            assert client.ask(protocol.Unregister(9, handle)) == protocol.Unregistered(9, handle)
            ctypes.memset(buffer.address, 0xA5, buffer.size)
            for worker in (0, 1):
                assert gateway.receive(worker)["error"] == "RemoteAccess"
            assert buffer.untouched()


def test_ended_is_said_only_when_nothing_is_in_flight(gateway: Gateway, buffer: Guarded) -> None:
    with RawClient(gateway.path) as client:
        client.register(buffer.address, 4096)
        gateway.ask(do="hold", token=client.token(buffer.address, 4096))
        client.send(b"nonsense")
        assert refusal(client.receive()) is Refusal.MALFORMED
        client.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.receive()
        client.socket.settimeout(20)
        gateway.ask(do="let_go")
        assert client.receive() == protocol.Ended(0)
        assert client.receive() is None


def test_a_thousand_connections_leave_no_descriptor_behind(gateway: Gateway, buffer: Guarded) -> None:
    def once(number: int) -> None:
        with RawClient(gateway.path, handshake=number % 3 != 0) as client:
            if number % 3 == 1:
                client.register(buffer.address, 100)
                assert gateway.write(client.token(buffer.address, 100), 1, 1, worker=number % 2) == ""
            elif number % 3 == 0:
                client.send(protocol.Hello(1) if number % 2 else b"x")

    def workers() -> list[int]:
        return [gateway.ask(worker, do="pid")["descriptors"] for worker in (0, 1)]

    for number in range(12):
        once(number)
    eventually(lambda: gateway.descriptors() < 40)
    before, before_workers = gateway.descriptors(), workers()
    for number in range(1000):
        once(number)
    eventually(lambda: gateway.descriptors() <= before)
    assert all(now <= then + 2 for now, then in zip(workers(), before_workers, strict=True))


def test_descriptors_that_a_client_sends_are_not_taken(gateway: Gateway) -> None:
    before = gateway.descriptors()
    for _ in range(50):
        with RawClient(gateway.path) as client, Path("/dev/null").open() as file:
            client.send_with_descriptor(protocol.Register(1, 4096, 1), file.fileno())
            assert refusal(client.receive()) is Refusal.MALFORMED
    eventually(lambda: gateway.descriptors() <= before)


def test_whoever_does_not_read_is_dropped(gateway: Gateway, buffer: Guarded) -> None:
    with RawClient(gateway.path) as rude, RawClient(gateway.path) as polite:
        flood = protocol.encode(protocol.Register(1, 0, 0))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            send_often(rude, flood, 100_000)
        polite.register(buffer.address, 10)
        assert gateway.write(polite.token(buffer.address, 10), 1, 10) == ""


def send_often(client: RawClient, packet: bytes, times: int) -> None:
    for _ in range(times):
        client.send(packet)


def test_a_full_house_is_told(tmp_path: Path, buffer: Guarded) -> None:
    with Gateway(tmp_path / "s.sock", table='{"sessions": 3, "regions": 4}') as gateway:
        clients = [RawClient(gateway.path) for _ in range(3)]
        with RawClient(gateway.path, handshake=False) as late:
            challenge = late.ask(protocol.Hello(1))
            assert isinstance(challenge, protocol.Challenge)
            assert refusal(late.ask(protocol.Proof(2, challenge.nonce))) is Refusal.BUSY
            assert late.receive() is None
        handles = [clients[0].register(buffer.address + number, 1) for number in range(4)]
        assert refusal(clients[0].ask(protocol.Register(9, buffer.address, 1))) is Refusal.FULL
        clients[0].ask(protocol.Unregister(9, handles[0]))
        clients[0].register(buffer.address, 1)
        clients[1].register(buffer.address, 1)
        for client in clients:
            client.__exit__()
        with RawClient(gateway.path) as next_one:
            assert gateway.write(next_one.token(buffer.address, 1), 1, 1) == "RemoteAccess"


def test_one_process_cannot_take_all_sessions(gateway: Gateway) -> None:
    clients = [RawClient(gateway.path) for _ in range(16)]
    with RawClient(gateway.path, handshake=False) as late:
        assert refusal(late.ask(protocol.Hello(1))) is Refusal.BUSY
    for client in clients:
        client.__exit__()
    eventually(lambda: can_begin(gateway))


def can_begin(gateway: Gateway) -> bool:
    with RawClient(gateway.path, handshake=False) as client:
        return isinstance(client.ask(protocol.Hello(1)), protocol.Challenge)


def test_newcomers_are_bounded_and_have_limited_time(gateway: Gateway) -> None:
    silent = [RawClient(gateway.path, handshake=False) for _ in range(64)]
    with RawClient(gateway.path, handshake=False) as late:
        assert refusal(late.receive()) is Refusal.BUSY
        assert late.receive() is None
    # Each is given five seconds.
    assert all(client.receive() is None for client in silent)
    for client in silent:
        client.__exit__()
    with RawClient(gateway.path):
        pass


def test_a_gateway_short_of_descriptors_recovers(tmp_path: Path, buffer: Guarded) -> None:
    with Gateway(tmp_path / "s.sock") as gateway, RawClient(gateway.path) as client:
        used = {int(path.name) for path in Path(f"/proc/{gateway.process.pid}/fd").iterdir()}
        limit = min(set(range(max(used) + 2)) - used)
        resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (limit, 4096))
        assert refusal(client.ask(protocol.Register(1, buffer.address, 10))) is Refusal.FULL
        with RawClient(gateway.path, handshake=False) as waiting:
            waiting.send(protocol.Hello(1))
            waiting.socket.settimeout(0.3)
            with pytest.raises(TimeoutError):
                waiting.receive()
            before = cpu_seconds(gateway.process.pid)
            time.sleep(0.5)
            assert cpu_seconds(gateway.process.pid) - before < 0.2
            resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE, (1024, 4096))
            waiting.socket.settimeout(20)
            assert isinstance(waiting.receive(), protocol.Challenge)
        client.register(buffer.address, 10)
        assert gateway.write(client.token(buffer.address, 10), 1, 10) == ""


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


ids = st.binary(min_size=16, max_size=16)
words = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2, 4096, 2**63, 2**64 - 1]))
packets = st.one_of(
    st.binary(max_size=700),
    st.binary(max_size=60).map(lambda body: b"S3SH\x01" + body),
    st.builds(
        lambda kind, body: b"S3SH\x01" + bytes((kind,)) + bytes(6) + body, st.integers(0, 12), st.binary(max_size=40)
    ),
    st.sampled_from([protocol.Hello(1), protocol.Ended(1), protocol.Session(1, bytes(16), 4)]).map(protocol.encode),
    st.builds(lambda address, length: protocol.encode(protocol.Register(1, address, length)), words, words),
    st.builds(lambda handle: protocol.encode(protocol.Unregister(1, handle)), words),
    st.builds(lambda nonce: protocol.encode(protocol.Proof(1, nonce)), ids),
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(sent=st.lists(packets, max_size=8), handshake=st.booleans())
def test_no_bytes_upset_the_service(gateway: Gateway, sent: list[bytes], handshake: bool) -> None:
    with RawClient(gateway.path, handshake=handshake) as client:
        for packet in sent:
            try:
                client.send(packet)
            except (BrokenPipeError, ConnectionResetError):
                break
    memory = mmap.mmap(-1, 4096)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    with RawClient(gateway.path) as client:
        client.register(address, 4096)
        assert gateway.write(client.token(address, 4096), 1, 100) == ""
        assert memory[:100] == pattern(1, 100)


def test_the_kernel_names_the_gateways_parent(gateway: Gateway) -> None:
    """What PR_SET_PTRACER needs."""
    with RawClient(gateway.path) as client:
        credentials = client.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        assert struct.unpack("iII", credentials)[0] == gateway.process.pid
