"""Every step of a transfer fails in every way, and is cancelled at any moment: no buffer, region, descriptor or task
is left, and what did move is right."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from s3verbs.rdma.errors import Decline, Declined, Failure, PeerUnreachable, RdmaError, RemoteAccess
from s3verbs.rdma.fabric import CHUNK
from s3verbs.rdma.file_reads import FileReads
from s3verbs.rdma.loopback import Fault, Step
from tests.rdma_fixtures import Lane, Run, noise, nothing_left, turns

Subject = Literal["source", "memory", "cached file", "file"]

SUBJECTS: tuple[Subject, ...] = ("source", "memory", "cached file", "file")
DATA = noise(4 * CHUNK + 777)
OFFSET = 5000
"""Of the payload in the file: the first piece begins off an aligned offset."""

ERRORS: dict[str, Callable[[], Exception]] = {
    "remote access": RemoteAccess,
    "unreachable": lambda: PeerUnreachable(Failure.CONNECTION_LOST),
    "not permitted": lambda: Declined(Decline.NOT_PERMITTED),
    "a bug": ZeroDivisionError,
}
FAULTS: dict[str, Fault] = {
    **{name: Fault(error) for name, error in ERRORS.items()},
    "late error": Fault(RemoteAccess, delay=0.002),
    "delay": Fault(delay=0.002),
    "hang": Fault(hang=True),
    "hang, slow to flush": Fault(hang=True, flush=0.003),
}


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as made:
        barrier = threading.Barrier(4)
        jobs = [made.submit(barrier.wait) for _ in range(3)]
        barrier.wait()
        for job in jobs:
            job.result()
        yield made


@pytest.fixture(scope="module")
def fd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path = tmp_path_factory.mktemp("faults") / "payload"
    path.write_bytes(bytes(OFFSET) + DATA)
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


class Transfer:
    """One transfer of DATA over a lane of its own."""

    def __init__(self, subject: Subject, buffers: int, executor: ThreadPoolExecutor, fd: int, seed: int = 0) -> None:
        self.subject = subject
        self.lane = Lane(buffers, executor, seed=seed)
        self.memory = bytearray(DATA if subject == "source" else len(DATA))
        self._token = self.lane.memory.expose(self.memory)
        self._fd = fd

    def run(self) -> Coroutine[Any, Any, None]:
        return self._pull() if self.subject == "source" else self._push()

    async def _pull(self) -> None:
        assert await self.lane.pull(self._token) == DATA

    async def _push(self) -> None:
        if self.subject == "memory":
            parts: list[bytes | Run] = [DATA[: CHUNK + 5], DATA[CHUNK + 5 :]]
        else:
            # Three payload files of a multipart object.
            cuts = (0, 10, 2 * CHUNK + 10, len(DATA))
            parts = [Run(self._fd, OFFSET + begin, end - begin) for begin, end in pairwise(cuts)]
        sink = await self.lane.push(self._token, parts)
        assert sink.moved == len(DATA)
        assert self.memory == DATA


def cache_of(subject: Subject, patch: pytest.MonkeyPatch) -> None:
    if subject == "file":
        patch.setattr(FileReads, "cached", lambda self, into, offset, begin, end: 0)


async def clean_run(subject: Subject, buffers: int, executor: ThreadPoolExecutor, fd: int) -> list[Step]:
    transfer = Transfer(subject, buffers, executor, fd)
    async with nothing_left(transfer.lane):
        await transfer.run()
    return transfer.lane.faults.passed


@pytest.mark.parametrize("buffers", [1, 3])
@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_each_step_fails_in_each_way(
    subject: Subject,
    buffers: int,
    fault: Fault,
    executor: ThreadPoolExecutor,
    fd: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache_of(subject, monkeypatch)
    passed = await clean_run(subject, buffers, executor, fd)
    steps = [(step, passed[:at].count(step)) for at, step in enumerate(passed)]
    assert len(steps) >= 7
    for step, number in steps:
        if step == "close" and (fault.hang or fault.error):
            continue
        transfer = Transfer(subject, buffers, executor, fd, seed=number)
        transfer.lane.faults.add(step, number, fault)
        async with nothing_left(transfer.lane):
            running = asyncio.create_task(transfer.run())
            if fault.hang:
                await asyncio.wait({running}, timeout=0.03)
                assert not running.done()
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
            elif fault.error is not None:
                with pytest.raises(type(fault.error())):
                    await running
            else:
                await running
        assert transfer.lane.fabric.open_regions == 0


class Disturbed(ThreadPoolExecutor):
    """An executor that fails at the n-th job: refuses it, or lets it raise."""

    def __init__(self, number: int, error: Exception, *, refuse: bool) -> None:
        super().__init__(3)
        self.left = number
        self._error = error
        self._refuse = refuse

    def submit(self, job: Callable[..., Any], /, *arguments: Any, **options: Any) -> "Future[Any]":
        self.left -= 1
        if self.left != -1:
            return super().submit(job, *arguments, **options)
        if self._refuse:
            raise self._error
        return super().submit(self._fail)

    def _fail(self) -> None:
        raise self._error


@pytest.mark.parametrize("buffers", [1, 3])
@pytest.mark.parametrize(
    ("error", "refuse"),
    [(OSError(5, "Input/output error"), False), (EOFError("short"), False), (RuntimeError("shutdown"), True)],
)
async def test_each_file_read_fails(
    buffers: int, error: Exception, refuse: bool, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_of("file", monkeypatch)
    with Disturbed(1000, error, refuse=refuse) as executor:
        await clean_run("file", buffers, executor, fd)
        reads = 1000 - executor.left
    assert reads == 7
    for number in range(reads):
        with Disturbed(number, error, refuse=refuse) as executor:
            transfer = Transfer("file", buffers, executor, fd, seed=number)
            async with nothing_left(transfer.lane):
                with pytest.raises(type(error)):
                    await transfer.run()
            assert executor.left < 0


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    subject=st.sampled_from(SUBJECTS),
    buffers=st.integers(1, 5),
    seed=st.integers(0, 1 << 16),
    faults=st.lists(
        st.tuples(st.sampled_from(["open", "read", "write"]), st.integers(0, 6), st.sampled_from([*FAULTS.values()])),
        max_size=3,
    ),
    cancels=st.lists(st.integers(0, 60), max_size=3),
)
def test_any_faults_together_and_cancellation_at_any_moment(
    executor: ThreadPoolExecutor,
    fd: int,
    subject: Subject,
    buffers: int,
    seed: int,
    faults: list[tuple[Step, int, Fault]],
    cancels: list[int],
) -> None:
    async def run() -> None:
        transfer = Transfer(subject, buffers, executor, fd, seed)
        for step, number, fault in faults:
            transfer.lane.faults.add(step, number, fault)
        async with nothing_left(transfer.lane):
            running = asyncio.create_task(transfer.run())
            for pause in cancels:
                await turns(pause)
                running.cancel()
            if not cancels and any(fault.hang for _, _, fault in faults):
                await asyncio.wait({running}, timeout=0.03)
                running.cancel()
            await asyncio.wait({running}, timeout=10)
            assert running.done()
            # Cancelled, or what the faults say; assertions are neither.
            if not running.cancelled():
                error = running.exception()
                assert error is None or isinstance(error, RdmaError | ZeroDivisionError)

    with pytest.MonkeyPatch.context() as patch:
        cache_of(subject, patch)
        asyncio.run(run())


async def test_one_dead_peer_does_not_stop_the_others(
    executor: ThreadPoolExecutor, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transfers hang with all that they may hold, more of them wait; another peer's go on."""
    lane = Lane(6, executor)
    for number in range(3):
        lane.faults.add("write", number, Fault(hang=True))
    async with nothing_left(lane):
        dead = [
            asyncio.create_task(lane.push(lane.memory.expose(bytearray(len(DATA))), [DATA], peer="dead"))
            for _ in range(5)
        ]
        await turns(20)
        assert lane.pool.idle == 3
        assert lane.pool.waiting == 2 or lane.pool.waiting == 4
        for _ in range(3):
            memory = bytearray(len(DATA))
            await lane.push(lane.memory.expose(memory), [Run(fd, OFFSET, len(DATA))], peer="alive")
            assert memory == DATA
        for each in dead:
            each.cancel()
        await asyncio.wait(dead)


def test_the_file_of_these_tests_is_what_it_should_be(fd: int) -> None:
    assert os.pread(fd, len(DATA), OFFSET) == DATA
    assert Path(f"/proc/self/fd/{fd}").stat().st_size == OFFSET + len(DATA)
