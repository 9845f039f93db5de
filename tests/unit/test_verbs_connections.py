"""Cache, dialing, rails and regions of RC, against fake links."""

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3verbs.rdma.errors import Decline, Declined, Failure, PeerUnreachable, RemoteAccess
from s3verbs.rdma.fabric import CHUNK
from s3verbs.rdma.token import Token, Transport
from s3verbs.rdma.verbs import connections as connections_module
from s3verbs.rdma.verbs.connections import ConnectionCache, Key
from s3verbs.rdma.verbs.constants import CompletionStatus
from s3verbs.rdma.verbs.device import Rail, gid_of
from s3verbs.rdma.verbs.dialing import Dialer
from s3verbs.rdma.verbs.errors import ConnectFailed
from s3verbs.rdma.verbs.rails import FIRST_REST, LONGEST_REST, Rails
from s3verbs.rdma.verbs.rc_link import Route
from s3verbs.rdma.verbs.region import RcRegion
from tests.fake_rc import FakeDevice, FakeLink, Memory

PEER = gid_of(ip_address("10.1.0.9"))


def rail(name: str, address: str = "10.1.0.1", network: str = "10.1.0.0/16") -> Rail:
    return Rail(name, 1, 3, gid_of(ip_address(address)), ip_address(address), "eth0", (ip_network(network),), "mlx5")


def key(number: int = 0) -> Key:
    return Key(PEER, 1000 + number, secrets.token_bytes(16))


class Network:
    """Where connections come from: `answer` decides about each call, in its executor thread."""

    def __init__(self, names: tuple[str, ...] = ("a",), most: int = 4, idle: float = 60.0, room: int = 100) -> None:
        loop = asyncio.get_running_loop()
        self.room = room
        self.devices = {name: FakeDevice(loop, name, room) for name in names}
        self.executor = ThreadPoolExecutor(4)
        self.now = 0.0
        self.rails = Rails([rail(name, f"10.1.0.{n + 1}") for n, name in enumerate(names)], (), lambda: self.now)
        self.calls: list[str] = []
        self.links: list[FakeLink] = []
        self.kept: list[object] = []
        self.answer: Callable[[str], None] = lambda _: None
        self.dialer = Dialer(self.devices, self.rails, self.executor, self.executor, 1.0, self._connect)
        self.cache = ConnectionCache(self.dialer.dial, loop, most=most, idle_timeout=idle)

    def _connect(self, route: Route, nonce: bytes, timeout: float) -> FakeLink:
        self.calls.append(route.device.name)
        self.answer(route.device.name)
        link = FakeLink(route.device)
        self.links.append(link)
        return link

    async def region(self, size: int = 4 * CHUNK, timeout: float = 30.0, memory: Memory | None = None) -> RcRegion:
        self.kept.append(memory)
        where = key()
        address = memory.address if memory is not None else 0x10000
        token = Token(address, size, 9, 0, where.port, where.gid, Transport.RC, where.nonce)
        return RcRegion(token, where, await self.cache.lease(where), self.cache, timeout)

    async def close(self) -> None:
        await self.cache.close()
        assert len(self.cache) == 0
        assert all(link.closed for link in self.links)
        for device in self.devices.values():
            assert device.room == self.room
            assert device.completions.outstanding == 0
            device.close()
        self.executor.shutdown()


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    network = Network()
    yield network
    await network.close()


def refuse(reason: Failure, *, local: bool = False) -> Callable[[str], None]:
    def answer(_: str) -> None:
        raise ConnectFailed(reason, "no", local=local)

    return answer


def until(gate: threading.Event) -> Callable[[str], None]:
    def answer(_: str) -> None:
        assert gate.wait(10)

    return answer


# --- cache


async def test_one_connection_for_all_who_ask_at_once(network: Network) -> None:
    where = key()
    leased = await asyncio.gather(*(network.cache.lease(where) for _ in range(20)))
    assert len({id(connection) for connection in leased}) == 1
    assert leased[0].leases == 20
    assert network.calls == ["a"]
    for connection in leased:
        network.cache.release(where, connection)
    assert (await network.cache.lease(where)) is leased[0]
    network.cache.release(where, leased[0])


