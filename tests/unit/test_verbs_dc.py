"""DC initiators against a model of pyverbs: exact work requests, who waits for whom, and what survives a failure."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from s3verbs.rdma.errors import Decline, Declined, Failure, PeerUnreachable, RemoteAccess
from s3verbs.rdma.fabric import CHUNK, RemoteRegion
from s3verbs.rdma.staging import StagingArena, StagingBuffer, StagingPool
from s3verbs.rdma.token import Token, Transport
from s3verbs.rdma.verbs import dc
from s3verbs.rdma.verbs.dc import DcRail, DcRegion
from s3verbs.rdma.verbs.dc_link import AddressHandles, DcLink, Manner, check, steps
from s3verbs.rdma.verbs.device import Rail, gid_of
from s3verbs.rdma.verbs.errors import VerbsUnavailable
from s3verbs.rdma.verbs.opened_device import DEPTH, OpenedDevice
from tests.fake_mlx5 import Adapter, Client, install

KEY = 0xFFEEDDCC
RAIL = Rail(
    "mlx5_0", 1, 3, gid_of(ip_address("10.0.0.1")), ip_address("10.0.0.1"), "eth0", (ip_network("10.0.0.0/24"),), "mlx5"
)
BUFFERS = 40


def client(number: int, size: int = 4 * CHUNK) -> Client:
    gid = gid_of(ip_address(f"10.0.0.{100 + number}"))
    memory = bytearray(bytes([number]) * size)
    return Client(gid, 0x1230 + number, KEY, 0x7F1D_C46F_D010 + (number << 32), 0xABC0 + number, memory)


def token(of: Client, **changes: Any) -> Token:
    fields = {"address": of.address, "size": len(of.memory), "rkey": of.rkey, "qp": of.target, "gid": of.gid}
    return Token(**{**fields, **changes})


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Adapter]:
    made = install(monkeypatch)
    made.clients = [client(number) for number in range(12)]
    yield made
    # Everything was closed, once.
    assert {kind: count for kind, count in made.live.items() if count} == {}
    assert made.in_flight == 0


@contextlib.asynccontextmanager
async def opened(
    *, initiators: int = 4, timeout: float = 20.0, handles: int = 256, room: int = 16, manner: Manner | None = None
) -> AsyncIterator[tuple[DcRail, StagingPool]]:
    arena = StagingArena(BUFFERS * CHUNK)
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(2) as executor:
        device = OpenedDevice("mlx5_0", room, arena, loop)
        before = device.room
        rail = DcRail(
            RAIL,
            device,
            executor,
            loop,
            manner or Manner(KEY),
            transfer_timeout=timeout,
            initiators=initiators,
            handles=handles,
        )
        try:
            yield rail, StagingPool(arena, patience=1.0)
        finally:
            await rail.close()
            assert device.room == before
            assert (rail.busy, rail.waiting, device.completions.outstanding) == (0, 0, 0)
            device.close()


def take(pool: StagingPool) -> StagingBuffer:
    buffer = pool.try_acquire()
    assert buffer is not None
    return buffer


async def until(condition: Any) -> None:
    """Bounded; says nothing about how long it may take."""
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came")


# -- work requests --


async def test_a_read_is_these_calls_in_this_order(adapter: Adapter) -> None:
    peer = adapter.clients[1]
    peer.memory[8192:8197] = b"hello"
    async with opened() as (rail, pool):
        buffer = take(pool)
        region = rail.open(token(peer))
        assert (region.size, region.transport, region.device) == (4 * CHUNK, Transport.DC, "mlx5_0")
        await region.read(8192, buffer, 5)
        assert bytes(buffer.view[:5]) == b"hello"
        await region.close()
    route = (
        ("dgid", peer.gid),
        ("dlid", 0),
        ("flow_label", 0),
        ("hop_limit", 64),
        ("is_global", 1),
        ("port_num", 1),
        ("sgid_index", 3),
        ("sl", 0),
        ("src_path_bits", 0),
        ("static_rate", 0),
        ("traffic_class", 0),
    )
    (request,) = adapter.requests
    assert adapter.calls == [
        ("wr_start",),
        ("wr_id", request.work),
        ("wr_flags", 1 << 1),
        ("wr_rdma_read", peer.rkey, peer.address + 8192),
        ("wr_set_dc_addr", route, peer.target, KEY),
        ("wr_set_sge", request.lkey, buffer.address, 5),
        ("wr_complete",),
    ]


async def test_a_write_begins_where_it_is_told_to(adapter: Adapter) -> None:
    peer = adapter.clients[2]
    async with opened(manner=Manner(KEY, traffic_class=106, hop_limit=9)) as (rail, pool):
        buffer = take(pool)
        buffer.view[100:105] = b"hello"
        await rail.open(token(peer)).write(CHUNK + 7, buffer, 5, start=100)
        address = buffer.address + 100
    assert bytes(peer.memory[CHUNK + 6 : CHUNK + 13]) == b"\2hello\2"
    (request,) = adapter.requests
    assert [call[0] for call in adapter.calls][3:6] == ["wr_rdma_write", "wr_set_dc_addr", "wr_set_sge"]
    assert (request.read, request.remote, request.rkey) == (False, peer.address + CHUNK + 7, peer.rkey)
    assert (request.local, request.length, request.target, request.key) == (address, 5, peer.target, KEY)
    route = dict(request.route)
    assert (route["dgid"], route["traffic_class"], route["hop_limit"]) == (peer.gid, 106, 9)


async def test_another_access_key_is_a_setting(adapter: Adapter) -> None:
    adapter.clients[0].key = 0x1234
    async with opened(manner=Manner(0x1234)) as (rail, pool):
        await rail.open(token(adapter.clients[0])).read(0, take(pool), CHUNK)
    async with opened() as (rail, pool):
        with pytest.raises(RemoteAccess):
            await rail.open(token(adapter.clients[0])).read(0, take(pool), CHUNK)


def test_the_way_to_ready_to_send() -> None:
    first, second, third = steps(2, 5, 12)
    assert (first.port, second.path_mtu) == (2, 5)
    assert (third.max_rd_atomic, third.retry_cnt, third.rnr_retry) == (12, 7, 7)
    assert 0 < third.timeout < 20


async def test_an_initiator_is_made_once_with_what_device_and_port_allow(adapter: Adapter) -> None:
    async with opened() as (rail, pool):
        region = rail.open(token(adapter.clients[0]))
        for chunk in range(4):
            await region.read(chunk * CHUNK, take(pool), CHUNK)
        (queue_pair,) = adapter.queue_pairs.values()
        assert (adapter.made, queue_pair.depth, adapter.live["AH"]) == (1, DEPTH, 1)
        assert queue_pair.attributes["path_mtu"] == 5
        assert queue_pair.attributes["max_rd_atomic"] == 12


# -- tokens and bounds --


async def test_tokens_that_are_not_for_dc(adapter: Adapter) -> None:
    async with opened() as (rail, _):
        with pytest.raises(Declined) as declined:
            rail.open(token(adapter.clients[0], gid=None))
        assert declined.value.reason is Decline.NO_ROUTE
        with pytest.raises(Declined) as declined:
            rail.open(token(adapter.clients[0], transport=Transport.RC, secret=bytes(16)))
        assert declined.value.reason is Decline.NO_TRANSPORT


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (4 * CHUNK, 1), (0, 0), (0, CHUNK + 1), (4 * CHUNK - 1, 2)])
async def test_bytes_outside_of_the_token_are_never_asked_for(adapter: Adapter, offset: int, length: int) -> None:
    async with opened() as (rail, pool):
        region = rail.open(token(adapter.clients[0]))
        with pytest.raises(ValueError, match="not in"):
            await region.read(offset, take(pool), length)
        with pytest.raises(ValueError, match="not in"):
            await region.write(offset, take(pool), length)
        with pytest.raises(ValueError, match="not in a buffer"):
            await region.write(0, take(pool), 2, start=CHUNK - 1)
    assert adapter.requests == []


# -- many clients --


async def test_a_client_has_one_initiator_and_initiators_are_reused(adapter: Adapter) -> None:
    async with opened(initiators=3) as (rail, pool):
        buffers = [take(pool) for _ in range(24)]
        await asyncio.gather(
            *(
                rail.open(token(peer)).read(chunk * CHUNK, buffers[2 * number + chunk], CHUNK)
                for number, peer in enumerate(adapter.clients)
                for chunk in range(2)
            )
        )
        for number, peer in enumerate(adapter.clients):
            assert bytes(buffers[2 * number].view[:8]) == bytes(peer.memory[:8])
        assert adapter.made <= 3
    by_queue_pair: dict[int, list[int]] = {}
    for request in adapter.requests:
        by_queue_pair.setdefault(request.qp, []).append(request.target)
    assert sorted(target for targets in by_queue_pair.values() for target in targets) == sorted(
        2 * [peer.target for peer in adapter.clients]
    )


async def test_an_initiator_has_requests_of_one_client_at_a_time(adapter: Adapter) -> None:
    adapter.held = True
    async with opened(initiators=2) as (rail, pool):
        regions = [rail.open(token(peer)) for peer in adapter.clients[:3]]
        tasks = [asyncio.create_task(region.read(0, take(pool), CHUNK)) for region in regions]
        await until(lambda: adapter.in_flight == 2)
        assert (rail.busy, rail.waiting) == (2, 1)
        # The third client waits for an initiator of its own, so nobody joins a busy one before it.
        late = asyncio.create_task(regions[0].read(CHUNK, take(pool), CHUNK))
        await until(lambda: rail.waiting == 2)
        for queue_pair in adapter.queue_pairs.values():
            assert len({request.target for request in queue_pair.posted}) == 1
        first, _, third = adapter.clients[:3]
        adapter.finish(first.target)
        await until(lambda: adapter.posted(third.target) == 1)
        assert (adapter.posted(first.target), rail.waiting) == (0, 1)
        adapter.release()
        await asyncio.gather(*tasks, late)


async def test_a_client_posts_no_more_than_its_initiator_has_room_for(adapter: Adapter) -> None:
    adapter.held = True
    async with opened(initiators=2) as (rail, pool):
        region = rail.open(token(adapter.clients[0]))
        tasks = [asyncio.create_task(region.read(0, take(pool), 4096)) for _ in range(DEPTH + 4)]
        await until(lambda: adapter.in_flight == DEPTH)
        assert (rail.busy, rail.waiting) == (1, 4)
        # Those four hold up nobody else.
        other = asyncio.create_task(rail.open(token(adapter.clients[1])).read(0, take(pool), 4096))
        await until(lambda: adapter.in_flight == DEPTH + 1)
        adapter.release()
        await asyncio.gather(*tasks, other)
    assert max(adapter.most_posted.values()) == DEPTH


# -- failures --


async def test_a_refused_access_is_the_clients_fault_and_costs_the_initiator(adapter: Adapter) -> None:
    peer = adapter.clients[0]
    async with opened(initiators=1) as (rail, pool):
        with pytest.raises(RemoteAccess):
            await rail.open(token(peer, rkey=1)).read(0, take(pool), CHUNK)
        await rail.open(token(peer)).read(0, take(pool), CHUNK)
    assert adapter.made == 2
    assert len(adapter.requests) == 2


async def test_what_an_error_flushed_is_done_on_the_next_initiator(adapter: Adapter) -> None:
    adapter.held = True
    peer = adapter.clients[0]
    async with opened(initiators=1) as (rail, pool):
        buffers = [take(pool) for _ in range(4)]
        bad = asyncio.create_task(rail.open(token(peer, rkey=1)).read(0, buffers[0], CHUNK))
        await until(lambda: adapter.in_flight == 1)
        good = [
            asyncio.create_task(rail.open(token(peer)).read(index * CHUNK, buffers[index], CHUNK))
            for index in (1, 2, 3)
        ]
        await until(lambda: adapter.in_flight == 4)
        adapter.release()
        with pytest.raises(RemoteAccess):
            await bad
        await asyncio.gather(*good)
        assert all(bytes(buffer.view[:4]) == bytes(peer.memory[:4]) for buffer in buffers[1:])
    assert adapter.made == 2


async def test_a_silent_client_is_tried_twice(adapter: Adapter) -> None:
    adapter.clients[0].silent = True
    async with opened() as (rail, pool):
        with pytest.raises(PeerUnreachable) as failed:
            await rail.open(token(adapter.clients[0])).read(0, take(pool), CHUNK)
        assert failed.value.reason is Failure.CONNECTION_LOST
    assert (len(adapter.requests), adapter.made) == (2, 2)


async def test_a_peer_without_an_address_is_not_asked_for_again_at_once(
    adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = adapter.clients[0]
    adapter.absent.add(peer.gid)
    async with opened() as (rail, pool):
        region, buffer = rail.open(token(peer)), take(pool)
        with pytest.raises(PeerUnreachable, match="no address handle"):
            await region.read(0, buffer, CHUNK)
        with pytest.raises(PeerUnreachable, match="a moment ago"):
            await region.read(0, buffer, CHUNK)
        adapter.absent.clear()
        monkeypatch.setattr(dc, "SHUN", 0.0)
        rail._shunned.clear()
        await region.read(0, buffer, CHUNK)
    assert len(adapter.requests) == 1


async def test_time_runs_out_with_a_request_posted(adapter: Adapter) -> None:
    adapter.held = True
    peer = adapter.clients[0]
    async with opened(timeout=0.2) as (rail, pool):
        buffer = take(pool)
        with pytest.raises(PeerUnreachable) as failed:
            await rail.open(token(peer)).read(0, buffer, CHUNK)
        assert failed.value.reason is Failure.TIMEOUT
        assert adapter.in_flight == 0
        buffer.view[:4] = b"mine"
        adapter.release()
        assert bytes(buffer.view[:4]) == b"mine"


async def test_time_runs_out_in_the_queue(adapter: Adapter) -> None:
    adapter.held = True
    async with opened(initiators=1, timeout=0.2) as (rail, pool):
        rail.transfer_timeout = 30.0
        busy = asyncio.create_task(rail.open(token(adapter.clients[0])).read(0, take(pool), CHUNK))
        await until(lambda: adapter.in_flight == 1)
        rail.transfer_timeout = 0.05
        with pytest.raises(PeerUnreachable) as failed:
            await rail.open(token(adapter.clients[1])).read(0, take(pool), CHUNK)
        assert failed.value.reason is Failure.TIMEOUT
        assert rail.waiting == 0
        adapter.release()
        await busy


async def test_a_cancelled_chunk_has_ended_when_its_task_has(adapter: Adapter) -> None:
    adapter.held = True
    peer = adapter.clients[0]
    async with opened() as (rail, pool):
        buffer = take(pool)
        region = rail.open(token(peer))
        task = asyncio.create_task(region.read(0, buffer, CHUNK))
        await until(lambda: adapter.in_flight == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert adapter.in_flight == 0
        buffer.view[:4] = b"mine"
        adapter.release()
        assert bytes(buffer.view[:4]) == b"mine"
        # The region and the client go on.
        await region.read(0, buffer, CHUNK)
        assert bytes(buffer.view[:4]) == bytes(peer.memory[:4])
        await region.close()


async def test_cancelled_in_the_queue(adapter: Adapter) -> None:
    adapter.held = True
    async with opened(initiators=1) as (rail, pool):
        busy = asyncio.create_task(rail.open(token(adapter.clients[0])).read(0, take(pool), CHUNK))
        await until(lambda: adapter.in_flight == 1)
        waiting = [
            asyncio.create_task(rail.open(token(peer)).read(0, take(pool), CHUNK)) for peer in adapter.clients[1:4]
        ]
        await until(lambda: rail.waiting == 3)
        waiting[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        assert rail.waiting == 2
        adapter.release()
        await asyncio.gather(busy, *waiting[1:])


async def test_cancelled_while_an_initiator_is_made(adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that makes it cannot be stopped; what it made is used by the next, and closed at the end."""
    begun, go_on = threading.Event(), threading.Event()
    make = DcLink.make

    def slow(*arguments: Any) -> DcLink:
        begun.set()
        assert go_on.wait(30)
        return make(*arguments)

    monkeypatch.setattr(DcLink, "make", slow)
    async with opened(initiators=1) as (rail, pool):
        task = asyncio.create_task(rail.open(token(adapter.clients[0])).read(0, take(pool), CHUNK))
        await until(begun.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await rail.open(token(adapter.clients[1])).read(0, take(pool), CHUNK)
    assert adapter.made == 1


async def test_a_closing_region_waits_for_its_chunks(adapter: Adapter) -> None:
    adapter.held = True
    async with opened() as (rail, pool):
        region = rail.open(token(adapter.clients[0]))
        task = asyncio.create_task(region.read(0, take(pool), CHUNK))
        await until(lambda: adapter.in_flight == 1)
        closing = asyncio.create_task(region.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        adapter.release()
        await asyncio.gather(task, closing)


async def test_a_device_without_room(adapter: Adapter) -> None:
    async with opened(room=1) as (rail, pool):
        assert rail.device.take()
        with pytest.raises(PeerUnreachable, match="no room"):
            await rail.open(token(adapter.clients[0])).read(0, take(pool), CHUNK)
        rail.device.give()
        await rail.open(token(adapter.clients[0])).read(0, take(pool), CHUNK)


async def test_a_device_without_dc_is_found_out_at_start(adapter: Adapter) -> None:
    async with opened() as (rail, _):
        check(rail.device, RAIL, Manner(KEY))
        assert adapter.queue_pairs == {}
        adapter.has_dc = False
        with pytest.raises(VerbsUnavailable, match="mlx5_0 makes no DC initiator: Operation not supported"):
            check(rail.device, RAIL, Manner(KEY))


async def test_an_initiator_that_is_half_made_is_destroyed(adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as (rail, _):
        monkeypatch.setattr("s3verbs.rdma.verbs.dc_link.steps", lambda *_: [None])
        with pytest.raises(AttributeError):
            DcLink.make(rail.device, RAIL, Manner(KEY))
        assert adapter.queue_pairs == {}


# -- address handles --


async def test_handles_that_are_used_stay_and_the_longest_unused_goes(adapter: Adapter) -> None:
    async with opened() as (rail, _):
        handles = AddressHandles(rail.device, RAIL, Manner(KEY), keep=2)
        gids = [peer.gid for peer in adapter.clients[:5]]
        for gid in gids[:4]:
            handles.add(gid, handles.make(gid))
            assert handles.take(gid) is not None
        assert len(handles) == 4
        assert handles.take(gids[0]) is handles.take(gids[0])
        for gid in (gids[1], gids[2], gids[3], gids[0]):
            handles.give(gid)
        assert [handles.has(gid) for gid in gids] == [True, False, True, True, False]
        for _ in range(2):
            handles.give(gids[0])
        assert [handles.has(gid) for gid in gids] == [True, False, False, True, False]
        assert handles.take(gids[4]) is None
        handles.close()
        assert len(handles) == 0


async def test_few_handles_are_enough(adapter: Adapter) -> None:
    async with opened(initiators=2, handles=1) as (rail, pool):
        buffers = [take(pool) for _ in adapter.clients]
        for _ in range(3):
            await asyncio.gather(
                *(
                    rail.open(token(peer)).read(0, buffer, 4096)
                    for peer, buffer in zip(adapter.clients, buffers, strict=True)
                )
            )
        assert adapter.live["AH"] <= 2 + 1


async def test_regions_are_remote_regions(adapter: Adapter) -> None:
    async with opened() as (rail, _):
        region: RemoteRegion = rail.open(token(adapter.clients[0]))
        assert isinstance(region, DcRegion)
