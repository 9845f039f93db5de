"""Clients that are slow, idle, greedy or gone: what they may hold, for how long, and that it all comes back."""

import contextlib
import resource
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.endpoint import BUCKET, Endpoint, Wire
from tests.robustness.server_load import POOL
from tests.robustness.server_state import open_files, resident, wait_until

MIB = 1 << 20
BIG = f"/{BUCKET}/big"
BODY_TIMEOUT = 2
BUFFERS = 8
"""The pool of the one worker below, in buffers of 1 MiB."""
SERVED = 5
"""Clients that even a server out of descriptors answers."""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    data: Path = tmp_path_factory.mktemp("rude") / "data"
    options = ("--body-timeout", str(BODY_TIMEOUT), "--header-timeout", "1", "--keep-alive-timeout", "60")
    with Endpoint(data, *options, "--buffer-pool", f"{BUFFERS}MiB") as running:
        with running.connect() as wire:
            assert wire.request("PUT", BIG, POOL * 8, x_amz_content_sha256="UNSIGNED-PAYLOAD").status == 200
        yield running
        assert "Traceback" not in running.errors


_visitors: list[Wire] = []


def visit(endpoint: Endpoint) -> Wire:
    """A connection that lasts until the test is over, if it does not end before."""
    _visitors.append(endpoint.connect())
    return _visitors[-1]


@pytest.fixture(autouse=True)
def comes_back(endpoint: Endpoint) -> Iterator[None]:
    """Whatever a test does, the descriptors are back to base afterwards and the whole pool of buffers is free."""
    _warm_up(endpoint)
    base = open_files(endpoint)
    yield
    while _visitors:
        _visitors.pop().close()
    assert wait_until(lambda: open_files(endpoint) <= base, 10), f"{open_files(endpoint)} descriptors, {base} before"
    wires = [endpoint.connect() for _ in range(BUFFERS)]
    request = wires[0].signed("PUT", f"/{BUCKET}/all-at-once", POOL[:MIB], x_amz_content_sha256="UNSIGNED-PAYLOAD")
    for wire in wires:
        wire.send(request[:-1])
    for wire in wires:
        wire.send(request[-1:])
        assert wire.read().status == 200
        wire.close()


def _warm_up(endpoint: Endpoint) -> None:
    """What a worker opens once and keeps."""
    for _ in range(4):
        visit(endpoint).request("PUT", f"/{BUCKET}/warm", POOL[:100_000])
        _visitors[-1].request("GET", f"/{BUCKET}/warm")
        _visitors[-1].request("GET", f"/{BUCKET}/absent")
    while _visitors:
        _visitors.pop().close()
    time.sleep(0.1)


def reset(wire: Wire) -> None:
    """Go away with a reset in place of a FIN."""
    wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.close()


def begin_put(endpoint: Endpoint, key: str, size: int, sent: int) -> Wire:
    """A connection on which `sent` bytes of a PUT's body are under way."""
    wire = visit(endpoint)
    head = wire.signed(
        "PUT",
        f"/{BUCKET}/{key}",
        head_only=True,
        content_length=str(size),
        x_amz_content_sha256="UNSIGNED-PAYLOAD",
    )
    wire.send(head + bytes(sent))
    return wire


# -- slow senders --


def test_bodies_that_come_a_byte_at_a_time_are_cut(endpoint: Endpoint) -> None:
    """Each byte is progress of a kind; only a rate tells such a client from a slow network."""
    wires = [begin_put(endpoint, "slow", size, 0) for size in (10_000, 3 * MIB)]
    wires.append(visit(endpoint))
    document = wires[-1].signed("POST", f"/{BUCKET}?delete=", bytes(5000), content_md5="AAAAAAAAAAAAAAAAAAAAAA==")
    wires[-1].send(document[:-5000])
    started = time.monotonic()
    answered: set[socket.socket] = set()
    while len(answered) < len(wires) and time.monotonic() - started < 5 * BODY_TIMEOUT:
        for wire in wires:
            if wire.sock not in answered:
                wire.send(b"x")
        answered.update(select.select([wire.sock for wire in wires], [], [], 0)[0])
        time.sleep(0.1)
    assert BODY_TIMEOUT / 2 < time.monotonic() - started < 3 * BODY_TIMEOUT
    for wire in wires:
        assert wire.read().code == "RequestTimeout"
        assert wire.closed()
    with endpoint.connect() as wire:
        assert wire.request("GET", f"/{BUCKET}/slow").code == "NoSuchKey"


def test_a_slow_network_is_not_cut(endpoint: Endpoint) -> None:
    """50 kB/s for twice the timeout."""
    body = POOL[:200_000]
    with begin_put(endpoint, "slow-network", len(body), 0) as wire:
        for start in range(0, len(body), 10_000):
            wire.send(body[start : start + 10_000])
            time.sleep(0.2)
        assert wire.read().status == 200
    with endpoint.connect() as wire:
        assert wire.request("GET", f"/{BUCKET}/slow-network").body == body


