"""Devices as they stand in sysfs, and which of them become rails."""

import socket
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, ip_interface
from pathlib import Path

import pytest

from s3verbs.rdma.verbs.device import Interface, Inventory, choose, explain, gid_of
from s3verbs.rdma.verbs.sysfs import interface_addresses, mask_bits, read_inventory, roce_mtu
from tests.fake_sysfs import V1, FakeSysfs

LINK_LOCAL = "fe80::10f5:ebff:fea9:f2fb"


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path)


def inventory(sysfs: FakeSysfs, **addresses: str) -> Inventory:
    """`addresses`: interface=\"10.0.0.1/24 fd00::1/64\"."""
    known: dict[str, list[Interface]] = {
        name: [ip_interface(address) for address in text.split()] for name, text in addresses.items()
    }
    return read_inventory(sysfs.root, known)


def test_what_is_read_of_a_connectx(sysfs: FakeSysfs) -> None:
    sysfs.netdev("eth0", mtu=9000)
    sysfs.device("mlx5_0")
    sysfs.roce("mlx5_0", "eth0", [LINK_LOCAL, "10.0.0.1"])
    found = inventory(sysfs, eth0=f"10.0.0.1/24 {LINK_LOCAL}/64")
    (device,) = found.devices
    assert (device.name, device.driver, device.node, device.firmware) == ("mlx5_0", "mlx5", "CA", "28.39.3560")
    assert (device.uverbs, device.dc_capable) == ("uverbs0", True)
    (port,) = device.ports
    assert (port.state, port.link_layer, port.rate, port.mtu) == ("ACTIVE", "Ethernet", "100 Gb/sec (4X EDR)", 4096)
    assert [(gid.index, gid.type, gid.netdev) for gid in port.gids] == [
        (0, "IB/RoCE v1", "eth0"),
        (1, "RoCE v2", "eth0"),
        (2, "IB/RoCE v1", "eth0"),
        (3, "RoCE v2", "eth0"),
    ]
    assert port.gids[3].gid == gid_of(IPv4Address("10.0.0.1"))


def test_drivers_by_their_rdma_names(sysfs: FakeSysfs) -> None:
    for name, driver in (("a", "mlx5_core"), ("b", "bnxt_en"), ("c", "ice"), ("d", "rxe"), ("f", "hns_other")):
        sysfs.device(name, driver=driver)
    sysfs.device("e", driver="siw", node="4: RNIC")
    found = {device.name: (device.driver, device.dc_capable) for device in inventory(sysfs).devices}
    assert found == {
        "a": ("mlx5", True),
        "b": ("bnxt_re", False),
        "c": ("irdma", False),
        "d": ("rxe", False),
        "e": ("siw", False),
        "f": ("hns_other", False),
    }


def test_no_device_at_all(tmp_path: Path) -> None:
    assert read_inventory(tmp_path, {}).devices == ()
    assert choose(read_inventory(tmp_path, {})) == []


def test_a_first_gid_that_is_no_address_of_the_host_and_v1_before_v2(sysfs: FakeSysfs) -> None:
    sysfs.netdev("eth0")
    sysfs.device("mlx5_0")
    sysfs.gid("mlx5_0", 0, "10.0.0.99", "eth0")  # left behind by an address that was taken away
    sysfs.roce("mlx5_0", "eth0", [LINK_LOCAL, "fd00::1", "10.0.0.1"], start=1)
    (rail,) = choose(inventory(sysfs, eth0=f"{LINK_LOCAL}/64 fd00::1/64 10.0.0.1/24"))
    assert (rail.gid_index, rail.address, rail.netdev) == (6, IPv4Address("10.0.0.1"), "eth0")
    assert rail.gid == gid_of(rail.address)
    assert {str(network) for network in rail.networks} == {"fd00::/64", "10.0.0.0/24"}


def test_only_ipv6(sysfs: FakeSysfs) -> None:
    sysfs.netdev("eth0")
    sysfs.device("mlx5_0")
    sysfs.roce("mlx5_0", "eth0", [LINK_LOCAL, "fd00::1"])
    (rail,) = choose(inventory(sysfs, eth0=f"{LINK_LOCAL}/64 fd00::1/64"))
    assert (rail.gid_index, rail.address) == (3, IPv6Address("fd00::1"))


