"""The parent process: binds, accepts, hands connections to workers, restarts those that die, and stops them.

    parent   listeners, one socket pair to each worker; no store, no event loop, no third-party module: it stays small
    worker   forked before anything has threads or an open store; runs `worker.run`

The parent accepts and passes each connection to the worker with the fewest open ones. With SO_REUSEPORT the kernel
chooses by a hash of the addresses, a coin toss for each connection: 16 keep-alive clients on two workers come out
even in one run of five, and every tenth run has 12:4 or worse, so one core idles while the other is full. On a shared
listening socket whoever wakes first takes most.
Handing over costs about 50 microseconds, once in the life of a connection; a connection never waits at a dead worker.
"""

import contextlib
import logging
import mmap
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from s3verbs.gateway.listening import StartError

log = logging.getLogger("s3verbs")

ACCEPT_AT_ONCE = 64
SLOT_BYTES = 64
FIRST_BACKOFF = 0.1
LAST_BACKOFF = 10.0
STEADY_SECONDS = 30.0
"""A worker that lived so long is restarted without delay when it dies."""

READY = b"ready"


class Tally:
    """Closed connections by worker, in memory shared with the workers: each writes its own slot."""

    def __init__(self, workers: int) -> None:
        self._memory = mmap.mmap(-1, max(mmap.PAGESIZE, workers * SLOT_BYTES))
        self._slots = memoryview(self._memory).cast("Q")

    def closed(self, worker: int) -> int:
        return self._slots[worker * SLOT_BYTES // 8]

    def count_closed(self, worker: int) -> None:
        self._slots[worker * SLOT_BYTES // 8] += 1

    def reset(self, worker: int) -> None:
        self._slots[worker * SLOT_BYTES // 8] = 0


@dataclass(frozen=True, slots=True)
class WorkerSeat:
    """What a worker gets from its parent: its number, the channel that brings connections, and the tally."""

    number: int
    channel: socket.socket
    tally: Tally


@dataclass(slots=True)
class _Worker:
    number: int
    pid: int = 0
    pidfd: int = -1
    channel: socket.socket | None = None
    ready: bool = False
    handed: int = 0
    started: float = 0.0
    backoff: float = 0.0
    restart_at: float = 0.0


class Service(Protocol):
    """Something small that lives in the parent beside its workers: it never blocks and never raises."""

    def register(self, selector: selectors.BaseSelector) -> None:
        """Watch descriptors, each with a callable without arguments as its data."""

    def next_event(self) -> float | None:
        """Seconds until `tick` is wanted; None when it is not."""

    def tick(self) -> None: ...

    def worker_exited(self, number: int) -> None:
        """A worker is gone, and with it whatever it was doing."""

    def leave(self) -> None:
        """In a worker just forked: close what belongs to the parent."""

    def close(self) -> None:
        """In the parent, after the last worker."""


class Supervisor:
    """Runs in the parent, single-threaded. `serve_worker` is called in each child and never returns to its caller."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        workers: int,
        serve_worker: Callable[[WorkerSeat], int],
        *,
        drain_timeout: float,
        announce: Callable[[], None],
        on_worker_exit: Callable[[int], None] = lambda pid: None,
        services: Sequence[Service] = (),
    ) -> None:
        self._listeners = list(listeners)
        self._serve_worker = serve_worker
        self._drain_timeout = drain_timeout
        self._announce = announce
        self._on_worker_exit = on_worker_exit
        self._services = services
        self._announced = False
        self._tally = Tally(workers)
        self._workers = [_Worker(number) for number in range(workers)]
        self._selector = selectors.DefaultSelector()
        self._wakeup_in, self._wakeup_out = socket.socketpair()
        self._stopping_since: float | None = None
        self._failed = False

    def run(self) -> int:
        """Until a stop signal; the exit code."""
        self._catch_signals()
        for worker in self._workers:
            self._start(worker)
        self._selector.register(self._wakeup_in, selectors.EVENT_READ, self._on_signal)
        for service in self._services:
            service.register(self._selector)
        while True:
            for key, _ in self._selector.select(self._next_event()):
                key.data()
            for service in self._services:
                service.tick()
            self._restart_due()
            if self._stopping_since is not None:
                living = [worker for worker in self._workers if worker.pid]
                if not living:
                    for service in self._services:
                        service.close()
                    return 2 if self._failed else 0
                if time.monotonic() - self._stopping_since > self._drain_timeout + 5:
                    self._kill(signal.SIGKILL)

    # -- workers --

    def _start(self, worker: _Worker) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._tally.reset(worker.number)
        worker.handed = 0
        worker.ready = False
        worker.started = time.monotonic()
        worker.restart_at = 0.0
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            code = 1
            try:
                self._become_worker(ours, parent)
                code = self._serve_worker(WorkerSeat(worker.number, theirs, self._tally))
            except StartError as error:
                sys.stderr.write(f"s3verbs: {error}\n")
                code = 2
            except BaseException:
                log.exception("worker %d failed", worker.number)
            finally:
                with contextlib.suppress(OSError, ValueError):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code)
        theirs.close()
        ours.setblocking(False)
        worker.pid = pid
        worker.channel = ours
        worker.pidfd = os.pidfd_open(pid)
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._on_message(worker))
        self._selector.register(worker.pidfd, selectors.EVENT_READ, lambda: self._on_exit(worker))

    def _become_worker(self, ours: socket.socket, parent: int) -> None:
        """Leave behind what belongs to the parent. A worker outlives no parent: its channel ends with it."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # A terminal's Ctrl-C reaches every process; only the parent decides what it means.
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
        self._selector.close()
        ours.close()
        self._wakeup_in.close()
        self._wakeup_out.close()
        for listener in self._listeners:
            listener.close()
        for service in self._services:
            service.leave()
        for other in self._workers:
            if other.channel is not None:
                other.channel.close()
            if other.pidfd >= 0:
                os.close(other.pidfd)
        if os.getppid() != parent:
            os._exit(0)

    def _on_message(self, worker: _Worker) -> None:
        assert worker.channel is not None
        try:
            message = worker.channel.recv(64)
        except (BlockingIOError, ConnectionResetError):
            return
        if not message:
            self._selector.unregister(worker.channel)
        elif message == READY:
            worker.ready = True
            if not self._announced and all(each.ready for each in self._workers):
                self._announced = True
                self._announce()
                notify_systemd("READY=1")
            self._accept_while_ready()

    def _accept_while_ready(self) -> None:
        """Without a worker that could take them, connections wait in the kernel's backlog."""
        wanted = self._stopping_since is None and self._announced and any(each.ready for each in self._workers)
        for listener in self._listeners:
            if listener.fileno() < 0:
                continue  # Closed: this worker was starting when the server was told to stop.
            watched = listener.fileno() in self._selector.get_map()
            if wanted and not watched:
                self._selector.register(listener, selectors.EVENT_READ, lambda one=listener: self._accept(one))
            elif watched and not wanted:
                self._selector.unregister(listener)

    def _on_exit(self, worker: _Worker) -> None:
        _, status = os.waitpid(worker.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._selector.unregister(worker.pidfd)
        os.close(worker.pidfd)
        if worker.channel is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(worker.channel)
            worker.channel.close()
        pid, worker.pid, worker.pidfd, worker.channel = worker.pid, 0, -1, None
        was_ready, worker.ready = worker.ready, False
        self._on_worker_exit(pid)
        for service in self._services:
            service.worker_exited(worker.number)
        if self._stopping_since is not None:
            return
        self._accept_while_ready()
        if not self._announced and not was_ready:
            # It never worked: starting it again would only say the same again.
            self._failed = True
            self._stop()
            return
        lived = time.monotonic() - worker.started
        self._back_off(worker, steady=lived > STEADY_SECONDS)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        log.error("worker %d (pid %d) died: %s; starting it again in %.1f s", worker.number, pid, how, worker.backoff)

    def _restart_due(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            if worker.pid == 0 and self._stopping_since is None and worker.restart_at <= now:
                try:
                    self._start(worker)
                except OSError as error:
                    # Short of processes, memory or descriptors; the other workers go on.
                    self._back_off(worker, steady=False)
                    log.error("worker %d cannot be started: %s", worker.number, error.strerror)

    def _back_off(self, worker: _Worker, *, steady: bool) -> None:
        worker.backoff = 0.0 if steady else min(LAST_BACKOFF, max(FIRST_BACKOFF, worker.backoff * 2))
        worker.restart_at = time.monotonic() + worker.backoff

    # -- connections --

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPT_AT_ONCE):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("accept: %s", error.strerror)
                time.sleep(0.05)
                return
            with connection:
                self._hand_over(connection)

    def _hand_over(self, connection: socket.socket) -> None:
        """To the worker with the fewest open connections; a worker whose channel is full is passed over."""
        ready = [worker for worker in self._workers if worker.ready]
        ready.sort(key=lambda worker: (worker.handed - self._tally.closed(worker.number), worker.handed))
        for worker in ready:
            assert worker.channel is not None
            try:
                socket.send_fds(worker.channel, [b"c"], [connection.fileno()])
            except (BlockingIOError, BrokenPipeError, ConnectionError):
                continue
            worker.handed += 1
            return

    # -- signals --

    def _catch_signals(self) -> None:
        self._wakeup_in.setblocking(False)
        self._wakeup_out.setblocking(False)
        signal.set_wakeup_fd(self._wakeup_out.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)

    def _on_signal(self) -> None:
        try:
            numbers = self._wakeup_in.recv(64)
        except BlockingIOError:
            return
        for number in numbers:
            if number == signal.SIGHUP:
                self._kill(signal.SIGHUP)
            elif number in (signal.SIGTERM, signal.SIGINT):
                if self._stopping_since is None:
                    self._stop()
                else:
                    self._kill(signal.SIGKILL)

    def _stop(self) -> None:
        """Accept nothing more, and let the workers finish."""
        self._stopping_since = time.monotonic()
        notify_systemd("STOPPING=1")
        self._accept_while_ready()
        for listener in self._listeners:
            listener.close()
        self._kill(signal.SIGTERM)

    def _kill(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.pid:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(worker.pidfd, number)

    def _next_event(self) -> float | None:
        now = time.monotonic()
        waits = [worker.restart_at - now for worker in self._workers if worker.pid == 0 and worker.restart_at]
        if self._stopping_since is not None:
            waits.append(0.2)
        waits += [wait for service in self._services if (wait := service.next_event()) is not None]
        return max(0.0, min(waits)) if waits else None


def notify_systemd(state: str) -> None:
    """Tell systemd, where it asked to be told (Type=notify)."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, contextlib.suppress(OSError):
        notify.connect("\0" + path[1:] if path.startswith("@") else path)
        notify.send(state.encode())
