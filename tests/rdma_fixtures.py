"""Transfers over the loopback fabric, as a request makes them, and a watch over what they leave behind."""

import asyncio
import random
from collections.abc import AsyncIterator, Hashable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s3verbs.rdma.fabric import CHUNK
from s3verbs.rdma.loopback import LoopbackFabric, LoopbackFaults, LoopbackMemory
from s3verbs.rdma.sink import StagedSink
from s3verbs.rdma.source import RdmaSource
from s3verbs.rdma.staging import StagingArena, StagingPool
from s3verbs.rdma.token import Token

PATIENT = 60.0


def noise(length: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(length)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Run:
    """[offset, offset + length) of an open file."""

    fd: int
    offset: int
    length: int


class Lane:
    """What a worker needs to serve RDMA requests: a pool, a fabric, threads. The executor stays the caller's."""

    def __init__(
        self, buffers: int, executor: Executor | None = None, *, seed: int | None = None, patience: float = PATIENT
    ) -> None:
        arena = StagingArena(buffers * CHUNK)
        self.pool = StagingPool(arena, patience=patience)
        self.memory = LoopbackMemory()
        self.faults = LoopbackFaults()
        self.fabric = LoopbackFabric(self.memory, faults=self.faults, arena=arena, seed=seed)
        self.executor = executor or NO_THREADS

    async def pull(self, token: Token, *, depth: int = 4, pause: int = 0, peer: Hashable = None) -> bytes:
        """A PUT: all of the client's buffer. `pause` turns of the loop pass before a chunk is given back."""
        region = await self.fabric.open(token)
        try:
            source = RdmaSource(region, token.size, self.pool, depth=depth, peer=peer)
            try:
                got = bytearray()
                while (chunk := await source.next()) is not None:
                    try:
                        await turns(pause)
                        got += chunk.view
                    finally:
                        chunk.release()
                return bytes(got)
            finally:
                await source.close()
        finally:
            await region.close()

    async def push(
        self, token: Token, parts: Sequence[bytes | Run], *, depth: int = 4, peer: Hashable = None
    ) -> StagedSink:
        """A GET: bytes and runs of files into the client's buffer."""
        region = await self.fabric.open(token)
        try:
            sink = StagedSink(region, self.pool, self.executor, depth=depth, peer=peer)
            try:
                await sink.start(b"HTTP/1.1 200 OK\r\n\r\n")
                for part in parts:
                    if isinstance(part, bytes):
                        await sink.send(part)
                    else:
                        await sink.send_file(part.fd, part.offset, part.length)
                await sink.finish()
                return sink
            finally:
                await sink.close()
        finally:
            await region.close()

    def check(self) -> None:
        self.fabric.check()
        assert (self.pool.idle, self.pool.waiting) == (self.pool.total, 0)


NO_THREADS = ThreadPoolExecutor(1)
"""For transfers that read no file: its thread never starts."""


def descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


@asynccontextmanager
async def nothing_left(lane: Lane) -> AsyncIterator[None]:
    """Afterwards every buffer, region, descriptor and task is back, and nothing was told to the loop's handler."""
    loop = asyncio.get_running_loop()
    heard: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: heard.append(context))
    tasks, before = asyncio.all_tasks(), descriptors()
    yield
    lane.check()
    assert asyncio.all_tasks() <= tasks
    assert descriptors() == before
    await turns(3)
    lane.check()
    assert not heard
