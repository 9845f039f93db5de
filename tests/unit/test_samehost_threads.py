"""Work on the threads that copy: one or several, its errors, and what a cancelled request waits for."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from s3verbs.rdma.samehost.threads import CopyThreads


@pytest.fixture
def threads() -> Iterator[CopyThreads]:
    made = CopyThreads(3)
    yield made
    made.close()


def waiting(event: threading.Event) -> Callable[[], None]:
    """A step that takes until the event."""

    def step() -> None:
        assert event.wait(20)

    return step


async def test_a_step_runs_on_another_thread(threads: CopyThreads) -> None:
    ran: list[int] = []
    await threads.run(lambda: ran.append(threading.get_ident()))
    assert len(ran) == 1
    assert ran[0] != threading.get_ident()


async def test_several_threads_take_part(threads: CopyThreads) -> None:
    together = threading.Barrier(3, timeout=20)

    def step() -> None:
        together.wait()

    await threads.run(step, threads=3)


async def test_its_end_is_that_of_the_last_thread(threads: CopyThreads) -> None:
    together = threading.Barrier(2, timeout=20)
    go = threading.Event()
    turns = iter([True, False])
    left: list[bool] = []

    def step() -> None:
        first = next(turns)
        together.wait()
        if first:
            assert go.wait(20)
        left.append(first)

    running = asyncio.ensure_future(threads.run(step, threads=2))
    while not left:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert not running.done()
    go.set()
    await running
    assert left == [False, True]


async def test_nobody_is_waited_for_who_has_not_begun(threads: CopyThreads) -> None:
    hold = threading.Event()
    busy = [asyncio.ensure_future(threads.run(waiting(hold))) for _ in range(2)]
    await asyncio.sleep(0.05)
    ran: list[int] = []
    await asyncio.wait_for(threads.run(lambda: ran.append(1), threads=3), 20)
    hold.set()
    await asyncio.gather(*busy)
    await threads.run(lambda: None)
    # The one thread that was free may have begun twice before the first call was over, but nobody begins later.
    count = len(ran)
    await asyncio.sleep(0.05)
    assert len(ran) == count


async def test_an_error_is_raised(threads: CopyThreads) -> None:
    def step() -> None:
        raise EOFError("short")

    for count in (1, 3):
        with pytest.raises(EOFError, match="short"):
            await threads.run(step, threads=count)
    await threads.run(lambda: None)


async def test_a_cancelled_call_waits_for_what_has_begun(threads: CopyThreads) -> None:
    begun, go = threading.Event(), threading.Event()
    stopped: list[bool] = []

    def step() -> None:
        begun.set()
        assert go.wait(20)

    running = asyncio.ensure_future(threads.run(step, stop=lambda: stopped.append(True)))
    while not begun.is_set():
        await asyncio.sleep(0.01)
    for _ in range(2):
        running.cancel()
        await asyncio.sleep(0.05)
        assert not running.done()
    assert stopped == [True]
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_cancelled_call_that_has_not_begun_never_does(threads: CopyThreads) -> None:
    hold = threading.Event()
    busy = [asyncio.ensure_future(threads.run(waiting(hold))) for _ in range(3)]
    await asyncio.sleep(0.05)
    ran: list[int] = []
    running = asyncio.ensure_future(threads.run(lambda: ran.append(1)))
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 20)
    hold.set()
    await asyncio.gather(*busy)
    await threads.run(lambda: None)
    assert not ran


async def test_a_call_that_is_cancelled_as_it_ends(threads: CopyThreads) -> None:
    over = threading.Event()
    for fails in (False, True):
        over.clear()

        def step(fails: bool = fails) -> None:
            over.set()
            if fails:
                raise EOFError

        running = asyncio.ensure_future(threads.run(step))
        await asyncio.sleep(0)
        # The loop does not hear of the end before this returns.
        assert over.wait(20)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 20)


async def test_nothing_of_it_stays_alive(threads: CopyThreads) -> None:
    class Buffer:
        def fill(self) -> None:
            pass

    buffer = Buffer()
    gone = weakref.ref(buffer)
    await threads.run(buffer.fill)
    del buffer
    for _ in range(100):
        gc.collect()
        if gone() is None:
            break
        await asyncio.sleep(0.01)
    assert gone() is None


async def test_closing_lets_the_threads_end() -> None:
    before = threading.active_count()
    threads = CopyThreads(5)
    await threads.run(lambda: None)
    threads.close()
    for _ in range(200):
        if threading.active_count() <= before:
            break
        await asyncio.sleep(0.01)
    assert threading.active_count() <= before
