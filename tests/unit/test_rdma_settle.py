"""Waiting to the end: for every future, through cancellation, with errors seen."""

import asyncio
import gc
from typing import Any

import pytest

from s3verbs.rdma.settle import finished


async def test_it_waits_for_all_whatever_comes_of_them() -> None:
    loop = asyncio.get_running_loop()
    heard: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: heard.append(context))
    futures: list[asyncio.Future[int]] = [loop.create_future() for _ in range(6)]
    futures[0].set_result(1)
    futures[1].set_exception(ValueError())
    futures[2].cancel()
    loop.call_later(0.001, futures[3].set_result, 1)
    loop.call_later(0.002, futures[4].set_exception, ValueError())
    loop.call_later(0.003, futures[5].cancel)
    await finished(futures)
    assert all(future.done() for future in futures)
    await finished(futures)
    await finished([])
    del futures
    gc.collect()
    assert not heard


@pytest.mark.parametrize("times", [1, 3])
async def test_cancellation_is_raised_at_the_end(times: int) -> None:
    futures: list[asyncio.Future[int]] = [asyncio.get_running_loop().create_future() for _ in range(2)]
    waiting = asyncio.create_task(finished(futures))
    for _ in range(times):
        await asyncio.sleep(0)
        waiting.cancel()
    futures[0].set_result(1)
    await asyncio.sleep(0.001)
    assert not waiting.done()
    futures[1].set_result(1)
    with pytest.raises(asyncio.CancelledError):
        await waiting
