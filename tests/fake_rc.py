"""Stands in for what RC connections are made of below the event loop: a completion queue, a device, links.

`FakeQueue` keeps the rules of a completion channel: an event is raised by the first completion after `arm`, and only
by that one. `FakeLink` moves bytes between this process' own memory when told to.
"""

import contextlib
import ctypes
import itertools
import mmap
import os
import threading
import time
from collections import deque

from s3verbs.rdma.fabric import CHUNK
from s3verbs.rdma.verbs.attributes import Completion, DeviceLimits, LocalSpan
from s3verbs.rdma.verbs.completion import Completions
from s3verbs.rdma.verbs.constants import CompletionStatus
from s3verbs.rdma.verbs.errors import VerbsError


class FakeQueue:
    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
        self._entries: deque[Completion] = deque()
        self._armed = False
        self.broken = False
        self.polls: list[int] = []

    def fileno(self) -> int:
        return self._descriptor

    def arm(self) -> None:
        self._armed = True

    def take_event(self) -> bool:
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:
            return False
        return True

    def poll(self, most: int) -> list[Completion]:
        if self.broken:
            raise VerbsError("gone", 5)
        self.polls.append(most)
        return [self._entries.popleft() for _ in range(min(most, len(self._entries)))]

    def push(self, work: int, status: CompletionStatus = CompletionStatus.SUCCESS) -> None:
        self._entries.append(Completion(work, status, 1))
        if self._armed:
            self._armed = False
            os.eventfd_write(self._descriptor, 1)

    def close(self) -> None:
        os.close(self._descriptor)


class FakeArena:
    """Memory of this process on both ends: `span` checks nothing but adds a local key."""

    def span(self, address: int, length: int) -> LocalSpan:
        return LocalSpan(address, length, 7)


class FakeDevice:
    def __init__(self, loop: object, name: str = "fake0", room: int = 100) -> None:
        self.name = name
        self.room = room
        self.limits = DeviceLimits(room, 1000, 1000, 16, 16)
        self.queue = FakeQueue()
        self.completions = Completions(self.queue, loop)
        self.arena = FakeArena()

    def take(self) -> bool:
        if not self.room:
            return False
        self.room -= 1
        return True

    def give(self) -> None:
        self.room += 1

    def close(self) -> None:
        self.completions.close()


class FakeLink:
    """Posted work waits in `posted` until `complete`, or at once when `automatic`. `deaf`: no flush comes."""

    numbers = itertools.count(1)

    def __init__(self, device: FakeDevice, *, automatic: bool = True, deaf: bool = False) -> None:
        self.number = next(self.numbers)
        self.device = device
        self.automatic = automatic
        self.deaf = deaf
        self.status = CompletionStatus.SUCCESS
        self.posted: dict[int, tuple[bool, LocalSpan, int, int]] = {}
        self.moved: list[tuple[bool, LocalSpan, int, int]] = []
        self.refuse: VerbsError | None = None
        self.refuse_close: VerbsError | None = None
        self.closing_takes = 0.0
        self.aborted = False
        self.closed = False
        self._hung_up = False
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK)
        self._lock = threading.RLock()  # closed in another thread than the one that posts

    @property
    def queue_pair(self) -> "FakeLink":
        return self

    def post_read(self, work: int, local: LocalSpan, remote: int, rkey: int) -> None:
        self._post(work, (True, local, remote, rkey))

    def post_write(self, work: int, local: LocalSpan, remote: int, rkey: int) -> None:
        self._post(work, (False, local, remote, rkey))

    def _post(self, work: int, request: tuple[bool, LocalSpan, int, int]) -> None:
        assert not self.closed
        if self.refuse is not None:
            raise self.refuse
        self.posted[work] = request
        if self.aborted:
            self._flush()
        elif self.automatic:
            self.complete()

    def complete(self, status: CompletionStatus | None = None) -> None:
        """The oldest request, if there is one."""
        with self._lock:
            if self.posted:
                self._complete(status)

    def _complete(self, status: CompletionStatus | None) -> None:
        work, request = next(iter(self.posted.items()))
        del self.posted[work]
        status = self.status if status is None else status
        if status is CompletionStatus.SUCCESS:
            read, local, remote, _ = request
            source, target = (remote, local.address) if read else (local.address, remote)
            ctypes.memmove(target, source, local.length)
            self.moved.append(request)
        self.device.queue.push(work, status)
        if status is not CompletionStatus.SUCCESS:
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            while self.posted and not self.deaf:
                work, _ = self.posted.popitem()
                self.device.queue.push(work, CompletionStatus.WR_FLUSH_ERR)

    def fileno(self) -> int:
        return self._descriptor

    def hang_up(self) -> None:
        with self._lock:
            if not self.closed:
                self._hung_up = True
                os.eventfd_write(self._descriptor, 1)

    def ended(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)
        return self._hung_up

    def abort(self) -> None:
        self.aborted = True
        self._flush()

    def close(self) -> None:
        if self.refuse_close is not None:
            raise self.refuse_close
        time.sleep(self.closing_takes)
        with self._lock:
            assert not self.closed
            self.closed = True
            self.posted.clear()
            os.close(self._descriptor)


class Memory:
    """CHUNK-sized buffers of this process; also plays the client's memory."""

    def __init__(self, chunks: int) -> None:
        self.bytes = mmap.mmap(-1, chunks * CHUNK)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))

    def buffer(self, number: int) -> "MemoryBuffer":
        return MemoryBuffer(self, number)


class MemoryBuffer:
    def __init__(self, memory: Memory, number: int) -> None:
        self.address = memory.address + number * CHUNK
        self.view = memoryview(memory.bytes)[number * CHUNK : (number + 1) * CHUNK]
