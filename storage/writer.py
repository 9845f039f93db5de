"""Group commit: the changes that wait while one commit is under way share the next one.

One writer thread per process takes what is queued, up to `MAX_GROUP` changes, has it committed together, and wakes the
awaiting tasks of each event loop with one call. It never waits for a group to fill: with one writer a group is one
change, and the longer a commit takes, the more changes share the next. A group is closed only when it is this process's
turn to commit: what arrives while another process commits is in it.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from queue import Empty, SimpleQueue
from typing import Any

from s3verbs.storage.errors import StorageError
from s3verbs.storage.metadata import WriteTransaction

MAX_GROUP = 256


class Change:
    """A change and what came of it: after its commit either `error` is set or `result` is what it returned."""

    __slots__ = ("error", "frees_space", "function", "future", "loop", "result")

    def __init__(
        self,
        function: Callable[[WriteTransaction], Any],
        frees_space: bool,
        future: "asyncio.Future[Any] | None" = None,
    ) -> None:
        self.function = function
        self.frees_space = frees_space
        self.future = future
        self.loop = future.get_loop() if future is not None else None
        self.result: Any = None
        self.error: BaseException | None = None


class GroupCommitter:
    """The writer thread and its queue.

    `commit` settles every change that it is given; it runs on the writer thread, and so do the changes. When it raises,
    which it should not, all of its changes fail with that. The thread is started by the first change.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Change]], None],
        turn: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`turn` is entered for each group, before it is closed, until it is committed."""
        self._commit = commit
        self._turn = turn
        self._queue: SimpleQueue[Change | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def run(self, function: Callable[[WriteTransaction], Any], *, frees_space: bool = False) -> Any:
        """The result of `function` after its commit, or its exception. Cancelling leaves the change in the queue."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._submit(Change(function, frees_space, future))
        return await future

    def close(self) -> None:
        """Returns when all queued changes are settled. Later ones raise StorageError. May be called again."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
            thread = self._thread
        if thread is not None:
            thread.join()

    def _submit(self, change: Change) -> None:
        with self._lock:
            if self._closed:
                raise StorageError("the metadata store is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="metadata-writer", daemon=True)
                self._thread.start()
            self._queue.put(change)

    def _work(self) -> None:
        last = False
        while not last:
            first = self._queue.get()
            if first is None:
                return
            with self._turn():
                group, last = self._take(first)
                try:
                    self._commit(group)
                except BaseException as failure:  # noqa: BLE001  The thread outlives whatever is raised.
                    for change in group:
                        change.error = failure
            _wake(group)

    def _take(self, first: Change) -> tuple[list[Change], bool]:
        """`first` and all that are queued behind it, and whether the queue has ended."""
        group: list[Change] = []
        item: Change | None = first
        while item is not None:
            group.append(item)
            if len(group) == MAX_GROUP:
                return group, False
            try:
                item = self._queue.get_nowait()
            except Empty:
                return group, False
        return group, True


def _wake(group: list[Change]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[Change]] = {}
    for change in group:
        if change.loop is not None:
            by_loop.setdefault(change.loop, []).append(change)
    for loop, settled in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, settled)
        except RuntimeError:
            # The loop is closed: nobody waits any more, and the changes are committed all the same.
            continue


def _settle(group: list[Change]) -> None:
    for change in group:
        future = change.future
        if future is None or future.done():
            continue
        if change.error is None:
            future.set_result(change.result)
        elif isinstance(change.error, StopIteration):
            future.set_exception(RuntimeError(f"a change raised {change.error!r}"))
        else:
            future.set_exception(change.error)
