"""What a client says where it has no RDMA device; the rest of its RC transport needs one: tests/rdma_vm."""

from ipaddress import IPv4Interface

import pytest

from s3verbs.rdma.client import verbs
from s3verbs.rdma.client.transport import TransportUnavailable
from s3verbs.rdma.client.verbs import RcTransport
from s3verbs.rdma.verbs.device import Device, GidEntry, Inventory, Netdev, Port
from s3verbs.rdma.verbs.errors import VerbsUnavailable

GID = bytes(10) + b"\xff\xff\x0a\x00\x00\x01"


def inventory(state: str) -> Inventory:
    port = Port(1, state, "Ethernet", gids=(GidEntry(1, GID, "RoCE v2", "eth0"),))
    netdev = Netdev("eth0", 9000, addresses=(IPv4Interface("10.0.0.1/24"),))
    return Inventory((Device("mlx5_0", "mlx5", (port,)),), {"eth0": netdev})


def refusal(monkeypatch: pytest.MonkeyPatch, found: Inventory, *pins: str) -> str:
    monkeypatch.setattr(verbs, "read_inventory", lambda: found)
    with pytest.raises(TransportUnavailable) as refused:
        RcTransport(pins)
    return str(refused.value)


def test_a_machine_without_a_device_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no RDMA device" in refusal(monkeypatch, Inventory())


def test_a_device_that_is_down_is_named_with_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "mlx5_0: the port is DOWN" in refusal(monkeypatch, inventory("DOWN"))


@pytest.mark.parametrize("pin", ["mlx5_9", "mlx5_0:2", "mlx5_0:1:77", "mlx5_0:x"])
def test_a_pin_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch, pin: str) -> None:
    assert pin.split(":")[0] in refusal(monkeypatch, inventory("ACTIVE"), pin)


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: object) -> None:
        raise VerbsUnavailable("pyverbs is not installed")

    monkeypatch.setattr(verbs, "ClientRail", missing)
    assert "pyverbs is not installed" in refusal(monkeypatch, inventory("ACTIVE"))
