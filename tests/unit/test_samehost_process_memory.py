"""Who a process is, and moving bytes of its memory."""

import ctypes
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3verbs.rdma.samehost import process_memory
from s3verbs.rdma.samehost.process_memory import AddressSpace, Identity, check_access, identify

OTHER_USER = 54321
"""Reaching "another user's" process, as root, goes through the descriptor."""

PROGRAM = """
import ctypes, os, sys
memory = ctypes.create_string_buffer(b"what the client has", 8192)
print(ctypes.addressof(memory), flush=True)
for line in sys.stdin:
    if line == "exec\\n":
        os.execv(sys.executable, [sys.executable, "-c", "print('new', flush=True); input()"])
    print(memory.value.decode(), flush=True)
"""


class Client:
    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.address = int(self.line())
        self.identity = identify(self.process.pid)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def say(self, text: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()
        return self.line()

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def client() -> Iterator[Client]:
    started = Client()
    yield started
    started.stop()


def spaces(client: Client) -> Iterator[AddressSpace]:
    for uid in (os.getuid(), OTHER_USER):
        space = AddressSpace(client.identity, uid)
        yield space
        space.close()


def test_bytes_move_in_both_directions(client: Client) -> None:
    for number, space in enumerate(spaces(client)):
        into = ctypes.create_string_buffer(32)
        assert space.read(client.address, ctypes.addressof(into), 4) == 4
        assert into.value in (b"what", b"WHAT")
        data = ctypes.create_string_buffer(b"WHAT" if number else b"what", 4)
        assert space.write(client.address, ctypes.addressof(data), 4) == 4
        assert client.say("show").startswith(data.raw.decode())


def test_what_is_not_mapped_is_a_fault(client: Client) -> None:
    local = ctypes.create_string_buffer(16)
    for space in spaces(client):
        for address in (8, 0xFFFF << 40, (1 << 56) - 16):
            for call in (space.read, space.write):
                with pytest.raises(OSError, match=r".") as caught:
                    call(address, ctypes.addressof(local), 16)
                assert caught.value.errno == errno.EFAULT


def test_a_dead_process_is_gone(client: Client) -> None:
    opened = [AddressSpace(client.identity, uid) for uid in (os.getuid(), OTHER_USER)]
    client.stop()
    local = ctypes.create_string_buffer(16)
    for space in opened:
        with pytest.raises(ProcessLookupError):
            space.read(client.address, ctypes.addressof(local), 16)
        with pytest.raises(ProcessLookupError):
            space.write(client.address, ctypes.addressof(local), 16)
        space.close()
        space.close()
    with pytest.raises(ProcessLookupError):
        identify(client.identity.pid)
    with pytest.raises(ProcessLookupError):
        check_access(client.identity.pid)
    with pytest.raises(ProcessLookupError):
        AddressSpace(client.identity, os.getuid())


def test_exec_makes_another_program_of_a_process(client: Client) -> None:
    opened = [AddressSpace(client.identity, uid) for uid in (os.getuid(), OTHER_USER)]
    assert client.say("exec") == "new"
    now = identify(client.process.pid)
    assert (now.pid, now.start) == (client.identity.pid, client.identity.start)
    assert now.image != client.identity.image
    local = ctypes.create_string_buffer(16)
    for space in opened:
        with pytest.raises(ProcessLookupError):
            space.write(client.address, ctypes.addressof(local), 16)
        space.close()
    with pytest.raises(ProcessLookupError):
        AddressSpace(client.identity, os.getuid())


def test_another_start_time_is_another_process(client: Client) -> None:
    who = client.identity
    before = set(Path("/proc/self/fd").iterdir())
    for other in (Identity(who.pid, who.start + 1, who.image), Identity(who.pid, who.start, 0)):
        with pytest.raises(ProcessLookupError):
            AddressSpace(other, os.getuid())
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_identity_is_the_same_for_every_look(client: Client) -> None:
    assert identify(client.process.pid) == client.identity
    os.kill(client.process.pid, signal.SIGSTOP)
    assert identify(client.process.pid) == client.identity
    os.kill(client.process.pid, signal.SIGCONT)


def test_a_name_with_parentheses_and_spaces_is_no_riddle() -> None:
    before = Path("/proc/self/comm").read_text()
    mine = identify(os.getpid())
    try:
        Path("/proc/self/comm").write_text(") R 1 (2) 3")
        assert identify(os.getpid()) == mine
    finally:
        Path("/proc/self/comm").write_text(before)


def test_ones_own_memory_is_known() -> None:
    buffer = ctypes.create_string_buffer(1)
    assert process_memory.obstacle() == ""
    assert process_memory.is_mapped(ctypes.addressof(buffer))
    assert not process_memory.is_mapped(8)
    assert not process_memory.is_mapped(1 << 63)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_users_process_is_out_of_reach() -> None:
    read, write = os.pipe()
    target = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            try:
                check_access(target)
            except PermissionError:
                os.write(write, process_memory.why_not(target, 0).encode())
            if identify(target).image == 0:
                os.write(write, b" hidden")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    text = os.read(read, 999).decode()
    os.close(read)
    os.close(write)
    assert "(uid 65534)" in text
    assert "CAP_SYS_PTRACE" in text
    assert text.endswith("hidden")


@pytest.mark.parametrize(
    ("scope", "words"), [(0, "dumpable"), (1, "PR_SET_PTRACER"), (2, "CAP_SYS_PTRACE"), (3, "set it to 1 or 0")]
)
def test_the_reason_for_a_refusal_says_what_would_change_it(
    scope: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_memory, "ptrace_scope", lambda: scope)
    assert words in process_memory.why_not(1, os.geteuid())
    assert "one user" in process_memory.why_not(1, os.geteuid() + 1)


def test_what_keeps_the_gateway_from_every_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, "_calls_work", lambda: True)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(os, "getpid", lambda: 1)
        assert "pid namespace" in process_memory.obstacle()
    monkeypatch.setattr(process_memory, "_calls_work", lambda: False)
    assert "seccomp" in process_memory.obstacle()


def test_barriers_work_for_processes_that_joined_and_did_not() -> None:
    process_memory.barrier()
    process_memory.join_barrier()
    process_memory.barrier()


@pytest.mark.parametrize(("content", "scope"), [("1\n", 1), ("0", 0), ("x", 0), (None, 0)])
def test_yamas_scope_is_read(content: str | None, scope: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "ptrace_scope"
    if content is not None:
        file.write_text(content)
    monkeypatch.setattr(process_memory, "_YAMA", file)
    assert process_memory.ptrace_scope() == scope