def test_only_link_local_is_used_when_pinned(sysfs: FakeSysfs) -> None:
    sysfs.netdev("eth0")
    sysfs.device("rxe0", driver="rxe")
    sysfs.gid("rxe0", 0, LINK_LOCAL, "eth0")
    found = inventory(sysfs, eth0=f"{LINK_LOCAL}/64")
    (verdict,) = explain(found)
    assert verdict.rail is None
    assert verdict.text == f"no RoCE v2 GID with an address: GID 0 ({LINK_LOCAL}) is link-local"
    (rail,) = choose(found, ["rxe0:1:0"])
    assert str(rail.address) == f"{LINK_LOCAL}%eth0"
    assert str(rail.networks[0]) == "fe80::/64"


def test_only_v1(sysfs: FakeSysfs) -> None:
    sysfs.netdev("eth0")
    sysfs.device("mlx5_0")
    sysfs.gid("mlx5_0", 0, "10.0.0.1", "eth0", kind=V1)
    found = inventory(sysfs, eth0="10.0.0.1/24")
    assert choose(found) == []
    (verdict,) = explain(found, ["mlx5_0:1:0"])
    assert (verdict.rail, verdict.wanted, verdict.text) == (None, True, "pinned, but GID 0 is IB/RoCE v1")


def test_several_interfaces_and_a_vlan_on_one_port(sysfs: FakeSysfs) -> None:
    sysfs.netdev("eth0.100", kind="vlan")
    sysfs.netdev("eth0")
    sysfs.device("mlx5_0")
    after = sysfs.roce("mlx5_0", "eth0.100", ["10.100.0.1"])
    sysfs.roce("mlx5_0", "eth0", ["10.0.0.1"], start=after)
    found = inventory(sysfs, **{"eth0.100": "10.100.0.1/24", "eth0": "10.0.0.1/24"})
    (verdict,) = explain(found)
    assert verdict.rail is not None
    assert (verdict.rail.netdev, verdict.rail.gid_index) == ("eth0", 3)
    assert "1 (10.100.0.1 on eth0.100)" in verdict.text
    (vlan,) = choose(found, ["mlx5_0:1:1"])
    assert (vlan.netdev, vlan.networks) == ("eth0.100", (IPv4Interface("10.100.0.1/24").network,))
    both = choose(found, ["mlx5_0:1:1", "mlx5_0:1:3", "mlx5_0"])
    assert [rail.netdev for rail in both] == ["eth0.100", "eth0"]


def test_a_vlan_alone_is_used(sysfs: FakeSysfs) -> None:
    sysfs.netdev("eth0")
    sysfs.netdev("eth0.100", kind="vlan")
    sysfs.device("mlx5_0")
    sysfs.roce("mlx5_0", "eth0.100", ["10.100.0.1"])
    (rail,) = choose(inventory(sysfs, **{"eth0.100": "10.100.0.1/24"}))
    assert rail.netdev == "eth0.100"


def test_an_interface_of_another_network_namespace(sysfs: FakeSysfs) -> None:
    sysfs.device("mlx5_0")
    sysfs.gid("mlx5_0", 3, "10.0.0.1", "eth7")
    (verdict,) = explain(inventory(sysfs))
    assert verdict.rail is None
    assert "eth7, which is not in this network namespace" in verdict.text


def test_a_gid_without_an_interface(sysfs: FakeSysfs) -> None:
    sysfs.device("mlx5_0")
    sysfs.gid("mlx5_0", 3, "10.0.0.1", "")
    (verdict,) = explain(inventory(sysfs))
    assert "GID 3 (10.0.0.1) has no network interface" in verdict.text


def test_a_port_that_is_down_and_one_that_is_not(sysfs: FakeSysfs) -> None:
    sysfs.netdev("eth0")
    sysfs.netdev("eth1")
    sysfs.device("mlx4_0", driver="mlx4_core", ports=2)
    sysfs.port("mlx4_0", 1, state="1: DOWN")
    sysfs.roce("mlx4_0", "eth0", ["10.0.0.1"], port=1)
    sysfs.roce("mlx4_0", "eth1", ["10.0.1.1"], port=2)
    found = inventory(sysfs, eth0="10.0.0.1/24", eth1="10.0.1.1/24")
    down, up = explain(found)
    assert (down.port, down.rail, down.text) == (1, None, "the port is DOWN")
    assert up.rail is not None
    assert (up.rail.port, up.rail.netdev) == (2, "eth1")
    # A pin on the device is satisfied by one port; a pin on the port is not.
    assert [verdict.wanted for verdict in explain(found, ["mlx4_0"])] == [False, True]
    assert [(v.rail, v.wanted) for v in explain(found, ["mlx4_0:1"])] == [(None, True)]


