"""An RDMA device that this process uses: what RC and DC queue pairs of all its ports share."""

import asyncio
import contextlib
import logging

from s3verbs.rdma.fabric import Arena
from s3verbs.rdma.verbs.api import CompletionQueue, Context, ProtectionDomain
from s3verbs.rdma.verbs.attributes import DeviceLimits, PortState
from s3verbs.rdma.verbs.completion import Completions
from s3verbs.rdma.verbs.errors import VerbsError, VerbsUnavailable
from s3verbs.rdma.verbs.memory import RegisteredArena

_log = logging.getLogger(__name__)

DEPTH = 32
"""Work requests that one queue pair may have posted: 32 MiB in flight to one client process."""


class OpenedDevice:
    """Context, protection domain, completion queue, and the arena's memory region. Loop thread only, but for
    `context`, `domain` and `queue`, with which other threads may make queue pairs.

    The completion queue has DEPTH entries for each of `room` queue pairs: whoever makes one calls `take` before and
    `give` after it is destroyed.
    """

    def __init__(self, name: str, queue_pairs: int, arena: Arena, loop: asyncio.AbstractEventLoop) -> None:
        """`queue_pairs`: how many are wanted; the device may allow fewer. Raises VerbsUnavailable."""
        self.name = name
        with contextlib.ExitStack() as undo:
            try:
                self.context = Context(name)
                undo.callback(self.context.close)
                self.limits: DeviceLimits = self.context.limits()
                self.room = min(queue_pairs, self.limits.queue_pairs, self.limits.completion_entries // DEPTH)
                if self.room < 1 or self.limits.work_requests < DEPTH:
                    raise VerbsUnavailable(f"{name} has too few resources: {self.limits}")
                self.domain = ProtectionDomain(self.context)
                undo.callback(self.domain.close)
                self.arena = RegisteredArena(self.domain, arena)
                undo.callback(self.arena.close)
                self.queue = CompletionQueue(self.context, self.room * DEPTH)
                self.completions = Completions(self.queue, loop)
            except VerbsError as error:
                raise VerbsUnavailable(f"{name} could not be opened: {error}") from error
            undo.pop_all()

    def take(self) -> bool:
        """Room for one more queue pair; False when there is none."""
        if self.room < 1:
            return False
        self.room -= 1
        return True

    def give(self) -> None:
        self.room += 1

    def port(self, number: int) -> PortState:
        return self.context.port(number)

    def close(self) -> None:
        """After the last queue pair is destroyed. Never raises."""
        for part in (self.arena, self.domain, self.completions, self.context):
            try:
                part.close()
            except VerbsError as error:
                _log.warning("%s: %s", self.name, error)
