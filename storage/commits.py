"""Commits of the object store: what happens to payloads when a change has ended, however its caller fares."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from s3verbs.storage.epochs import NotDurable
from s3verbs.storage.metadata import MetadataStore, WriteTransaction
from s3verbs.storage.model import FilePayload, Part, Payload
from s3verbs.storage.publishing import Released
from s3verbs.storage.reclaim import Reclaimer

T = TypeVar("T")
Outcome = tuple[T, list[Released]]
"""What a change returns: its result, and the RECLAIM rows it wrote."""


class Commits:
    """Runs changes of one process. A change runs in a task of its own, so a caller that is cancelled cannot tear the
    decision about a payload from the commit that decides it."""

    def __init__(
        self, metadata: MetadataStore, reclaimer: Reclaimer, make_durable: Callable[[Sequence[Part]], None]
    ) -> None:
        """`make_durable` puts the payloads of parts on stable storage; it blocks."""
        self._metadata = metadata
        self._make_durable = make_durable
        self._reclaimer = reclaimer
        self._running: set[asyncio.Task[Any]] = set()

    async def commit(
        self,
        change: Callable[[WriteTransaction], Outcome[T]],
        *,
        owned: Payload | None = None,
        frees_space: bool = False,
    ) -> T:
        """Commit `change` and reclaim in the background what it released. `owned` is the payload that it publishes:
        when it fails, the payload's file is discarded, also when the caller has gone by then. `frees_space` as in
        MetadataStore.write."""
        task = asyncio.get_running_loop().create_task(self._run(change, frees_space))
        self._running.add(task)
        task.add_done_callback(partial(self._ended, owned if isinstance(owned, FilePayload) else None))
        result, _ = await asyncio.shield(task)
        return result

    async def _run(self, change: Callable[[WriteTransaction], Outcome[T]], frees_space: bool) -> Outcome[T]:
        while True:
            try:
                return await self._metadata.write(change, frees_space=frees_space)
            except NotDurable as failure:
                parts, synced = failure.parts, failure.synced
            await asyncio.to_thread(self._make_durable, parts)
            synced.update(part.payload.id for part in parts)

    def _ended(self, owned: FilePayload | None, task: "asyncio.Task[Outcome[Any]]") -> None:
        self._running.discard(task)
        if task.cancelled():
            # The loop is being torn down and the change may yet be committed: an orphan is left to the sweep.
            return
        if task.exception() is None:
            _, released = task.result()
            if released:
                self._reclaimer.released(released)
        elif owned is not None:
            self._reclaimer.discard((owned,))

    async def settle(self) -> None:
        """Wait until every change that was begun has ended."""
        while self._running:
            await asyncio.wait(list(self._running))
