"""One timer for the deadlines of all requests of a worker, so that waiting costs a request no timer of its own."""

import asyncio

from s3verbs.gateway.http.exchange import Exchange, Wait

INTERVAL = 0.25
"""Seconds between looks, and so how much later than its deadline an exchange may be stopped."""


class Watchdog:
    """Cancels the task of an exchange that is past its deadline, and notes in `expired` what it waited for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.exchanges: set[Exchange] = set()
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = self._loop.call_later(INTERVAL, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = self._loop.call_later(INTERVAL, self._look)
        now = self._loop.time()
        for exchange in self.exchanges:
            if exchange.deadline and now > exchange.deadline and exchange.expired is Wait.NOTHING:
                exchange.expired = exchange.wait
                exchange.deadline = 0.0
                if exchange.task is not None:
                    exchange.task.cancel()