async def test_an_asker_who_goes_away_does_not_stop_the_dialing(network: Network) -> None:
    gate = threading.Event()
    network.answer = until(gate)
    where = key()
    first, second = (asyncio.ensure_future(network.cache.lease(where)) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    gate.set()
    connection = await second
    assert connection.leases == 1
    network.cache.release(where, connection)
    assert network.calls == ["a"]


async def test_all_askers_learn_of_a_failure_and_the_next_one_tries_again(network: Network) -> None:
    network.answer = refuse(Failure.REJECTED)
    where = key()
    results = await asyncio.gather(*(network.cache.lease(where) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(result, PeerUnreachable) for result in results)
    assert network.calls == ["a"]
    network.answer = lambda _: None
    network.cache.release(where, await network.cache.lease(where))


async def test_the_longest_unused_makes_room(network: Network) -> None:
    keys = [key(n) for n in range(5)]
    for where in keys[:4]:
        network.cache.release(where, await network.cache.lease(where))
    again = await network.cache.lease(keys[0])
    network.cache.release(keys[0], again)
    network.cache.release(keys[4], await network.cache.lease(keys[4]))
    assert [link.closed for link in network.links] == [False, True, False, False, False]
    assert len(network.cache) == 4


async def test_leased_connections_are_not_taken_away(network: Network) -> None:
    leased = {where: await network.cache.lease(where) for where in [key(n) for n in range(4)]}
    with pytest.raises(Declined) as decline:
        await network.cache.lease(key(9))
    assert decline.value.reason is Decline.NO_CONNECTION
    for where, connection in leased.items():
        network.cache.release(where, connection)


async def test_many_newcomers_at_once_stay_within_the_bound(network: Network) -> None:
    async def visit(where: Key) -> None:
        try:
            connection = await network.cache.lease(where)
        except Declined as decline:
            assert decline.reason is Decline.NO_CONNECTION  # noqa: PT017
            return
        assert len(network.cache) <= 4
        await asyncio.sleep(0)
        network.cache.release(where, connection)

    for _ in range(10):
        await asyncio.gather(*(visit(key(n)) for n in range(12)))
        assert len(network.cache) <= 4
        assert sum(not link.closed for link in network.links) <= 4


async def test_an_ended_connection_is_replaced(network: Network) -> None:
    where = key()
    first = await network.cache.lease(where)
    network.links[0].hang_up()
    for _ in range(100):
        if not first.usable:
            break
        await asyncio.sleep(0.001)
    second = await network.cache.lease(where)
    assert second is not first
    network.cache.release(where, first)
    assert second.leases == 1
    network.cache.release(where, second)


async def test_unused_connections_close_after_a_while() -> None:
    network = Network(idle=0.05)
    keys = [key(n) for n in range(3)]
    for where in keys[:2]:
        network.cache.release(where, await network.cache.lease(where))
    used = await network.cache.lease(keys[2])
    await asyncio.sleep(0.3)
    assert [link.closed for link in network.links] == [True, True, False]
    network.cache.release(keys[2], used)
    await asyncio.sleep(0.3)
    assert len(network.cache) == 0
    await network.close()


async def test_closing_waits_for_what_is_being_made() -> None:
    network = Network()
    gate = threading.Event()
    network.answer = until(gate)
    asking = asyncio.ensure_future(network.cache.lease(key()))
    await asyncio.sleep(0.01)
    closing = asyncio.ensure_future(network.close())
    await asyncio.sleep(0.01)
    asking.cancel()
    gate.set()
    await closing
    assert asking.cancelled()


def test_a_key_keeps_its_secret() -> None:
    where = key()
    assert where.nonce.hex() not in repr(where)
    assert str(where.nonce) not in repr(where)
    assert connections_module.Key(where.gid, where.port, where.nonce) == where


# --- dialing and rails


async def test_a_silent_peer_is_called_twice(network: Network) -> None:
    network.answer = refuse(Failure.UNREACHABLE)
    with pytest.raises(PeerUnreachable) as failure:
        await network.cache.lease(key())
    assert failure.value.reason is Failure.UNREACHABLE
    assert network.calls == ["a", "a"]
    assert not network.rails.resting()


async def test_a_refusal_is_final(network: Network) -> None:
    network.answer = refuse(Failure.REJECTED)
    with pytest.raises(PeerUnreachable) as failure:
        await network.cache.lease(key())
    assert failure.value.reason is Failure.REJECTED
    assert network.calls == ["a"]


async def test_another_rail_takes_over_and_the_broken_one_rests() -> None:
    network = Network(("a", "b", "c"))

    def broken(name: str) -> None:
        if name == "a":
            raise ConnectFailed(Failure.UNREACHABLE, "port down", local=True)

    network.answer = broken
    for n in range(6):
        where = key(n % 4)
        network.cache.release(where, await network.cache.lease(where))
    assert network.calls.count("a") == 1
    assert [rail.device for rail in network.rails.resting()] == ["a"]
    network.now += FIRST_REST
    assert not network.rails.resting()
    await network.close()


async def test_rails_that_all_fail_here_are_a_decline() -> None:
    network = Network(("a", "b"))
    network.answer = refuse(Failure.UNREACHABLE, local=True)
    for _ in range(2):
        with pytest.raises(Declined) as decline:
            await network.cache.lease(key())
        assert decline.value.reason is Decline.NO_ROUTE
    assert sorted(network.calls) == ["a", "b"]
    await network.close()


async def test_a_device_without_queue_pairs_is_a_decline() -> None:
    network = Network(room=1)
    where = key()
    connection = await network.cache.lease(where)
    with pytest.raises(Declined) as decline:
        await network.cache.lease(key())
    assert decline.value.reason is Decline.NO_CONNECTION
    network.cache.release(where, connection)
    await network.close()


def test_equal_rails_take_turns_and_nearer_ones_go_first() -> None:
    near = [rail(name, f"10.1.0.{n + 1}") for n, name in enumerate("abc")]
    far = rail("far", "10.2.0.1", "10.2.0.0/16")
    rails = Rails([far, *near], (), lambda: 0.0)
    firsts = [rails.to(PEER)[0].device for _ in range(6)]
    assert sorted(firsts[:3]) == sorted(firsts[3:]) == ["a", "b", "c"]
    assert all(rails.to(PEER)[-1] is far for _ in range(4))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.floats(0, 100)), max_size=60))
