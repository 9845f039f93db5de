"""The fabric with devices that speak DC, and with those that do not."""

import asyncio
from collections.abc import Iterator
from ipaddress import ip_address, ip_interface

import pytest

from s3verbs.rdma.errors import Decline, Declined
from s3verbs.rdma.fabric import CHUNK
from s3verbs.rdma.staging import StagingArena, StagingPool
from s3verbs.rdma.token import Token, Transport
from s3verbs.rdma.verbs import cm, fabric
from s3verbs.rdma.verbs.device import Device, GidEntry, Inventory, Netdev, Port, gid_of
from s3verbs.rdma.verbs.fabric import VerbsFabric, open_verbs
from s3verbs.rdma.verbs.options import VerbsOptions
from tests.fake_mlx5 import Adapter, Client, install

PEER = Client(gid_of(ip_address("10.0.0.99")), 0x1234, 0xFFEEDDCC, 0x7F00_0000_0000, 0xABC, bytearray(b"x" * CHUNK))
TOKEN = Token(PEER.address, CHUNK, PEER.rkey, 0, PEER.target, PEER.gid)


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Adapter]:
    made = install(monkeypatch)
    made.clients = [PEER]
    monkeypatch.setattr(cm, "load", lambda: None)
    yield made
    assert {kind: count for kind, count in made.live.items() if count} == {}


def machine(monkeypatch: pytest.MonkeyPatch, *drivers: str) -> None:
    """With a device for each driver, number n at 10.0.n.1/24."""
    devices, netdevs = [], {}
    for number, driver in enumerate(drivers):
        interface = ip_interface(f"10.0.{number}.1/24")
        gid = GidEntry(3, gid_of(interface.ip), "RoCE v2", f"eth{number}")
        devices.append(Device(f"{driver}_{number}", driver, (Port(1, "ACTIVE", "Ethernet", gids=(gid,)),)))
        netdevs[f"eth{number}"] = Netdev(f"eth{number}", 9000, "", (interface,))
    monkeypatch.setattr(fabric, "read_inventory", lambda: Inventory(tuple(devices), netdevs))


def opened(arena: StagingArena, **options: int) -> VerbsFabric:
    return open_verbs(VerbsOptions(**options), arena, asyncio.get_running_loop())


async def test_a_token_of_cuobject_is_served(adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "mlx5")
    arena = StagingArena(4 * CHUNK)
    found = opened(arena)
    try:
        assert found.transports == {Transport.RC, Transport.DC}
        assert found.describe() == "RC on mlx5_0:1:3 (10.0.0.1 on eth0); DC on mlx5_0:1:3 (10.0.0.1 on eth0)"
        region = await found.open(TOKEN)
        buffer = StagingPool(arena, patience=1.0).try_acquire()
        assert buffer is not None
        await region.read(0, buffer, CHUNK)
        assert bytes(buffer.view[:4]) == b"xxxx"
        await region.close()
    finally:
        await found.close()


async def test_only_rails_with_dc_are_routes_for_it(adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "bnxt_re", "mlx5")
    found = opened(StagingArena(CHUNK))
    try:
        # The peer is in bnxt_re's subnet, but only mlx5 speaks DC; both have IPv4.
        assert (await found.open(TOKEN)).device == "mlx5_1"
        for token, reason in (
            (Token(PEER.address, CHUNK, 1, 0, 1, gid_of(ip_address("192.0.2.1"))), Decline.PEER_NOT_ALLOWED),
            (Token(PEER.address, CHUNK, 1, 7, 1, None), Decline.NO_ROUTE),
            (Token(PEER.address, CHUNK, transport=Transport.SAMEHOST, secret=bytes(16)), Decline.NO_TRANSPORT),
        ):
            with pytest.raises(Declined) as declined:
                await found.open(token)
            assert declined.value.reason is reason
    finally:
        await found.close()


async def test_without_an_mlx5_device_dc_tokens_are_declined(adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "bnxt_re")
    found = opened(StagingArena(CHUNK))
    try:
        assert found.transports == {Transport.RC}
        assert "DC" not in found.describe()
        with pytest.raises(Declined) as declined:
            await found.open(TOKEN)
        assert declined.value.reason is Decline.NO_TRANSPORT
    finally:
        await found.close()
    assert adapter.made == 0


async def test_an_mlx5_device_that_makes_no_initiator(
    adapter: Adapter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine(monkeypatch, "mlx5")
    adapter.has_dc = False
    found = opened(StagingArena(CHUNK))
    try:
        assert found.transports == {Transport.RC}
        assert "mlx5_0 makes no DC initiator" in caplog.text
    finally:
        await found.close()


async def test_the_access_key_is_an_option(adapter: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "mlx5")
    arena = StagingArena(CHUNK)
    found = opened(arena, dc_key=0x42)
    try:
        buffer = StagingPool(arena, patience=1.0).try_acquire()
        assert buffer is not None
        monkeypatch.setattr(PEER, "key", 0x42)
        await (await found.open(TOKEN)).write(0, buffer, 1)
        assert [request.key for request in adapter.requests] == [0x42]
    finally:
        await found.close()