def test_infiniband_and_iwarp_are_no_roce(sysfs: FakeSysfs) -> None:
    sysfs.device("mlx5_0")
    sysfs.port("mlx5_0", 1, layer="InfiniBand")
    sysfs.gid("mlx5_0", 0, LINK_LOCAL, "", kind=V1)
    sysfs.device("siw0", driver="siw", node="4: RNIC")
    infiniband, iwarp = explain(inventory(sysfs))
    assert (infiniband.rail, infiniband.text) == (None, "link layer InfiniBand; RoCE needs Ethernet")
    assert (iwarp.rail, iwarp.text) == (None, "iWARP; RoCE is needed")


def test_a_bond_is_one_device_whose_gids_are_of_the_bond(sysfs: FakeSysfs) -> None:
    for name, kind in (("eth0", ""), ("eth1", ""), ("bond0", "bond")):
        sysfs.netdev(name, kind=kind)
    sysfs.device("mlx5_bond_0")
    sysfs.roce("mlx5_bond_0", "bond0", [LINK_LOCAL, "10.0.0.1"])
    (rail,) = choose(inventory(sysfs, bond0=f"10.0.0.1/24 {LINK_LOCAL}/64"))
    assert (rail.device, rail.netdev, rail.gid_index) == ("mlx5_bond_0", "bond0", 3)


def test_rails_come_in_the_order_of_names_or_of_the_pins(sysfs: FakeSysfs) -> None:
    addresses = {}
    for number in (10, 2, 0):
        sysfs.netdev(f"eth{number}")
        sysfs.device(f"mlx5_{number}")
        sysfs.roce(f"mlx5_{number}", f"eth{number}", [f"10.0.{number}.1"])
        addresses[f"eth{number}"] = f"10.0.{number}.1/24"
    found = inventory(sysfs, **addresses)
    assert [rail.device for rail in choose(found)] == ["mlx5_0", "mlx5_2", "mlx5_10"]
    assert [rail.device for rail in choose(found, ["mlx5_10", "mlx5_0"])] == ["mlx5_10", "mlx5_0"]
    assert [v.text for v in explain(found, ["mlx5_10"]) if v.rail is None] == ["not pinned"] * 2


def test_pins_that_name_nothing_say_what_there_is(sysfs: FakeSysfs) -> None:
    sysfs.netdev("eth0")
    sysfs.device("rxe0", driver="rxe")
    sysfs.roce("rxe0", "eth0", ["10.0.0.1"])
    found = inventory(sysfs, eth0="10.0.0.1/24")
    texts = [verdict.text for verdict in explain(found, ["mlx5_0", "rxe0:2", "rxe0:1:7"]) if verdict.wanted]
    assert texts == [
        "pinned, but not here; devices: rxe0",
        "pinned, but it has no port 2",
        "pinned, but GID 7 is empty",
    ]


def test_loopback_is_used_when_pinned(sysfs: FakeSysfs) -> None:
    sysfs.netdev("lo", mtu=65536)
    sysfs.device("rxe0", driver="rxe")
    sysfs.gid("rxe0", 0, "127.0.0.1", "lo")
    found = inventory(sysfs, lo="127.0.0.1/8")
    assert choose(found) == []
    assert [rail.netdev for rail in choose(found, ["rxe0:1:0"])] == ["lo"]


@pytest.mark.parametrize(("mtu", "path"), [(1500, 1024), (9000, 4096), (4200, 4096), (4191, 2048), (300, 0)])
def test_path_mtu_of_an_interface(mtu: int, path: int) -> None:
    assert roce_mtu(mtu) == path


@pytest.mark.parametrize("bits", [0, 1, 8, 23, 24, 32])
def test_netmask_to_prefix(bits: int) -> None:
    assert mask_bits(((0xFFFFFFFF << (32 - bits)) & 0xFFFFFFFF).to_bytes(4)) == bits


def test_this_machine_has_its_own_addresses() -> None:
    found = interface_addresses()
    loopback = next(name for name, own in found.items() if IPv4Interface("127.0.0.1/8") in own)
    assert socket.if_nametoindex(loopback) > 0
    assert loopback in read_inventory().netdevs
