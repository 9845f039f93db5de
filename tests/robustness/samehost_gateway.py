"""A gateway reduced to its same-host transport: `python samehost_gateway.py SOCKET FD...` runs a parent with a session
service and one worker for each FD, a SOCK_SEQPACKET socket that brings the worker JSON requests and takes its answers.

`Gateway` starts it and speaks with it from a test.
"""

import asyncio
import ctypes
import hashlib
import json
import mmap
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s3verbs.rdma.errors import RdmaError
from s3verbs.rdma.samehost.fabric import SameHostFabric, SameHostRegion
from s3verbs.rdma.samehost.location import bind_socket
from s3verbs.rdma.samehost.sessions import SessionService
from s3verbs.rdma.samehost.sink import MappedSink
from s3verbs.rdma.samehost.table import SessionTable
from s3verbs.rdma.token import parse

ROOT = Path(__file__).resolve().parents[2]


def pattern(seed: int, length: int) -> bytes:
    return random.Random(seed).randbytes(length)


class Gateway:
    """Use as a context manager."""

    def __init__(
        self, path: Path, workers: int = 1, uid: int | None = None, table: str = "{}", *, prefix: Sequence[str] = ()
    ) -> None:
        """`prefix`: a command that runs the gateway, and takes it along when it is killed."""
        self._wrapped = bool(prefix)
        self.path = path
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(workers)]
        self.workers = [ours for ours, _ in pairs]
        for worker in self.workers:
            worker.settimeout(60)
        theirs = [end.fileno() for _, end in pairs]
        self.process = subprocess.Popen(
            [*prefix, sys.executable, __file__, str(path), table, str(uid or ""), *map(str, theirs)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            pass_fds=theirs,
            stdout=subprocess.PIPE,
        )
        for _, end in pairs:
            end.close()
        assert self.process.stdout is not None
        if self.process.stdout.readline() != b"ready\n":
            self.stop()
            raise RuntimeError("the gateway did not start")

    def __enter__(self) -> "Gateway":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL if self._wrapped else number)
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        for worker in self.workers:
            worker.close()

    def send(self, worker: int = 0, **request: Any) -> None:
        self.workers[worker].send(json.dumps(request).encode())

    def receive(self, worker: int = 0) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.workers[worker].recv(1 << 16))
        return answer

    def ask(self, worker: int = 0, **request: Any) -> dict[str, Any]:
        self.send(worker, **request)
        return self.receive(worker)

    def write(self, token: str, seed: int, length: int, worker: int = 0, offset: int = 0) -> str:
        """Put pattern(seed, length) into the client's memory; "" or the error."""
        return str(self.ask(worker, do="write", token=token, seed=seed, length=length, offset=offset)["error"])

    def read(self, token: str, length: int, worker: int = 0, offset: int = 0) -> tuple[str, str]:
        """SHA-256 of what is in the client's memory, and the error."""
        answer = self.ask(worker, do="read", token=token, length=length, offset=offset)
        return answer.get("sha256", ""), answer["error"]

    def worker_pids(self) -> list[int]:
        return [self.ask(number, do="pid")["pid"] for number in range(len(self.workers))]

    def descriptors(self) -> int:
        """Of the parent."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


# -- the gateway's processes --


@dataclass
class _Buffer:
    memory: mmap.mmap

    @property
    def view(self) -> memoryview:
        return memoryview(self.memory)

    @property
    def address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))


class _Worker:
    def __init__(self, table: SessionTable, number: int, channel: socket.socket) -> None:
        self.fabric = SameHostFabric(table, number, threads=4)
        self.channel = channel
        self.held: list[int] = []

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self.channel.setblocking(False)
        tasks: set[asyncio.Task[None]] = set()
        while packet := await loop.sock_recv(self.channel, 1 << 16):
            task = asyncio.create_task(self.serve(json.loads(packet)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def serve(self, request: dict[str, Any]) -> None:
        answer: dict[str, Any] = {"error": ""}
        try:
            await getattr(self, "do_" + request.pop("do"))(answer, **request)
        except (RdmaError, OSError, EOFError, ValueError) as error:
            answer["error"] = type(error).__name__
            answer["reason"] = getattr(getattr(error, "reason", None), "value", "")
            answer["text"] = str(error)
        self.channel.send(json.dumps(answer).encode())

    async def do_pid(self, answer: dict[str, Any]) -> None:
        answer["pid"] = os.getpid()
        answer["descriptors"] = len(list(Path("/proc/self/fd").iterdir()))

    async def region(self, token: str) -> SameHostRegion:
        return await self.fabric.open(parse(token))

    async def do_write(self, answer: dict[str, Any], token: str, seed: int, length: int, offset: int) -> None:
        region = await self.region(token)
        try:
            data = _Buffer(mmap.mmap(-1, length + 8))
            data.view[3 : 3 + length] = pattern(seed, length)
            await region.write(offset, data, length, start=3)
        finally:
            await region.close()

    async def do_read(self, answer: dict[str, Any], token: str, length: int, offset: int) -> None:
        region = await self.region(token)
        try:
            into = _Buffer(mmap.mmap(-1, length))
            await region.read(offset, into, length)
            answer["sha256"] = hashlib.sha256(into.memory).hexdigest()
        finally:
            await region.close()

    async def do_sink(self, answer: dict[str, Any], token: str, segments: list[list[Any]], truncate: int = -1) -> None:
        """Segments are [path, offset, length], or [text] of inline bytes."""
        region = await self.region(token)
        sink = MappedSink(region)
        try:
            await sink.start(b"HTTP/1.1 200 OK\r\n\r\n")
            for segment in segments:
                if len(segment) == 1:
                    await sink.send(segment[0].encode())
                    continue
                fd = os.open(segment[0], os.O_RDONLY)
                try:
                    await sink.send_file(fd, segment[1], segment[2])
                finally:
                    os.close(fd)
            await sink.finish()
        finally:
            answer["moved"] = sink.moved
            await sink.close()
            await region.close()

    async def do_repeat(self, answer: dict[str, Any], token: str, length: int, seconds: float) -> None:
        """Write for some time, and count; until an error."""
        until = time.monotonic() + seconds
        answer["count"] = 0
        data = _Buffer(mmap.mmap(-1, length))
        while time.monotonic() < until:
            region = await self.region(token)
            try:
                data.view[:] = bytes([answer["count"] % 255 + 1]) * length
                await region.write(0, data, length)
            finally:
                await region.close()
            answer["count"] += 1

    async def do_cancel(self, answer: dict[str, Any], token: str, seconds: float) -> None:
        """Cancel a write some time after it was begun, and wait for its end."""
        region = await self.region(token)
        data = _Buffer(mmap.mmap(-1, 4096))
        writing = asyncio.create_task(region.write(0, data, 4096))
        await asyncio.sleep(seconds)
        writing.cancel()
        # Closing waits for it too.
        await asyncio.gather(region.close(), asyncio.wait((writing,)))
        answer["cancelled"] = writing.cancelled()

    async def do_hold(self, answer: dict[str, Any], token: str) -> None:
        """Announce a system call, and do not make it."""
        region = await self.region(token)
        self.held.append(self.fabric._in_flight.announce(region._region))

    async def do_let_go(self, answer: dict[str, Any]) -> None:
        for slot in self.held:
            self.fabric._in_flight.clear(slot)
        self.held.clear()


def main(path: str, settings: str, uid: str, *channels: str) -> None:
    if uid:
        os.setgroups([])
        os.setresgid(int(uid), int(uid), int(uid))
        os.setresuid(int(uid), int(uid), int(uid))
    table = SessionTable(len(channels), **json.loads(settings))
    service = SessionService(bind_socket(0, path), table)
    selector = selectors.DefaultSelector()
    service.register(selector)
    wakeup_in, wakeup_out = socket.socketpair()
    for end in (wakeup_in, wakeup_out):
        end.setblocking(False)
    signal.set_wakeup_fd(wakeup_out.fileno())
    signal.signal(signal.SIGTERM, lambda *_: None)
    stopping = False

    def stop() -> None:
        nonlocal stopping
        stopping = True

    selector.register(wakeup_in, selectors.EVENT_READ, stop)
    children: dict[int, int] = {}

    def start(number: int) -> None:
        pid = os.fork()
        if pid:
            pidfd = os.pidfd_open(pid)
            children[pid] = pidfd
            selector.register(pidfd, selectors.EVENT_READ, reaper(number, pid))
            return
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            selector.close()
            service.leave()
            channel = socket.socket(fileno=int(channels[number]))
            for other in channels:
                if other != channels[number]:
                    os.close(int(other))
            asyncio.run(_Worker(table, number, channel).run())
        finally:
            os._exit(0)

    def reaper(number: int, pid: int) -> Callable[[], None]:
        def reap() -> None:
            os.waitpid(pid, 0)
            pidfd = children.pop(pid)
            selector.unregister(pidfd)
            os.close(pidfd)
            service.worker_exited(number)
            if not stopping:
                start(number)

        return reap

    for number in range(len(channels)):
        start(number)
    print("ready", flush=True)
    while not stopping or children:
        if stopping:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
        for key, _ in selector.select(service.next_event()):
            key.data()
        service.tick()
    service.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
