"""RC under everything that can go wrong, at random: no buffer is given back while a device has it, nothing leaks."""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address, ip_network

import pytest

from s3verbs.rdma.errors import Declined, Failure, TransferFailed
from s3verbs.rdma.fabric import CHUNK
from s3verbs.rdma.token import Token, Transport
from s3verbs.rdma.verbs import rc
from s3verbs.rdma.verbs.connections import ConnectionCache, Key
from s3verbs.rdma.verbs.constants import CompletionStatus
from s3verbs.rdma.verbs.device import Rail, gid_of
from s3verbs.rdma.verbs.dialing import Dialer
from s3verbs.rdma.verbs.errors import ConnectFailed, VerbsError
from s3verbs.rdma.verbs.rails import Rails
from s3verbs.rdma.verbs.rc_link import Route
from s3verbs.rdma.verbs.region import RcRegion
from tests.fake_rc import FakeDevice, FakeLink, Memory, MemoryBuffer

ROOM = 12
PEER = ip_address("10.1.0.9")


class Chaos:
    def __init__(self, seed: int) -> None:
        loop = asyncio.get_running_loop()
        self.random = random.Random(seed)
        self.loop = loop
        self.devices = {name: FakeDevice(loop, name, ROOM) for name in "ab"}
        self.executor = ThreadPoolExecutor(4)
        rails = [
            Rail(name, 1, 3, bytes(16), ip_address(f"10.1.0.{n}"), "eth0", (ip_network("10.1.0.0/16"),))
            for n, name in enumerate("ab", 1)
        ]
        dialer = Dialer(self.devices, Rails(rails, (), loop.time), self.executor, self.executor, 1.0, self._connect)
        self.cache = ConnectionCache(dialer.dial, loop, most=5, idle_timeout=0.02)
        self.links: list[FakeLink] = []
        self.local = Memory(64)
        self.remote = Memory(1)
        self.free = [self.local.buffer(n) for n in range(64)]
        self.ended = 0

    def _connect(self, route: Route, nonce: bytes, timeout: float) -> FakeLink:
        if self.random.random() < 0.15:
            reason = self.random.choice([Failure.UNREACHABLE, Failure.REJECTED])
            raise ConnectFailed(reason, "no", local=self.random.random() < 0.2)
        link = FakeLink(route.device, automatic=False, deaf=self.random.random() < 0.2)
        link.closing_takes = 0.01
        self.links.append(link)
        return link

    def in_hand(self, buffer: MemoryBuffer) -> bool:
        """Whether a device may still touch it."""
        first, end = buffer.address, buffer.address + CHUNK
        return any(first <= request[1].address < end for link in self.links for request in link.posted.values())

    async def chunk(self, region: RcRegion) -> None:
        buffer = self.free.pop()
        assert not self.in_hand(buffer)
        try:
            length = self.random.randint(1, 100)
            if self.random.random() < 0.5:
                await region.read(self.random.randint(0, 100), buffer, length)
            else:
                await region.write(self.random.randint(0, 100), buffer, length)
        except (TransferFailed, Declined):
            pass
        finally:
            assert not self.in_hand(buffer)
            self.free.append(buffer)
            self.ended += 1

    async def request(self, number: int) -> None:
        key = Key(gid_of(PEER), 1000 + number % 7, bytes(16))
        token = Token(self.remote.address, CHUNK, 9, 0, key.port, key.gid, Transport.RC, key.nonce)
        try:
            region = RcRegion(token, key, await self.cache.lease(key), self.cache, self.random.choice([0.02, 0.2]))
        except (TransferFailed, Declined):
            return
        try:
            chunks = [asyncio.ensure_future(self.chunk(region)) for _ in range(3)]
            try:
                await asyncio.gather(*chunks)
            finally:
                for each in chunks:
                    each.cancel()
                await asyncio.wait(chunks)
        finally:
            await region.close()

    def enough(self) -> bool:
        return self.ended > 20 and len(self.links) > 5

    def disturb(self) -> None:
        links = [link for link in self.links if not link.closed]
        if not links:
            return
        link = self.random.choice(links)
        what = self.random.random()
        if what < 0.7 and link.posted:
            link.complete()
        elif what < 0.8 and link.posted:
            link.complete(self.random.choice(list(CompletionStatus)))
        elif what < 0.85:
            link.hang_up()
        elif what < 0.9:
            link.refuse = VerbsError("full", 12)

    async def run(self) -> None:
        requests = set()
        number = 0
        began = self.loop.time()
        # On a slow machine little happens in this time.
        while (age := self.loop.time() - began) < 1.5 or (age < 30 and not self.enough()):
            # Each running request may hold three buffers, and never waits for one.
            if len(requests) < 16:
                number += 1
                requests.add(asyncio.ensure_future(self.request(number)))
            self.disturb()
            if self.random.random() < 0.1:
                self.random.choice(sorted(requests, key=id)).cancel()
            await asyncio.sleep(0)
            for done in [task for task in requests if task.done()]:
                requests.discard(done)
                if not done.cancelled():
                    done.result()
            assert len(self.cache) <= 5
        for task in requests:
            task.cancel()
        await asyncio.wait(requests)
        await self.cache.close()


@pytest.mark.parametrize("seed", range(6))
async def test_chaos(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rc, "FLUSH", 0.01)
    monkeypatch.setattr(rc, "GRACE", 0.01)
    chaos = Chaos(seed)
    await chaos.run()
    assert chaos.enough()
    assert len(chaos.free) == 64
    assert len(chaos.cache) == 0
    assert all(link.closed for link in chaos.links)
    for device in chaos.devices.values():
        assert device.room == ROOM
        assert device.completions.outstanding == 0
        device.close()
    chaos.executor.shutdown()
