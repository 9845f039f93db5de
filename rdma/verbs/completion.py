"""Completions of one device in the event loop: a work request becomes a future."""

import asyncio
import itertools
import logging

from s3verbs.rdma.errors import Failure
from s3verbs.rdma.verbs.api import CompletionQueue
from s3verbs.rdma.verbs.attributes import Completion
from s3verbs.rdma.verbs.constants import CompletionStatus
from s3verbs.rdma.verbs.errors import VerbsError

_log = logging.getLogger(__name__)

_BATCH = 64
_MOST = 1024
"""Completions taken per turn of the loop, so that other work gets its turn."""

_REMOTE = frozenset(
    {CompletionStatus.REM_ACCESS_ERR, CompletionStatus.REM_INV_REQ_ERR, CompletionStatus.REM_OP_ERR},
)


def failure_of(status: CompletionStatus) -> Failure:
    """What a completion other than SUCCESS means to a transfer: the peer's memory refused it, or the connection is
    gone (retries exceeded, flushed, aborted; errors of this side too: a new queue pair may do better)."""
    return Failure.REMOTE_ACCESS if status in _REMOTE else Failure.CONNECTION_LOST


class Completions:
    """Futures for the work requests of all queue pairs of one completion queue. Loop thread only.

    A future's result is its Completion, whatever the status. The waiter must not cancel it: until it is done, the
    device may touch the buffer.
    """

    def __init__(self, queue: CompletionQueue, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = queue
        self._loop = loop
        self._waiting: dict[int, asyncio.Future[Completion]] = {}
        self._numbers = itertools.count(1)
        self._reading = True
        queue.arm()
        loop.add_reader(queue.fileno(), self._ready)

    def begin(self) -> tuple[int, asyncio.Future[Completion]]:
        """The number for a work request about to be posted, and its future."""
        work = next(self._numbers)
        future: asyncio.Future[Completion] = self._loop.create_future()
        self._waiting[work] = future
        return work, future

    def forget(self, work: int) -> None:
        """It was not posted."""
        self._waiting.pop(work, None)

    def flushed(self, work: int) -> None:
        """Its queue pair is destroyed: no completion will come. Without an effect when one came."""
        future = self._waiting.pop(work, None)
        if future is not None and not future.done():
            future.set_result(Completion(work, CompletionStatus.WR_FLUSH_ERR, 0))

    @property
    def outstanding(self) -> int:
        return len(self._waiting)

    def _ready(self) -> None:
        try:
            self._queue.take_event()
            # Armed before the queue is emptied: what arrives after the last poll raises an event.
            self._queue.arm()
            self._drain()
        except VerbsError as error:
            # The device is gone. Transfers run into their timeouts, which destroy the queue pairs.
            _log.error("completion queue failed: %s", error)
            self._stop()

    def _drain(self) -> None:
        for _ in range(_MOST // _BATCH):
            found = self._queue.poll(_BATCH)
            for completion in found:
                future = self._waiting.pop(completion.work, None)
                if future is not None and not future.done():
                    future.set_result(completion)
            if len(found) < _BATCH:
                return
        self._loop.call_soon(self._drain_again)

    def _drain_again(self) -> None:
        if not self._reading:
            return
        try:
            self._drain()
        except VerbsError as error:
            _log.error("completion queue failed: %s", error)
            self._stop()

    def _stop(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._queue.fileno())

    def close(self) -> None:
        """After the last queue pair is closed: no completion is waited for any more."""
        self._stop()
        for work in list(self._waiting):
            self.flushed(work)
        self._queue.close()
