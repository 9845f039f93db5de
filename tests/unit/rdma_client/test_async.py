"""The twins for event loops: many in flight, cancellation that leaves no memory to the server."""

import asyncio
import threading
import time

import pytest

from s3verbs.rdma.client.errors import DeadlineExceeded, NotFound, RegionClosed
from tests.unit.rdma_client.scripted import FakeTransport, Guarded, Request, ScriptedServer, Store, client, s3_error


async def test_many_are_in_flight_at_a_time(server: ScriptedServer, transport: FakeTransport) -> None:
    store = Store(transport, bytes(range(100)))
    together = threading.Barrier(8)

    def step(request: Request) -> bytes:
        together.wait(20)
        return store.get(request)

    server.script += [step] * 8
    memory = Guarded(80)
    with client(server, transport) as s3, s3.register(memory.view) as region:
        parts = [region[start : start + 10] for start in range(0, 80, 10)]
        results = await asyncio.gather(
            *(s3.aget_into("b", "k", part, (part.offset, part.offset + 10)) for part in parts)
        )
        assert [result.size for result in results] == [10] * 8
        server.script.append(store.put)
        assert (await s3.aput_from("b", "k", region, metadata={"a": "b"})).size == 80
    assert memory.content == bytes(range(80)) == store.data


async def test_errors_come_through(server: ScriptedServer, transport: FakeTransport) -> None:
    server.script += [s3_error(404, "NoSuchKey"), lambda request: time.sleep(2.0)]  # type: ignore[func-returns-value]
    with client(server, transport) as s3, s3.register(bytearray(10)) as region:
        with pytest.raises(NotFound):
            await s3.aget_into("b", "k", region)
        with pytest.raises(DeadlineExceeded):
            await s3.aget_into("b", "k", region, timeout=1.0)
    with pytest.raises(RegionClosed):
        await s3.aget_into("b", "k", region)


async def test_a_cancelled_get_has_taken_its_memory_back(server: ScriptedServer, transport: FakeTransport) -> None:
    arrived, go_on = threading.Event(), threading.Event()

    def step(request: Request) -> None:
        arrived.set()
        go_on.wait(30)

    server.script.append(step)
    memory = Guarded(10)
    with client(server, transport) as s3, s3.register(memory.view) as region:
        task = asyncio.create_task(s3.aget_into("b", "k", region))
        await asyncio.to_thread(arrived.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not transport.valid
        assert not transport.write(server.requests[0].token or "", b"late")
        go_on.set()
        server.script.append(Store(transport, b"0123456789").get)
        assert (await s3.aget_into("b", "k", region)).size == 10
    assert memory.content == b"0123456789"
    assert len(server.requests) == 2


async def test_one_that_was_cancelled_before_it_began_is_never_sent(
    server: ScriptedServer, transport: FakeTransport
) -> None:
    arrived, go_on = threading.Event(), threading.Event()
    store = Store(transport, b"0123456789")

    def step(request: Request) -> bytes:
        arrived.set()
        go_on.wait(30)
        return store.get(request)

    server.script.append(step)
    with client(server, transport, max_in_flight=1) as s3, s3.register(bytearray(10)) as region:
        first = asyncio.create_task(s3.aget_into("b", "k", region))
        await asyncio.to_thread(arrived.wait, 20)
        second = asyncio.create_task(s3.aget_into("b", "k", region))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert (await first).size == 10
        assert transport.revokes == 0
    assert len(server.requests) == 1