def test_a_rail_rests_longer_each_time_and_never_for_ever(events: list[tuple[str, bool, float]]) -> None:
    now = 0.0
    known = {name: rail(name, f"10.1.0.{n + 1}") for n, name in enumerate("abc")}
    rails = Rails(list(known.values()), (), lambda: now)
    for name, works, later in events:
        if works:
            rails.worked(known[name])
            assert known[name] in rails.to(PEER)
        else:
            rails.failed(known[name])
            assert known[name] not in rails.to(PEER)
        now += later
        assert set(rails.to(PEER)) | set(rails.resting()) == set(known.values())
    now += LONGEST_REST
    assert not rails.resting()


def test_who_may_be_called() -> None:
    own = Rails([rail("a")], (), lambda: 0.0)
    listed = Rails([rail("a")], (ip_network("10.2.0.0/16"),), lambda: 0.0)
    other = gid_of(ip_address("10.2.0.9"))
    assert (own.allows(PEER), own.allows(other)) == (True, False)
    assert (listed.allows(PEER), listed.allows(other)) == (False, True)


# --- regions


async def test_a_region_moves_both_ways(network: Network) -> None:
    local, remote = Memory(2), Memory(4)
    region = await network.region(memory=remote)
    assert (region.size, region.transport, region.device) == (4 * CHUNK, Transport.RC, "a")
    remote.bytes[CHUNK : CHUNK + 5] = b"there"
    await region.read(CHUNK, local.buffer(1), 5)
    assert local.bytes[CHUNK : CHUNK + 5] == b"there"
    await region.write(3 * CHUNK, local.buffer(1), 3, start=2)
    assert remote.bytes[3 * CHUNK : 3 * CHUNK + 4] == b"ere\0"
    await region.close()


@pytest.mark.parametrize(
    ("offset", "length"), [(-1, 1), (0, 0), (0, CHUNK + 1), (4 * CHUNK - 1, 2), (4 * CHUNK, 1), (0, -1)]
)
async def test_a_region_has_bounds(network: Network, offset: int, length: int) -> None:
    region = await network.region()
    with pytest.raises(ValueError, match="region"):
        await region.read(offset, Memory(1).buffer(0), length)
    with pytest.raises(ValueError, match="buffer"):
        await region.write(0, Memory(1).buffer(0), 2, start=CHUNK - 1)
    assert not network.links[0].moved
    await region.close()


async def test_all_failed_chunks_go_on_over_one_new_connection(network: Network) -> None:
    local, remote = Memory(4), Memory(4)
    remote.bytes[:] = content = secrets.token_bytes(4 * CHUNK)
    region = await network.region(memory=remote)
    network.links[0].automatic = False
    reads = [asyncio.ensure_future(region.read(n * CHUNK, local.buffer(n), CHUNK)) for n in range(4)]
    while len(network.links[0].posted) < 4:
        await asyncio.sleep(0)
    network.links[0].complete(CompletionStatus.RETRY_EXC_ERR)
    await asyncio.gather(*reads)
    assert local.bytes[:] == content
    assert len(network.links) == 2
    await region.close()


async def test_one_retry_and_no_more(network: Network) -> None:
    local = Memory(1)
    region = await network.region(memory=Memory(4))
    network.links[0].status = CompletionStatus.RETRY_EXC_ERR
    await region.read(0, local.buffer(0), 5)
    network.links[1].status = CompletionStatus.RETRY_EXC_ERR
    with pytest.raises(PeerUnreachable) as failure:
        await region.read(0, local.buffer(0), 5)
    assert failure.value.reason is Failure.CONNECTION_LOST
    assert len(network.links) == 2
    await region.close()


