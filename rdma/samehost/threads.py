"""The threads of a worker that make system calls on the memory of clients, and how the event loop waits for them.

Not a ThreadPoolExecutor: handing over work and hearing of its end takes some 10 us here, and 90 by way of an
executor's future, asyncio's of it, and a shield around that. A copy of 8 MiB takes 700.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable

from s3verbs.rdma.settle import outlast

Step = Callable[[], None]


class CopyThreads:
    """`count` threads. They do not keep the process from exiting: a client can make its memory slow for ever."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        for number in range(count):
            threading.Thread(target=self._serve, name=f"samehost-{number}", daemon=True).start()

    async def run(self, step: Step, *, threads: int = 1, stop: Step = lambda: None) -> None:
        """Run `step` on a thread, or on up to `threads` of them at once: it then returns when nothing is left to begin.
        Over when every call has returned; those that have not begun by then never do. Raises the first error.

        When cancelled meanwhile it calls `stop`, after which `step` should return early, and waits for what has begun.
        Loop thread only.
        """
        work = _Work(asyncio.get_running_loop(), step)
        for _ in range(threads):
            self._queue.put(work)
        try:
            await work.over
        except asyncio.CancelledError:
            stop()
            await outlast(work.called_off())
            raise

    def close(self) -> None:
        """Waits for nothing: threads end after what they are doing, and what is queued is done first."""
        for _ in range(self._count):
            self._queue.put(None)

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            work.join_in()
            # Nothing of a request stays alive while the thread waits for the next.
            del work


class _Work:
    """One `step`, and the threads that are in it. `over` is for the loop thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, step: Step) -> None:
        self.over: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._step = step
        self._lock = threading.Lock()
        self._active = 0
        self._closed = False
        self._told = False
        self._failure: BaseException | None = None

    def join_in(self) -> None:
        """On a thread."""
        with self._lock:
            if self._closed:
                return
            self._active += 1
        try:
            self._step()
        except BaseException as error:  # noqa: BLE001 raised by `run`
            self._failure = self._failure or error
        with self._lock:
            self._active -= 1
            if self._active:
                return
            self._closed = True
        # The loop of a worker that stops does not wait for memory that does not answer.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell)

    def called_off(self) -> "asyncio.Future[None]":
        """Let no other thread begin; what is done when none is at it. After `over` was cancelled."""
        self.over = self._loop.create_future()
        with self._lock:
            idle = not self._active and not self._closed
            self._closed = self._closed or idle
        if idle or self._told:
            self.over.set_result(None)
        return self.over

    def _tell(self) -> None:
        self._told = True
        if self.over.done():
            return
        if self._failure is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(self._failure)
