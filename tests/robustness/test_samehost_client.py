"""The client's same-host transport against gateways that stop, die, hang and refuse."""

import contextlib
import ctypes
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from s3verbs.rdma.client import samehost
from s3verbs.rdma.client.samehost import SameHostTransport
from s3verbs.rdma.client.transport import Memory, TransportUnavailable
from s3verbs.rdma.samehost import location, process_memory, protocol
from s3verbs.rdma.samehost.protocol import Message, Refusal
from s3verbs.rdma.token import Transport, parse
from tests.robustness.samehost_client import Child, Guarded
from tests.robustness.samehost_gateway import Gateway, pattern


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sock"


@pytest.fixture
def transport(path: Path) -> Iterator[SameHostTransport]:
    opened = SameHostTransport("127.0.0.1", 9000, str(path))
    yield opened
    opened.close()


@pytest.fixture
def buffer() -> Guarded:
    return Guarded(8192, 5, guard=1 << 20)


def test_a_token_names_the_range_and_the_session(path: Path, transport: SameHostTransport, buffer: Guarded) -> None:
    with Gateway(path):
        registration = transport.register(buffer.memory)
        first, second = parse(registration.token(0, 8192)), parse(registration.token(8000, 192))
        assert (first.transport, first.address, first.size) == (Transport.SAMEHOST, buffer.address, 8192)
        assert (second.address, second.size, second.secret) == (buffer.address + 8000, 192, first.secret)
        for offset, size in ((-1, 5), (0, 0), (0, 8193), (8192, 1)):
            with pytest.raises(ValueError, match="8192 bytes"):
                registration.token(offset, size)
        assert registration.revoke()
        assert registration.revoke()
        with pytest.raises(TransportUnavailable, match="revoked"):
            registration.token(0, 1)


def test_memory_that_it_cannot_move_is_refused_before_anything_is_asked(
    transport: SameHostTransport, buffer: Guarded
) -> None:
    for memory, words in (
        (Memory(buffer.address, 10, None, gpu=0), "GPU"),
        (Memory(buffer.address, 0, None), "0 bytes"),
        (Memory(8, 10, None), "not mapped"),
        (Memory(buffer.address, 1 << 45, None), "not mapped"),
    ):
        with pytest.raises(TransportUnavailable, match=words):
            transport.register(memory)