def test_bodies_that_do_not_begin_hold_no_buffer(endpoint: Endpoint) -> None:
    for number in range(4 * BUFFERS):
        begin_put(endpoint, f"idle{number}", 8 * MIB, 0)
    time.sleep(0.3)
    started = time.monotonic()
    with endpoint.connect() as wire:
        assert wire.request("PUT", f"/{BUCKET}/beside", POOL[: 2 * MIB]).status == 200
    assert time.monotonic() - started < 1


def test_slow_senders_that_hold_every_buffer_are_cut_and_the_next_one_gets_in(endpoint: Endpoint) -> None:
    wires = [begin_put(endpoint, f"slow{number}", 8 * MIB, 1000) for number in range(BUFFERS + 4)]
    with endpoint.connect() as wire:
        assert wire.request("PUT", f"/{BUCKET}/next", POOL[: 2 * MIB]).status == 200
    for wire in wires:
        assert wire.read().code == "RequestTimeout"


# -- readers that do not read --


def test_clients_that_never_read_a_large_object_are_dropped_and_free_its_file(endpoint: Endpoint) -> None:
    before = open_files(endpoint)
    wires = []
    for _ in range(10):
        wire = visit(endpoint)
        wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.send(wire.signed("GET", BIG))
        wires.append(wire)
    assert wait_until(lambda: open_files(endpoint) >= before + 20, 5), "each holds a socket and the payload's file"
    assert wait_until(lambda: open_files(endpoint) <= before, BODY_TIMEOUT + 5)


def test_a_reader_of_a_few_bytes_a_second_is_dropped_with_what_the_kernel_keeps_for_it(endpoint: Endpoint) -> None:
    wire = visit(endpoint)
    wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    wire.send(wire.signed("GET", BIG))
    assert wait_until(lambda: _queued(endpoint) > MIB)
    started = time.monotonic()
    while _queued(endpoint) and time.monotonic() - started < 5 * BODY_TIMEOUT:
        wire.sock.recv(20)
        time.sleep(0.05)
    assert BODY_TIMEOUT / 2 < time.monotonic() - started < 4 * BODY_TIMEOUT


def _queued(endpoint: Endpoint) -> int:
    """Bytes that the kernel has yet to send for the endpoint, also on sockets that it has closed."""
    return sum(
        int(fields[4].partition(":")[0], 16)
        for fields in map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:])
        if fields[1].endswith(f":{endpoint.port:04X}") and fields[3] != "0A"
    )


def test_pipelined_requests_of_a_client_that_reads_nothing_take_no_memory(endpoint: Endpoint) -> None:
    """Nor do the answers: the client is dropped, or it is not read any further."""
    before = sum(resident(endpoint).values())
    with endpoint.connect() as wire:
        wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = wire.signed("GET", BIG) + wire.signed("GET", f"/{BUCKET}/absent") * 100
        wire.sock.settimeout(1)
        sent = 0
        with contextlib.suppress(OSError):
            while sent < 40_000_000:
                wire.sock.sendall(request)
                sent += len(request)
        assert sum(resident(endpoint).values()) - before < 8 * MIB


def test_pipelined_errors_of_a_client_that_reads_nothing_take_no_memory(endpoint: Endpoint) -> None:
    before = sum(resident(endpoint).values())
    with endpoint.connect() as wire:
        wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = b"GET /no-such-bucket/key HTTP/1.1\r\nHost: x\r\n\r\n" * 1000
        wire.sock.settimeout(1)
        sent = 0
        with contextlib.suppress(OSError):
            while sent < 20_000_000:
                wire.sock.sendall(request)
                sent += len(request)
        assert sum(resident(endpoint).values()) - before < 8 * MIB


# -- many --


def test_two_hundred_idle_connections_cost_little_and_nobody_waits(endpoint: Endpoint) -> None:
    before = sum(resident(endpoint).values())
    wires = [visit(endpoint) for _ in range(200)]
    for wire in wires:
        assert wire.request("HEAD", BIG).status == 200
    started = time.monotonic()
    with endpoint.connect() as wire:
        assert wire.request("GET", f"/{BUCKET}/absent").status == 404
    assert time.monotonic() - started < 1
    assert sum(resident(endpoint).values()) - before < 24 * MIB
    for wire in wires:
        reset(wire)


def test_connections_that_say_nothing_are_dropped_after_the_header_timeout(endpoint: Endpoint) -> None:
    wires = [visit(endpoint) for _ in range(100)]
    time.sleep(1)
    for wire in wires:
        assert wire.closed()