async def test_a_peer_that_is_gone_for_good(network: Network) -> None:
    region = await network.region(memory=Memory(4))
    network.links[0].status = CompletionStatus.RETRY_EXC_ERR
    network.answer = refuse(Failure.UNREACHABLE)
    for _ in range(2):
        with pytest.raises(PeerUnreachable):
            await region.read(0, Memory(1).buffer(0), 5)
    assert network.calls == ["a", "a", "a"]
    await region.close()


async def test_a_chunk_cancelled_while_reconnecting_leaves_it_to_the_next(network: Network) -> None:
    region = await network.region(memory=Memory(4))
    gate = threading.Event()
    network.answer = until(gate)
    network.links[0].status = CompletionStatus.RETRY_EXC_ERR
    read = asyncio.ensure_future(region.read(0, Memory(1).buffer(0), 5))
    while len(network.calls) < 2:
        await asyncio.sleep(0.001)
    read.cancel()
    await asyncio.wait((read,))
    gate.set()
    await region.read(0, Memory(1).buffer(0), 5)
    assert network.calls == ["a", "a"]
    await region.close()


async def test_no_decline_in_the_middle_of_a_transfer(network: Network) -> None:
    region = await network.region(memory=Memory(4))
    network.links[0].status = CompletionStatus.RETRY_EXC_ERR
    network.answer = refuse(Failure.UNREACHABLE, local=True)
    with pytest.raises(PeerUnreachable):
        await region.read(0, Memory(1).buffer(0), 5)
    await region.close()


async def test_refused_memory_is_not_tried_again(network: Network) -> None:
    region = await network.region(memory=Memory(4))
    network.links[0].status = CompletionStatus.REM_ACCESS_ERR
    with pytest.raises(RemoteAccess):
        await region.read(0, Memory(1).buffer(0), 5)
    assert network.calls == ["a"]
    await region.close()


async def test_chunks_that_go_down_with_refused_memory_are_refused_too(network: Network) -> None:
    """The one bad chunk ends the connection under the others: that is no lost connection to tell the client of."""
    region = await network.region(memory=Memory(4))
    network.links[0].status = CompletionStatus.REM_ACCESS_ERR
    for _ in range(2):
        with pytest.raises(RemoteAccess):
            await region.read(0, Memory(1).buffer(0), 5)
    assert network.calls == ["a"]
    await region.close()


async def test_a_timeout_is_not_followed_by_a_retry(network: Network) -> None:
    region = await network.region(memory=Memory(4), timeout=0.05)
    network.links[0].automatic = False
    with pytest.raises(PeerUnreachable) as failure:
        await region.read(0, Memory(1).buffer(0), 5)
    assert failure.value.reason is Failure.TIMEOUT
    assert network.calls == ["a"]
    await region.close()


async def test_reconnecting_has_the_chunks_deadline(network: Network) -> None:
    region = await network.region(memory=Memory(4), timeout=0.1)
    gate = threading.Event()
    network.answer = until(gate)
    network.links[0].status = CompletionStatus.RETRY_EXC_ERR
    with pytest.raises(PeerUnreachable) as failure:
        await region.read(0, Memory(1).buffer(0), 5)
    assert failure.value.reason is Failure.TIMEOUT
    gate.set()
    await region.close()


async def test_closing_a_region_waits_for_its_chunks(network: Network) -> None:
    region = await network.region(memory=Memory(4))
    network.links[0].automatic = False
    read = asyncio.ensure_future(region.read(0, Memory(1).buffer(0), 5))
    while not network.links[0].posted:
        await asyncio.sleep(0)
    closing = asyncio.ensure_future(region.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    network.links[0].complete()
    await asyncio.gather(read, closing)
    with pytest.raises(PeerUnreachable):
        await region.read(0, Memory(1).buffer(0), 5)


async def test_a_cancelled_close_gives_the_lease_back(network: Network) -> None:
    region = await network.region(memory=Memory(4))
    network.links[0].automatic = False
    read = asyncio.ensure_future(region.read(0, Memory(1).buffer(0), 5))
    while not network.links[0].posted:
        await asyncio.sleep(0)
    closing = asyncio.ensure_future(region.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait((closing,))
    (connection,) = network.cache._live.values()
    assert connection.leases == 0
    network.links[0].complete()
    await read


async def test_leases_are_given_back_whatever_happens(network: Network) -> None:
    for status in (CompletionStatus.SUCCESS, CompletionStatus.REM_ACCESS_ERR, CompletionStatus.RETRY_EXC_ERR):
        region = await network.region(memory=Memory(4))
        network.links[-1].status = status
        await asyncio.gather(region.read(0, Memory(1).buffer(0), 5), return_exceptions=True)
        await region.close()
        await region.close()
    for connection in network.cache._live.values():
        assert connection.leases == 0
