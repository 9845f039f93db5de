"""How long a client may keep an exchange waiting."""

from types import SimpleNamespace
from typing import Any

import pytest

from s3verbs.gateway.http.exchange import SLOWEST, Exchange, Wait

SECONDS = 10.0


class Clock:
    now = 100.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def exchange(clock: Clock) -> Exchange:
    connection = SimpleNamespace(remote="", secure=False)
    request: Any = SimpleNamespace(
        protocol=connection, transport=object(), content=None, method="PUT", version=(1, 1), keep_alive=True
    )
    return Exchange(request, "0", clock)  # type: ignore[arg-type]


def wait(exchange: Exchange, clock: Clock, seconds: float, kind: Wait = Wait.REQUEST_BODY) -> float:
    """Wait so long for the client; what was left of its time when it began."""
    exchange.allow(kind, SECONDS)
    left = exchange.deadline - clock.now
    clock.now += seconds
    exchange.arrived()
    return left


def test_waits_without_progress_add_up(exchange: Exchange, clock: Clock) -> None:
    lefts = []
    for _ in range(4):
        lefts.append(wait(exchange, clock, 2.0))
        exchange.bytes_in += 1
    assert lefts == [10.0, 8.0, 6.0, 4.0]


def test_enough_bytes_give_the_whole_time_again(exchange: Exchange, clock: Clock) -> None:
    wait(exchange, clock, 9.0)
    exchange.bytes_in += int(SLOWEST * SECONDS) - 1
    assert wait(exchange, clock, 0.5) == 1.0
    exchange.bytes_in += 1
    assert wait(exchange, clock, 0.5) == SECONDS


def test_time_that_the_server_takes_is_not_the_clients(exchange: Exchange, clock: Clock) -> None:
    wait(exchange, clock, 1.0)
    clock.now += 1000.0
    assert wait(exchange, clock, 1.0) == 9.0


def test_bytes_in_either_direction_count(exchange: Exchange, clock: Clock) -> None:
    wait(exchange, clock, 5.0, Wait.CLIENT_READ)
    exchange.bytes_out += int(SLOWEST * SECONDS)
    assert wait(exchange, clock, 5.0, Wait.CLIENT_READ) == SECONDS


def test_each_kind_of_wait_has_its_own_time(exchange: Exchange, clock: Clock) -> None:
    wait(exchange, clock, 9.0, Wait.REQUEST_BODY)
    assert wait(exchange, clock, 1.0, Wait.CLIENT_READ) == SECONDS


def test_nothing_is_due_when_nothing_is_awaited(exchange: Exchange, clock: Clock) -> None:
    assert exchange.deadline == 0.0
    wait(exchange, clock, 1.0)
    assert exchange.deadline == 0.0
