"""The parent and its workers in situations that a running server seldom meets."""

import asyncio
import os
import selectors
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from s3verbs.gateway import worker
from s3verbs.gateway.listening import bind
from s3verbs.gateway.setting_types import Address
from s3verbs.gateway.supervisor import READY, Supervisor, Tally, WorkerSeat


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    listener = bind(Address("127.0.0.1", 0))
    made = Supervisor([listener], 1, lambda seat: 0, drain_timeout=1, announce=lambda: None)
    yield made
    listener.close()
    made._selector.close()
    made._wakeup_in.close()
    made._wakeup_out.close()


def test_a_worker_that_gets_ready_while_the_server_stops_does_no_harm(supervisor: Supervisor) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        supervisor._workers[0].channel = ours
        supervisor._stop()
        theirs.send(READY)
        supervisor._on_message(supervisor._workers[0])


def test_a_worker_that_cannot_be_forked_is_tried_again_later(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fork() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    for _ in range(3):
        supervisor._workers[0].restart_at = 0.0
        supervisor._restart_due()
        assert supervisor._workers[0].restart_at > time.monotonic()
    wait = supervisor._next_event()
    assert wait is not None
    assert 0 < wait < 1


async def test_a_connection_that_got_lost_on_its_way_counts_as_closed() -> None:
    """The kernel drops a descriptor that the receiving process has no room for, and delivers the message."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    tally = Tally(1)
    with ours, theirs:
        arrivals = worker._Arrivals(
            WorkerSeat(0, theirs, tally),
            None,  # type: ignore[arg-type]
            None,
            asyncio.get_running_loop(),
            on_parent_gone=lambda: None,
        )
        ours.send(b"c")
        arrivals._receive()
    assert tally.closed(0) == 1


class Recorder:
    """A service that notes what the supervisor asks of it, in the process that asks."""

    def __init__(self, report: int) -> None:
        self._report = report
        self.ours, self.theirs = os.pipe()

    def register(self, selector: selectors.BaseSelector) -> None:
        selector.register(self.ours, selectors.EVENT_READ, self._readable)

    def _readable(self) -> None:
        os.read(self.ours, 1)
        self._say("readable")

    def next_event(self) -> float | None:
        return 0.05

    def tick(self) -> None:
        """Called too often to be noted."""

    def worker_exited(self, number: int) -> None:
        self._say(f"exited {number}")

    def leave(self) -> None:
        self._say("leave")

    def close(self) -> None:
        self._say("close")

    def _say(self, text: str) -> None:
        os.write(self._report, f"{text}\n".encode())


def test_a_service_lives_in_the_parent_and_hears_of_its_workers() -> None:
    """In a child, since a supervisor takes over signals and waits for its process's children."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            service = Recorder(writable)

            def work(seat: WorkerSeat) -> int:
                seat.channel.send(READY)
                os.write(service.theirs, b"x")
                signal.sigwait({signal.SIGTERM})
                return 0

            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            listener = bind(Address("127.0.0.1", 0))
            made = Supervisor(
                [listener],
                1,
                work,
                drain_timeout=1,
                announce=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM}),
                services=[service],
            )
            code = made.run()
        finally:
            os._exit(code)
    os.close(writable)
    with os.fdopen(readable) as report:
        lines = [report.readline() for _ in range(2)]
        os.kill(child, signal.SIGTERM)
        lines += report.readlines()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lines == ["leave\n", "readable\n", "exited 0\n", "close\n"]
