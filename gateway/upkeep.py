"""What the store needs now and then: payloads waiting to be reclaimed, and uploads that nobody finishes.

Runs in one worker of a host, one step at a time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from s3verbs.storage.objects import ObjectStore

log = logging.getLogger("s3verbs")

RECLAIM_SECONDS = 60.0
STALE_SECONDS = 3600.0

_DAY_NS = 86_400 * 1_000_000_000


class Upkeep:
    """Both loops; `start` and `stop` on the loop thread. `stale_days` 0 keeps unfinished uploads for ever."""

    def __init__(self, objects: ObjectStore, *, stale_days: float) -> None:
        self._objects = objects
        self._stale_ns = int(stale_days * _DAY_NS)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks.append(asyncio.create_task(self._every(RECLAIM_SECONDS, self._reclaim)))
        if self._stale_ns:
            self._tasks.append(asyncio.create_task(self._every(STALE_SECONDS, self._abort_stale_uploads)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _every(self, seconds: float, step: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await step()
            except Exception:
                log.exception("upkeep: %s failed; it is tried again in %g s", getattr(step, "__name__", step), seconds)
            await asyncio.sleep(seconds)

    async def _reclaim(self) -> None:
        await self._objects.reclaim()

    async def _abort_stale_uploads(self) -> None:
        aborted = await self._objects.abort_stale_uploads(self._stale_ns)
        if aborted:
            log.info("upkeep: %d unfinished multipart uploads were aborted", aborted)
