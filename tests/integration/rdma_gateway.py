"""A whole gateway in this process over the loopback fabric: real HTTP, real signatures, a real store on disk, and a
client's memory that fails on demand."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from s3verbs.gateway import app
from s3verbs.gateway.config import Settings
from s3verbs.gateway.http.connection import Listener
from s3verbs.gateway.lifecycle import Lifecycle
from s3verbs.gateway.rdma_lane import Lanes, Route
from s3verbs.rdma.admission import peer_of
from s3verbs.rdma.fabric import CHUNK, RemoteRegion
from s3verbs.rdma.loopback import LoopbackFabric, LoopbackFaults, LoopbackMemory
from s3verbs.rdma.sink import StagedSink
from s3verbs.rdma.staging import StagingArena, StagingPool
from s3verbs.rdma.token import Token, Transport
from s3verbs.storage.check import check_store
from s3verbs.storage.model import Durability
from s3verbs.storage.opening import open_store
from tests.integration.endpoint import ACCESS_KEY, BUCKET, SECRET_KEY, Response, Wire

RELAXED = "relaxed-bucket"
GUARD = 4096


class Memory:
    """A client's buffer between two guards, exposed to the fabric."""

    def __init__(self, memory: LoopbackMemory, data: bytes, transport: Transport = Transport.RC) -> None:
        self._whole = bytearray(b"\xa5" * GUARD + data + b"\xa5" * GUARD)
        self._size = len(data)
        self.token = memory.expose(memoryview(self._whole)[GUARD : GUARD + len(data)], transport=transport)

    @property
    def bytes(self) -> bytes:
        """What is in the buffer; the guards are checked."""
        assert self._whole[:GUARD] == self._whole[GUARD + self._size :] == b"\xa5" * GUARD
        return bytes(self._whole[GUARD : GUARD + self._size])


class RdmaGateway:
    """Start it, use it, stop it; `stop` checks that nothing leaked and that the store is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.access_log = path / "access.log"
        self.memory = LoopbackMemory()
        self.faults = LoopbackFaults()

    async def start(
        self,
        *,
        transports: Iterable[Transport] = Transport,
        buffers: int = 8,
        patience: float = 5.0,
        transfer_timeout: float = 5.0,
        seed: int | None = None,
    ) -> "RdmaGateway":
        loop = asyncio.get_running_loop()
        settings = Settings(
            data=(self.path / "data",),
            workers=1,
            access_log=str(self.access_log),
            root_access_key=ACCESS_KEY,
            root_secret_key=SECRET_KEY,
        )
        self.store = open_store(settings.data, map_bytes=1 << 24, reserve_bytes=1 << 16)
        for name, durability in ((BUCKET, Durability.STRICT), (RELAXED, Durability.RELAXED)):
            await self.store.objects.create_bucket(name, owner="root", durability=durability)
        executor = ThreadPoolExecutor(4)
        arena = StagingArena(buffers * CHUNK)
        self.pool = StagingPool(arena, patience=patience)
        self.fabric = LoopbackFabric(self.memory, transports=transports, faults=self.faults, arena=arena, seed=seed)

        def sink(region: RemoteRegion, token: Token) -> StagedSink:
            return StagedSink(region, self.pool, executor, peer=peer_of(token))

        routes = {transport: Route(self.fabric, sink) for transport in transports}
        self.lanes = Lanes(routes, self.pool, transfer_timeout=transfer_timeout, off="" if routes else "no device here")
        self.gateway = app.wire(settings, self.store, loop, executor, self.lanes)
        lifecycle: Lifecycle = self.gateway.lifecycle
        self.listener = Listener(lifecycle.handle, limits=self.gateway.limits, refuse=lifecycle.refuse, loop=loop)
        self._server = await loop.create_server(self.listener, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._descriptors = len(list(Path("/proc/self/fd").iterdir()))
        return self

    def expose(self, data: bytes, transport: Transport = Transport.RC) -> Memory:
        return Memory(self.memory, data, transport)

    async def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> Response:
        """Signed; on a connection of its own."""
        return await self.wire(lambda wire: wire.request(method, path, body, **headers))

    async def wire(self, use: Callable[[Wire], Response]) -> Response:
        def talk() -> Response:
            with Wire(socket.create_connection(("127.0.0.1", self.port), timeout=30), self.port) as wire:
                return use(wire)

        return await asyncio.to_thread(talk)

    async def put(self, key: str, memory: Memory, bucket: str = BUCKET, **headers: str) -> Response:
        return await self.request("PUT", f"/{bucket}/{key}", x_amz_rdma_token=str(memory.token), **headers)

    async def get(self, key: str, memory: Memory, bucket: str = BUCKET, **headers: str) -> Response:
        return await self.request("GET", f"/{bucket}/{key}", x_amz_rdma_token=str(memory.token), **headers)

    async def stored(self, key: str, bucket: str = BUCKET) -> bytes | None:
        """The object over plain HTTP; None when there is none."""
        response = await self.request("GET", f"/{bucket}/{key}")
        return response.body if response.status == 200 else None

    async def logged(self) -> list[dict[str, Any]]:
        """The lines of the access log so far."""
        await self.request("HEAD", f"/{BUCKET}/last-line-of-the-log")
        for _ in range(2000):
            lines = [json.loads(line) for line in self.access_log.read_text().splitlines()]
            if lines and lines[-1]["key"] == "last-line-of-the-log":
                return lines[:-1]
            await asyncio.sleep(0.005)
        raise AssertionError("the log is not written")

    async def settle(self) -> None:
        """Until no request is in progress."""
        for _ in range(2000):
            if not self.gateway.watchdog.exchanges:
                return
            await asyncio.sleep(0.005)
        raise AssertionError("a request does not end")

    async def stop(self) -> None:
        self._server.close()
        await self.listener.drain(2)
        await self.settle()
        assert self.pool.idle == self.pool.total, "a staging buffer leaked"
        assert self.pool.waiting == 0
        self.fabric.check()
        assert len(list(Path("/proc/self/fd").iterdir())) <= self._descriptors, "a descriptor leaked"
        await self.gateway.close()
        store = open_store((self.path / "data",), map_bytes=1 << 24, reserve_bytes=1 << 16)
        report = check_store(store, read_payloads=True, repair=False)
        store.close()
        assert report.clean, report.findings