def test_resets_at_any_moment_leave_nothing_behind(endpoint: Endpoint) -> None:
    for number in range(40):
        reset(begin_put(endpoint, "gone", 4 * MIB, number * 60_000))
        wire = visit(endpoint)
        wire.send(wire.signed("GET", BIG))
        wire.sock.recv(1 + number * 1000)
        reset(wire)
        wire = visit(endpoint)
        wire.send(wire.signed("GET", BIG)[: number * 10])
        reset(wire)
    with endpoint.connect() as wire:
        assert wire.request("GET", f"/{BUCKET}/gone").code == "NoSuchKey"
        assert len(wire.request("GET", BIG).body) == 64 * MIB


# -- out of descriptors --


def test_a_server_out_of_descriptors_refuses_some_and_recovers(tmp_path: Path) -> None:
    with Endpoint(tmp_path / "data", workers=2) as endpoint:
        for pid in (endpoint.process.pid, *endpoint.worker_pids):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (120, 120))
        with endpoint.connect() as wire:
            assert wire.request("PUT", BIG, POOL).status == 200
        _warm_up(endpoint)
        base = open_files(endpoint)
        wires = []
        for _ in range(300):
            with contextlib.suppress(OSError):
                wire = visit(endpoint)
                wire.send(wire.signed("GET", BIG))
                wires.append(wire)
        # Those that got a connection and a file are being answered, as slowly as they read.
        answers = _statuses(wires, SERVED)
        assert set(answers) <= {200, 503, 0}, set(answers)
        # 16 to 42 of 300 where this was counted: a connection takes a descriptor that a file would have needed.
        assert answers.count(200) >= SERVED
        while _visitors:
            _visitors.pop().close()
        assert wait_until(lambda: open_files(endpoint) <= base)
        for _ in range(20):
            with endpoint.connect() as wire:
                assert wire.request("GET", BIG).body == POOL
        assert "Traceback" not in endpoint.errors
        assert "died" not in endpoint.errors


def _statuses(wires: list[Wire], enough: int) -> list[int]:
    """What each was answered, 0 for nothing or a connection that ended: once so many got a 200 and no more come."""
    poll, waiting = select.poll(), {wire.sock.fileno(): wire for wire in wires}
    for number in waiting:
        poll.register(number, select.POLLIN)
    found: list[int] = []
    until = time.monotonic() + 30
    while waiting and time.monotonic() < until:
        ready = poll.poll(1000)
        if not ready and found.count(200) >= enough:
            break
        for number, _ in ready:
            poll.unregister(number)
            found.append(_status(waiting.pop(number)))
    return found + [0] * len(waiting)


def _status(wire: Wire) -> int:
    try:
        line = wire.sock.recv(12)
        return int(line[9:12]) if len(line) == 12 else 0
    except (OSError, ValueError):
        return 0


def test_a_flood_of_connections_beyond_the_limit_is_told_to_slow_down(tmp_path: Path) -> None:
    with Endpoint(tmp_path / "data", "--max-connections", "40", workers=2) as endpoint:
        wires = [visit(endpoint) for _ in range(60)]
        time.sleep(0.5)
        refused = 0
        for wire in wires:
            wire.sock.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                refused += wire.read().code == "SlowDown"
        assert refused == 20
        for wire in wires:
            wire.close()
        assert wait_until(lambda: _served(endpoint))


def _served(endpoint: Endpoint) -> bool:
    with endpoint.connect() as wire:
        return wire.request("HEAD", f"/{BUCKET}").status == 200


def test_many_threads_of_short_connections_are_spread_and_counted_right(tmp_path: Path) -> None:
    """A connection that is not counted out would in time starve a worker."""
    with Endpoint(tmp_path / "data", workers=2) as endpoint:

        def come_and_go() -> None:
            for number in range(60):
                wire = endpoint.connect()
                if number % 3:
                    wire.send(wire.signed("GET", f"/{BUCKET}"))
                    if number % 2:
                        wire.read()
                reset(wire) if number % 5 else wire.close()

        threads = [threading.Thread(target=come_and_go) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wait_until(lambda: _connections(endpoint) == [0, 0])
        wires = [visit(endpoint) for _ in range(20)]
        for wire in wires:
            wire.request("HEAD", f"/{BUCKET}")
        assert _connections(endpoint) == [10, 10]
        for wire in wires:
            wire.close()


def _connections(endpoint: Endpoint) -> list[int]:
    """Sockets of clients, in whatever state, by worker."""
    found = []
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(f":{endpoint.port:04X}") and fields[3] != "0A":
            inodes.add(f"socket:[{fields[9]}]")
    for pid in endpoint.worker_pids:
        links = []
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                links.append(str(link.readlink()))
        found.append(len(inodes.intersection(links)))
    return found