def test_without_a_gateway_here_the_reason_says_where_it_was_looked_for(
    tmp_path: Path, buffer: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("S3VERBS_SOCKET", raising=False)
    monkeypatch.setattr(location, "SYSTEM_DIRECTORY", tmp_path)
    with pytest.raises(TransportUnavailable, match=r"192\.0\.2\.1 is not this machine"):
        SameHostTransport("192.0.2.1", 9000).register(buffer.memory)
    with pytest.raises(TransportUnavailable, match=rf"{tmp_path}/1\.sock"):
        SameHostTransport("localhost", 1).register(buffer.memory)
    (tmp_path / "1.sock").write_text("")
    with pytest.raises(TransportUnavailable, match=rf"{tmp_path}/1\.sock: .*refused"):
        SameHostTransport("localhost", 1).register(buffer.memory)


def test_the_socket_is_found_by_the_endpoints_port(
    tmp_path: Path, buffer: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("S3VERBS_SOCKET", raising=False)
    monkeypatch.setattr(location, "SYSTEM_DIRECTORY", tmp_path)
    transport = SameHostTransport("localhost", 9)
    with Gateway(tmp_path / "9.sock") as gateway:
        token = transport.register(buffer.memory).token(0, 10)
        assert gateway.write(token, 1, 10) == ""
        transport.close()
    monkeypatch.setenv("S3VERBS_SOCKET", str(tmp_path / "named"))
    transport = SameHostTransport("192.0.2.1", 1)
    with Gateway(tmp_path / "named") as gateway:
        assert gateway.write(transport.register(buffer.memory).token(0, 10), 1, 10) == ""
        transport.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run a server as another user")
def test_a_socket_of_a_stranger_is_not_trusted(tmp_path: Path, buffer: Guarded) -> None:
    directory = Path(f"/tmp/samehost-{os.getpid()}")
    directory.mkdir(mode=0o755)
    directory.chmod(0o777)
    transport = SameHostTransport("localhost", 9, str(directory / "s.sock"))
    try:
        with Gateway(directory / "s.sock", uid=65534) as gateway:
            with pytest.raises(TransportUnavailable, match="uid 65534, who is not trusted"):
                transport.register(buffer.memory)
            directory.chmod(0o755)
            os.chown(directory, 65534, 65534)
            with pytest.raises(TransportUnavailable, match="CAP_SYS_PTRACE"):
                transport.register(buffer.memory)
            assert gateway.process.poll() is None
        transport.close()
    finally:
        directory.rmdir()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_after_a_restart_the_next_token_is_for_the_new_gateway(
    path: Path, transport: SameHostTransport, buffer: Guarded, number: int
) -> None:
    with Gateway(path):
        registration = transport.register(buffer.memory)
        other = transport.register(Memory(buffer.address, 100, buffer))
        old = registration.token(0, 8192)
    with Gateway(path) as gateway:
        token = registration.token(0, 8192)
        assert token != old
        assert gateway.write(old, 1, 10) == "Declined"
        assert gateway.write(token, 1, 10) == ""
        gateway.stop(number)
        with pytest.raises(TransportUnavailable, match=r"refused|no gateway"):
            registration.token(0, 10)
        assert registration.revoke()
        with Gateway(path) as third:
            assert third.write(other.token(0, 100), 2, 100) == ""
            assert other.revoke()
            assert third.write(transport.register(buffer.memory).token(0, 100), 2, 100) == ""


def test_a_dead_parent_with_living_workers_is_no_all_clear(
    path: Path, transport: SameHostTransport, buffer: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samehost, "PATIENCE", 0.3)
    with Gateway(path) as gateway:
        registration = transport.register(buffer.memory)
        token = registration.token(0, 10)
        pid = gateway.worker_pids()[0]
        pidfd = os.pidfd_open(pid)
        os.kill(pid, signal.SIGSTOP)
        gateway.process.kill()
        gateway.process.wait(20)
        assert not registration.revoke()
        assert not registration.revoke()
        os.kill(pid, signal.SIGCONT)
        # It lives on, and finds that nobody minds its clients any more.
        assert gateway.write(token, 1, 10) == "Declined"
        assert not registration.revoke()
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
        monkeypatch.setattr(samehost, "PATIENCE", 20)
        assert registration.revoke()
        assert buffer.untouched()


def test_revoke_is_false_while_a_system_call_may_be_running(
    path: Path, transport: SameHostTransport, buffer: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samehost, "PATIENCE", 0.2)
    with Gateway(path) as gateway:
        busy, other = transport.register(buffer.memory), transport.register(buffer.memory)
        gateway.ask(do="hold", token=busy.token(0, 10))
        # Both cover the token's range; the one that was found first is the one that is in use.
        revoked = [busy.revoke(), other.revoke()]
        assert sorted(revoked) == [False, True]
        slow = (busy, other)[revoked.index(False)]
        third = transport.register(Memory(buffer.address, 10, buffer))
        assert gateway.write(third.token(0, 10), 1, 10) == ""
        assert not slow.revoke()
        gateway.ask(do="let_go")
        monkeypatch.setattr(samehost, "PATIENCE", 20)
        assert slow.revoke()


def test_a_frozen_gateway_gives_no_answer_but_holds_nobody_for_ever(
    path: Path, transport: SameHostTransport, buffer: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samehost, "PATIENCE", 0.2)
    with Gateway(path) as gateway:
        registration = transport.register(buffer.memory)
        os.kill(gateway.process.pid, signal.SIGSTOP)
        try:
            assert not registration.revoke()
            with pytest.raises(TransportUnavailable):
                transport.register(buffer.memory)
        finally:
            os.kill(gateway.process.pid, signal.SIGCONT)
        monkeypatch.setattr(samehost, "PATIENCE", 20)
        # What is new goes to a new session; what was registered before is taken back in the old one.
        assert gateway.write(transport.register(buffer.memory).token(0, 10), 1, 10) == ""
        assert registration.revoke()


def test_close_of_a_frozen_gateway_takes_no_longer_for_many_regions(
    path: Path, transport: SameHostTransport, buffer: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Gateway(path) as gateway:
        registrations = [transport.register(buffer.memory) for _ in range(100)]
        monkeypatch.setattr(samehost, "PATIENCE", 0.2)
        os.kill(gateway.process.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            transport.close()
            assert time.monotonic() - began < 20
        finally:
            os.kill(gateway.process.pid, signal.SIGCONT)
        monkeypatch.setattr(samehost, "PATIENCE", 20)
        assert all(registration.revoke() for registration in registrations)


def test_a_forked_child_has_a_session_of_its_own(path: Path, transport: SameHostTransport, buffer: Guarded) -> None:
    with Gateway(path) as gateway:
        registration = transport.register(buffer.memory)
        token = registration.token(0, 8192)

        def child(say: Callable[[str], None], wait: Callable[[], str]) -> None:
            own = registration.token(0, 8192)
            assert own != token
            say(own)
            wait()
            assert buffer.content[:10] == pattern(8, 10)
            assert registration.revoke()
            with pytest.raises(TransportUnavailable):
                registration.token(0, 1)

        with Child(child) as forked:
            own = forked.hear()
            assert gateway.write(own, 8, 10) == ""
            assert buffer.untouched()
            forked.tell()
            assert forked.ended() == 0
        assert registration.token(0, 8192) == token
        assert gateway.write(token, 9, 10) == ""
        assert buffer.content[:10] == pattern(9, 10)


def test_a_forked_child_is_free_of_what_its_parent_registered(
    path: Path, transport: SameHostTransport, buffer: Guarded
) -> None:
    with Gateway(path) as gateway:
        registration = transport.register(buffer.memory)

        def child(say: Callable[[str], None], wait: Callable[[], str]) -> None:
            assert registration.revoke()
            transport.close()

        # As if another thread were just using it.
        with transport._lock, Child(child) as forked:
            assert forked.ended() == 0
        assert gateway.write(registration.token(0, 10), 1, 10) == ""


def test_threads_share_a_transport(path: Path, transport: SameHostTransport) -> None:
    problems: list[BaseException] = []
    with Gateway(path, workers=2) as gateway:
        turn = threading.Lock()

        def use(number: int) -> None:
            try:
                for round_ in range(20):
                    buffer = Guarded(1000 + number, number, guard=4096)
                    registration = transport.register(buffer.memory)
                    token = registration.token(0, buffer.size)
                    with turn:
                        assert gateway.write(token, round_, buffer.size, number % 2) == ""
                    assert registration.revoke()
                    assert buffer.content == pattern(round_, buffer.size)
                    assert buffer.guards_are_whole()
                    with turn:
                        assert gateway.write(token, round_, buffer.size, number % 2) == "RemoteAccess"
            except BaseException as error:  # noqa: BLE001 told by the test's own thread
                problems.append(error)

        threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert problems == []


def test_close_takes_everything_back(path: Path, transport: SameHostTransport, buffer: Guarded) -> None:
    with Gateway(path) as gateway:
        tokens = [transport.register(buffer.memory).token(0, 10) for _ in range(3)]
        transport.close()
        for token in tokens:
            assert gateway.write(token, 1, 10) in ("Declined", "RemoteAccess")
        assert gateway.write(transport.register(buffer.memory).token(0, 10), 1, 10) == ""
    transport.close()


def test_nothing_stays_open(path: Path, buffer: Guarded) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with Gateway(path):
        before = descriptors()
        for _ in range(20):
            transport = SameHostTransport("localhost", 1, str(path))
            registration = transport.register(buffer.memory)
            registration.token(0, 1)
            transport.close()
        del transport, registration
        assert descriptors() == before


# -- a server of the test's own --


@contextlib.contextmanager
def served(path: Path, *answers: Callable[[Message], Message | bytes]) -> Iterator[list[Message]]:
    """Accept one connection and answer each message by the next of `answers`; then hang up."""
    heard: list[Message] = []
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()
    listener.settimeout(20)

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(20)
            for answer in answers:
                heard.append(protocol.decode(connection.recv(4096)))
                said = answer(heard[-1])
                connection.send(said if isinstance(said, bytes) else protocol.encode(said))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield heard
    finally:
        thread.join()
        listener.close()


def challenge(message: Message) -> Message:
    return protocol.Challenge(message.serial, bytes(16))


def session(message: Message) -> Message:
    return protocol.Session(message.serial, b"0123456789abcdef", 10)


def refuse(message: Message) -> Message:
    return protocol.Refused(message.serial, Refusal.NOT_PERMITTED, "because of Yama")


def accept(message: Message) -> Message:
    return protocol.Registered(message.serial, 1)


def let_go(message: Message) -> Message:
    return protocol.Unregistered(message.serial, 1)


def test_the_gateway_is_named_to_yama_only_when_it_is_refused(
    path: Path, transport: SameHostTransport, buffer: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[int] = []
    monkeypatch.setattr(process_memory, "allow_tracer", named.append)
    with served(path, challenge, session, accept, let_go):
        assert transport.register(buffer.memory).revoke()
    assert named == []
    transport.close()
    path.unlink()
    with served(path, challenge, session, refuse, accept, let_go) as heard:
        assert transport.register(buffer.memory).revoke()
        assert heard[2].serial != heard[3].serial
    # The server is this very process.
    assert named == [os.getpid()]
    transport.close()
    path.unlink()
    with served(path, challenge, session, refuse, refuse), pytest.raises(TransportUnavailable, match="Yama"):
        transport.register(buffer.memory)


@pytest.mark.parametrize(
    "answers",
    [
        (),
        (lambda message: b"rubbish",),
        (lambda message: b"x" * 2000,),
        (accept,),
        (challenge, challenge),
        (challenge, session, session),
        (challenge, session, lambda message: protocol.Ended(0)),
        (lambda message: protocol.Refused(message.serial, Refusal.BUSY, "full"),),
    ],
)
def test_a_server_that_speaks_nonsense_is_no_gateway(
    path: Path,
    transport: SameHostTransport,
    buffer: Guarded,
    answers: tuple[Callable[[Message], Message | bytes], ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(samehost, "PATIENCE", 1)
    with served(path, *answers), pytest.raises(TransportUnavailable):
        transport.register(buffer.memory)


def test_allowing_a_tracer_does_no_harm() -> None:
    process_memory.allow_tracer(os.getppid())
    process_memory.allow_tracer(0)
    assert ctypes.get_errno() >= 0
