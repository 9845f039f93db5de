"""What the store needs now and then: payloads waiting to be reclaimed, orphans of dead processes, and uploads that
nobody finishes. Runs in one worker of a host.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable

from s3verbs.gateway.storing import settle
from s3verbs.storage.opening import Store
from s3verbs.storage.sweep import sweep_orphans

log = logging.getLogger("s3verbs")

RECLAIM_SECONDS = 60.0
STALE_SECONDS = 3600.0
SWEEP_SECONDS = 86_400.0

_DAY_NS = 86_400 * 1_000_000_000


class Upkeep:
    """The loops; `start` and `stop` on the loop thread. `stale_days` 0 keeps unfinished uploads for ever."""

    def __init__(self, store: Store, *, stale_days: float, clock: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock
        self._stop_sweep = threading.Event()
        self._stale_ns = int(stale_days * _DAY_NS)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks.append(asyncio.create_task(self._every(RECLAIM_SECONDS, self._reclaim)))
        if self._stale_ns:
            self._tasks.append(asyncio.create_task(self._every(STALE_SECONDS, self._abort_stale_uploads)))
        self._tasks.append(asyncio.create_task(self._every(SWEEP_SECONDS, self._sweep)))

    async def stop(self) -> None:
        self._stop_sweep.set()
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
        await self._store.objects.reclaim()

    async def _abort_stale_uploads(self) -> None:
        aborted = await self._store.objects.abort_stale_uploads(self._stale_ns)
        if aborted:
            log.info("upkeep: %d unfinished multipart uploads were aborted", aborted)

    async def _sweep(self) -> None:
        store = self._store
        sweeping = asyncio.get_running_loop().run_in_executor(
            None,
            lambda: sweep_orphans(
                store.metadata, store.payloads, now_ns=self._clock(), lock=store.sweep_lock, stop=self._stop_sweep
            ),
        )
        swept = await settle(sweeping)
        if swept.unlinked or swept.unsealed:
            log.info(
                "upkeep: %d orphaned payload files (%d bytes) and %d unsealed ones were removed",
                swept.unlinked,
                swept.freed_bytes,
                swept.unsealed,
            )
