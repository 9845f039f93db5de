"""DC under clients that go silent, lie about keys and go away: a buffer comes back only when no device has it."""

import asyncio
import contextlib
import random
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

import pytest

from s3verbs.rdma.errors import PeerUnreachable, RemoteAccess
from s3verbs.rdma.fabric import CHUNK
from s3verbs.rdma.staging import StagingArena, StagingPool
from s3verbs.rdma.token import Token
from s3verbs.rdma.verbs.dc import DcRail
from s3verbs.rdma.verbs.dc_link import Manner
from s3verbs.rdma.verbs.device import Rail, gid_of
from s3verbs.rdma.verbs.opened_device import OpenedDevice
from tests.fake_mlx5 import Adapter, Client, install

KEY = 0x5EED
CLIENTS = 6
REQUESTS = 120
ADDRESS = ip_address("10.0.0.1")
RAIL = Rail("mlx5_0", 1, 3, gid_of(ADDRESS), ADDRESS, "eth0", (), "mlx5")


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Adapter:
    made = install(monkeypatch)
    for number in range(CLIENTS):
        gid = gid_of(ip_address(f"10.0.0.{100 + number}"))
        made.clients.append(Client(gid, 77, KEY, (number + 1) << 32, number, bytearray(bytes([number + 1]) * CHUNK)))
    return made


async def device_at_work(adapter: Adapter, chance: random.Random) -> None:
    """Serves what is posted in any order between targets, and now and then nothing for a while."""
    while True:
        await asyncio.sleep(chance.choice((0, 0, 0.001, 0.02)))
        adapter.held = True
        some = [one for one in adapter.clients if chance.random() < 0.5]
        for client in some:
            client.silent = chance.random() < 0.05
        for queue_pair in list(adapter.queue_pairs.values()):
            if queue_pair.posted and chance.random() < 0.5:
                adapter.held = False
                queue_pair.run()
                adapter.held = True


@pytest.mark.parametrize("seed", range(4))
async def test_no_buffer_comes_back_while_a_device_has_it(adapter: Adapter, seed: int) -> None:
    chance = random.Random(seed)
    arena = StagingArena(16 * CHUNK)
    pool = StagingPool(arena, patience=30.0)
    outcomes: dict[str, int] = {}
    adapter.held = True

    def used(address: int) -> bool:
        posted = [request for one in adapter.queue_pairs.values() for request in one.posted]
        return any(address <= request.local < address + CHUNK for request in posted)

    async def request(rail: DcRail, number: int) -> None:
        client = chance.choice(adapter.clients)
        rkey = client.rkey if chance.random() < 0.9 else 0xBAD
        region = rail.open(Token(client.address, CHUNK, rkey, 0, client.target, client.gid))
        buffer = await pool.acquire(number)
        reading, length = chance.random() < 0.5, chance.randint(1, CHUNK)
        try:
            if reading:
                await region.read(0, buffer, length)
                assert bytes(buffer.view[:length]) == bytes(client.memory[:length])
            else:
                buffer.view[:length] = bytes(client.memory[:1]) * length
                await region.write(0, buffer, length)
            outcomes["moved"] = outcomes.get("moved", 0) + 1
        except (RemoteAccess, PeerUnreachable, asyncio.CancelledError) as error:
            outcomes[type(error).__name__] = outcomes.get(type(error).__name__, 0) + 1
        finally:
            assert not used(buffer.address)
            buffer.view[:] = b"\xee" * CHUNK
            pool.release(buffer)
            await region.close()

    with ThreadPoolExecutor(2) as executor:
        loop = asyncio.get_running_loop()
        device = OpenedDevice("mlx5_0", 8, arena, loop)
        rail = DcRail(RAIL, device, executor, loop, Manner(KEY), transfer_timeout=20.0, initiators=3, handles=2)
        working = asyncio.create_task(device_at_work(adapter, chance))
        tasks = [asyncio.create_task(request(rail, number)) for number in range(REQUESTS)]
        for task in chance.sample(tasks, REQUESTS // 6):
            await asyncio.sleep(chance.choice((0, 0.002)))
            task.cancel()
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            assert found is None or isinstance(found, asyncio.CancelledError), found
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
        await rail.close()
        assert (rail.busy, rail.waiting, device.completions.outstanding) == (0, 0, 0)
        device.close()
    assert pool.idle == pool.total
    assert outcomes["moved"] > REQUESTS // 3
    assert outcomes.get("RemoteAccess", 0) > 0
    assert {kind: count for kind, count in adapter.live.items() if count} == {}
    # No client's memory got another's bytes.
    for number, client in enumerate(adapter.clients):
        assert set(client.memory) == {number + 1}
