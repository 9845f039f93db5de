"""The server's half of RC against the client library's half, over real verbs: rxe0 to rxe1."""

import asyncio
import secrets
from collections.abc import Iterator
from dataclasses import replace

import pytest

from s3verbs.rdma.client.verbs import RcTransport
from s3verbs.rdma.errors import PeerUnreachable, RemoteAccess
from s3verbs.rdma.fabric import CHUNK
from s3verbs.rdma.token import parse
from tests.rdma_vm.resources import GuardedBuffer
from tests.rdma_vm.test_verbs_rc import OPTIONS, opened


@pytest.fixture
def client() -> Iterator[RcTransport]:
    transport = RcTransport(("rxe1",))
    yield transport
    transport.close()


async def test_both_ways_between_guards(client: RcTransport) -> None:
    buffer = GuardedBuffer(3 * CHUNK + 7)
    registration = client.register(buffer.memory)
    token = parse(registration.token(0, buffer.size))
    buffer.view[:] = content = secrets.token_bytes(buffer.size)
    async with opened() as (fabric, arena):
        region = await fabric.open(token)
        lengths = [CHUNK, CHUNK, CHUNK, 7]
        await asyncio.gather(*(region.read(n * CHUNK, arena.buffer(n), size) for n, size in enumerate(lengths)))
        assert arena.memory[: buffer.size] == content
        arena.memory[: buffer.size] = other = secrets.token_bytes(buffer.size)
        await asyncio.gather(*(region.write(n * CHUNK, arena.buffer(n), size) for n, size in enumerate(lengths)))
        assert buffer.view == other
        assert buffer.intact()
        await region.close()
    assert await asyncio.to_thread(registration.revoke)


async def test_part_of_a_registration(client: RcTransport) -> None:
    buffer = GuardedBuffer(CHUNK)
    registration = client.register(buffer.memory)
    async with opened() as (fabric, arena):
        region = await fabric.open(parse(registration.token(1000, 24)))
        arena.memory[:24] = b"x" * 24
        await region.write(0, arena.buffer(0), 24)
        assert bytes(buffer.view) == bytes(1000) + b"x" * 24 + bytes(CHUNK - 1024)
        await region.close()
    await asyncio.to_thread(registration.revoke)


async def test_revoked_memory_is_out_of_reach(client: RcTransport) -> None:
    buffer, other = GuardedBuffer(CHUNK), GuardedBuffer(CHUNK)
    first, second = client.register(buffer.memory), client.register(other.memory)
    async with opened() as (fabric, arena):
        gone, stays = [await fabric.open(parse(each.token(0, CHUNK))) for each in (first, second)]
        await gone.write(0, arena.buffer(0), CHUNK)
        assert await asyncio.to_thread(first.revoke)
        arena.memory[:CHUNK] = b"z" * CHUNK
        with pytest.raises((RemoteAccess, PeerUnreachable)):
            await gone.write(0, arena.buffer(0), CHUNK)
        assert b"z" not in bytes(buffer.view)
        await stays.write(0, arena.buffer(0), CHUNK)
        assert bytes(other.view) == b"z" * CHUNK
        await gone.close()
        await stays.close()
    assert await asyncio.to_thread(second.revoke)


async def test_several_clients_at_once() -> None:
    clients = [RcTransport(("rxe1",)) for _ in range(4)]
    try:
        buffers = [GuardedBuffer(4 * CHUNK) for _ in clients]
        registrations = [client.register(buffer.memory) for client, buffer in zip(clients, buffers, strict=True)]
        async with opened(replace(OPTIONS, max_connections=3), chunks=16) as (fabric, arena):
            arena.memory[:] = content = secrets.token_bytes(16 * CHUNK)

            async def put(number: int) -> None:
                region = await fabric.open(parse(registrations[number].token(0, 4 * CHUNK)))
                chunks = (region.write(n * CHUNK, arena.buffer(4 * number + n), CHUNK) for n in range(4))
                await asyncio.gather(*chunks)
                await region.close()

            await asyncio.gather(*(put(number) for number in range(3)))
            await put(3)
            assert b"".join(bytes(buffer.view) for buffer in buffers) == content
            assert all(buffer.intact() for buffer in buffers)
        for registration in registrations:
            assert await asyncio.to_thread(registration.revoke)
    finally:
        for client in clients:
            await asyncio.to_thread(client.close)
