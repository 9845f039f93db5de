"""GIDs and addresses, pins, and the way to a peer."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface, ip_network

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from s3verbs.rdma.verbs.device import (
    Device,
    GidEntry,
    Inventory,
    Netdev,
    Pin,
    Port,
    Rail,
    address_of,
    choose,
    explain,
    gid_of,
    parse_pin,
    peer_allowed,
    route,
)

LOADED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,15}", fullmatch=True)


def rail(device: str, *interfaces: str) -> Rail:
    own = [ip_interface(text) for text in interfaces]
    networks = tuple(interface.network for interface in own)
    return Rail(device, 1, 3, gid_of(own[0].ip), own[0].ip, "eth0", networks)


A = rail("a", "10.0.0.1/24")
B = rail("b", "10.0.1.1/24", "10.0.0.0/16")
SIX = rail("six", "fd00::1/64")
LINK = rail("link", "fe80::1/64")


def gid(text: str) -> bytes:
    return gid_of(ip_address(text))


@LOADED
@given(st.binary(min_size=16, max_size=16))
def test_a_gid_is_an_address_and_back(raw: bytes) -> None:
    assert gid_of(address_of(raw)) == raw


@LOADED
@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_an_address_is_a_gid_and_back(address: IPv4Address | IPv6Address) -> None:
    assume(isinstance(address, IPv4Address) or address.ipv4_mapped is None)
    assert address_of(gid_of(address)) == address


def test_the_gid_of_the_wire_contract() -> None:
    assert gid("127.0.0.1").hex() == "00000000000000000000ffff7f000001"
    with pytest.raises(ValueError, match="16 bytes"):
        address_of(b"short")


@LOADED
@given(NAMES, st.none() | st.integers(1, 999), st.none() | st.integers(0, 99999))
def test_a_pin_is_its_text(device: str, port: int | None, index: int | None) -> None:
    pin = Pin(device, port, index if port is not None else None)
    assert parse_pin(str(pin)) == pin


@LOADED
@given(st.text(max_size=20))
def test_any_text_is_a_pin_or_a_value_error(text: str) -> None:
    try:
        pin = parse_pin(text)
    except ValueError:
        return
    assert text.strip() == f"{pin}" or text.strip().startswith(f"{pin.device}:")


@pytest.mark.parametrize("text", ["", ":1", "mlx5_0:", "mlx5_0:0", "mlx5_0:1:", "mlx5_0:1:2:3", "mlx5_0:x", "a b"])
def test_what_is_no_pin(text: str) -> None:
    with pytest.raises(ValueError, match=r"mlx5_0:1:3|ports count from 1"):
        parse_pin(text)


def test_the_longest_subnet_goes_first_then_the_router() -> None:
    assert route([B, A, SIX], gid("10.0.0.9")) == [A, B]
    assert route([A, B, SIX], gid("10.0.7.9")) == [B, A]
    assert route([A, B, SIX], gid("192.0.2.1")) == [A, B]
    assert route([A, SIX], gid("fd00::2")) == [SIX]
    assert route([A], gid("fd00::2")) == []


def test_this_machines_own_gid_goes_first() -> None:
    other = rail("c", "10.0.0.2/24")
    assert route([A, other], gid("10.0.0.2")) == [other, A]


def test_link_local_peers_are_for_link_local_rails() -> None:
    assert route([SIX, LINK], gid("fe80::9")) == [LINK]
    assert route([SIX, LINK], gid("fd00::9")) == [SIX]


@pytest.mark.parametrize("peer", ["::", "0.0.0.0", "224.0.0.1", "ff02::1"])
def test_no_way_to_nobody_or_to_everybody(peer: str) -> None:
    assert route([A, B, SIX, LINK], gid(peer)) == []
    assert not peer_allowed(gid(peer), [ip_network("0.0.0.0/0"), ip_network("::/0")], [A])


def test_allowed_peers_are_the_own_subnets_unless_others_are_named() -> None:
    assert peer_allowed(gid("10.0.0.200"), [], [A])
    assert not peer_allowed(gid("10.0.1.200"), [], [A])
    assert peer_allowed(gid("10.0.1.200"), [], [A, B])
    assert not peer_allowed(gid("10.0.0.200"), [ip_network("10.9.0.0/16")], [A])
    assert peer_allowed(gid("10.9.0.1"), [ip_network("fd00::/8"), ip_network("10.9.0.0/16")], [A])
    assert not peer_allowed(gid("fd00::1"), [ip_network("10.9.0.0/16")], [SIX])
    assert not peer_allowed(gid("10.0.0.200"), [], [])


@LOADED
@given(st.lists(st.sampled_from([A, B, SIX, LINK]), unique=True), st.binary(min_size=16, max_size=16))
def test_routes_are_rails_of_the_peers_family(rails: list[Rail], peer: bytes) -> None:
    found = route(rails, peer)
    assert len(set(found)) == len(found)
    assert set(found) <= set(rails)
    assert all(one.address.version == address_of(peer).version for one in found)
    if peer_allowed(peer, [], rails) and not address_of(peer).is_loopback:
        assert found, "what may be reached has a rail in its subnet"


ADDRESSES = ["10.0.0.1", "10.1.0.1", "fd00::1", "fe80::1", "127.0.0.1", "10.0.0.77"]
ENTRIES = st.lists(
    st.builds(
        GidEntry,
        st.integers(0, 15),
        st.sampled_from([gid(text) for text in ADDRESSES]),
        st.sampled_from(["RoCE v2", "IB/RoCE v1", ""]),
        st.sampled_from(["eth0", "eth0.7", "gone", ""]),
    ),
    max_size=6,
    unique_by=lambda entry: entry.index,
)
PORTS = st.builds(
    Port,
    st.integers(1, 2),
    st.sampled_from(["ACTIVE", "DOWN", ""]),
    st.sampled_from(["Ethernet", "InfiniBand", ""]),
    gids=ENTRIES.map(tuple),
)
DEVICES = st.builds(
    Device,
    st.sampled_from(["mlx5_0", "mlx5_1", "rxe0"]),
    st.sampled_from(["mlx5", "rxe"]),
    st.lists(PORTS, max_size=2, unique_by=lambda port: port.number).map(tuple),
    st.sampled_from(["CA", "RNIC"]),
)
NETDEVS = {
    "eth0": Netdev("eth0", 1500, "", (ip_interface("10.0.0.1/24"), ip_interface("fd00::1/64"))),
    "eth0.7": Netdev("eth0.7", 1500, "vlan", (ip_interface("10.1.0.1/24"), ip_interface("fe80::1/64"))),
}
PINS = st.lists(st.sampled_from(["mlx5_0", "mlx5_1:1", "rxe0:1:3", "rxe0:2", "absent"]), max_size=3)


@LOADED
@given(st.lists(DEVICES, max_size=3, unique_by=lambda device: device.name), PINS)
def test_every_device_is_explained_and_every_rail_can_be_bound(devices: list[Device], pins: list[str]) -> None:
    inventory = Inventory(tuple(devices), NETDEVS)
    verdicts = explain(inventory, pins)
    assert {device.name for device in devices} <= {verdict.device for verdict in verdicts}
    assert all(verdict.text for verdict in verdicts)
    rails = choose(inventory, pins)
    assert len(set(rails)) == len(rails)
    for chosen in rails:
        device = next(device for device in devices if device.name == chosen.device)
        port = next(port for port in device.ports if port.number == chosen.port)
        entry = next(entry for entry in port.gids if entry.index == chosen.gid_index)
        assert (port.state, port.link_layer, device.node) == ("ACTIVE", "Ethernet", "CA")
        assert (entry.type, entry.gid, entry.netdev) == ("RoCE v2", chosen.gid, chosen.netdev)
        assert address_of(chosen.gid) in [interface.ip for interface in NETDEVS[chosen.netdev].addresses]
        assert pins or not chosen.address.is_link_local
