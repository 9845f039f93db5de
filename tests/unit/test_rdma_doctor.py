"""What the doctor says of machines that are made up here."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path
from typing import Any

import pytest

from s3verbs.rdma.doctor import Plan, client_findings, server_findings
from s3verbs.rdma.machine import Attach, Gpu, Machine
from s3verbs.rdma.survey import Endpoint, SocketPlace, Survey
from s3verbs.rdma.verbs.device import Device, GidEntry, Inventory, Netdev, Port, explain, gid_of

MIB = 1 << 20
PLAIN = Machine(
    kernel=(6, 1),
    locked_memory=None,
    huge_page=2 * MIB,
    huge_pages=0,
    huge_pages_free=0,
    transparent="madvise",
    attach=Attach.RESTRICTED,
    may_attach_any=False,
    gpus=(),
    cm_device=True,
)
PLACE = SocketPlace(Path("/run/s3verbs/9000.sock"))


def bare(**changes: Any) -> Survey:
    """A machine without RDMA devices."""
    given = Survey(
        machine=PLAIN,
        inventory=Inventory(),
        verdicts=(),
        verbs_problem="pyverbs is not installed: install python3-pyverbs",
        sockets=(PLACE,),
        uid=1000,
    )
    return replace(given, **changes)


def equipped(
    *drivers: str, pins: tuple[str, ...] = (), state: str = "ACTIVE", prefix: int = 24, **changes: Any
) -> Survey:
    """With one device for each driver, and pyverbs."""
    devices, netdevs = [], {}
    for number, driver in enumerate(drivers):
        interface = ip_interface(f"10.77.{number}.1/{prefix}")
        gid = GidEntry(3, gid_of(interface.ip), "RoCE v2", f"eth{number}")
        port = Port(1, state, "Ethernet", "100 Gb/sec (4X EDR)", 4096, (gid,))
        devices.append(Device(f"{driver}_{number}", driver, (port,), "CA", "28.39.3560", f"uverbs{number}"))
        netdevs[f"eth{number}"] = Netdev(f"eth{number}", 9000, "", (interface,))
    inventory = Inventory(tuple(devices), netdevs)
    given = bare(
        inventory=inventory,
        verdicts=tuple(explain(inventory, pins)),
        verbs="pyverbs (56 or older)",
        verbs_problem="",
        seen=frozenset(device.name for device in devices),
    )
    return replace(given, **changes)


def server(survey: Survey, **plan: Any) -> dict[str, str]:
    """Text -> state."""
    return {text: state for state, text in server_findings(Plan(**{"pool": 64 * MIB, **plan}), survey)}


def client(endpoint: Endpoint, survey: Survey) -> dict[str, str]:
    return {text: state for state, text in client_findings(endpoint, survey)}


def at(address: str, *, local: bool = False, problem: str = "") -> Endpoint:
    return Endpoint(f"http://{address}:9000", address, 9000, ip_address(address), local, problem)


def one(found: dict[str, str], part: str) -> tuple[str, str]:
    """The one finding with this text in it: (state, text)."""
    fitting = [(state, text) for text, state in found.items() if part in text]
    assert len(fitting) == 1, (part, list(found))
    return fitting[0]


def problems(found: dict[str, str]) -> list[str]:
    return [text for text, state in found.items() if state == "problem"]


def test_a_machine_without_devices_has_no_problem() -> None:
    found = server(bare())
    assert problems(found) == []
    assert one(found, "a client on this machine") == ("ok", "a client on this machine gets the same-host transport")
    assert "does not get RC: there is no RDMA device" in one(found, "a client with an RDMA device")[1]
    assert "locked memory" not in str(found)


def test_required_without_devices_is_a_problem() -> None:
    assert problems(server(bare(), mode="required")) == [
        "RDMA is required (rdma = required), and no device can be used"
    ]


def test_off_says_so_and_has_no_problem() -> None:
    survey = equipped("rxe", pins=("absent",), machine=replace(PLAIN, locked_memory=1))
    found = server(survey, mode="off")
    assert problems(found) == []
    assert one(found, "clients get")[1] == "clients get HTTP: RDMA is off"


def test_a_soft_roce_server() -> None:
    found = server(equipped("rxe"))
    assert problems(found) == []
    assert one(found, "Soft-RoCE")[0] == "info"
    assert one(found, "is used")[1] == "rxe_0 port 1 is used: GID 3 (10.77.0.1 on eth0): the only RoCE v2 address"
    assert one(found, "gets RC") == ("ok", "a client with an RDMA device in 10.77.0.0/24 gets RC")
    assert "does not get DC: DC needs an mlx5 device and this is rxe" in one(found, "DC tokens")[1]
    assert "access key" not in str(found)


def test_a_connectx_server_and_its_key() -> None:
    found = server(equipped("mlx5"))
    assert "0xffeeddcc, the default that every installation knows" in one(found, "DC access key")[1]
    assert one(found, "DC tokens") == (
        "ok",
        "a client with DC tokens (cuObject, NIXL) gets DC, which has not run on hardware yet",
    )
    assert "access key" not in str(server(equipped("mlx5"), dc_key=0x12345678))


def test_allowed_peers_are_told() -> None:
    found = server(equipped("rxe"), allowed_peers=(ip_network("10.9.0.0/16"),))
    assert one(found, "gets RC")[1] == "a client with an RDMA device in 10.9.0.0/16 gets RC"


def test_without_a_socket() -> None:
    found = server(bare(), same_host=False)
    assert one(found, "a client on this machine")[1].endswith("does not get the same-host transport: socket = off")
    assert "ptrace" not in str(found)


def test_routed_networks_have_no_neighbours() -> None:
    found = server(equipped("rxe", prefix=32))
    assert problems(found) == [
        "RDMA peers: no other machine is in 10.77.0.1/32; name the clients' networks in rdma_allowed_peers"
    ]
    assert problems(server(equipped("rxe", prefix=32), allowed_peers=(ip_network("10.77.0.0/16"),))) == []


@pytest.mark.parametrize(("limit", "state"), [(127 * MIB, "problem"), (128 * MIB, "ok")])
def test_every_device_pins_the_pool(limit: int, state: str) -> None:
    found = server(equipped("rxe", "mlx5", machine=replace(PLAIN, locked_memory=limit)))
    told = one(found, "locked memory")
    assert told[0] == state
    assert told[1].startswith("locked memory: 128 MiB for each worker (64 MiB for each of 2 devices); the limit is")


def test_a_pin_that_cannot_be_used_is_a_problem() -> None:
    assert problems(server(equipped("rxe", pins=("rxe_0", "mlx5_0")))) == [
        "mlx5_0 is not used: pinned, but not here; devices: rxe_0"
    ]
    down = server(equipped("rxe", state="DOWN"))
    assert problems(down) == []
    assert one(down, "is not used") == ("info", "rxe_0 port 1 is not used: the port is DOWN")
    assert "does not get RC: no device can be used" in one(down, "a client with an RDMA device")[1]


def test_devices_without_pyverbs_are_a_problem() -> None:
    found = server(equipped("rxe", verbs="", verbs_problem="pyverbs is not installed", seen=frozenset()))
    assert problems(found) == ["verbs: pyverbs is not installed"]
    assert "does not get RC: pyverbs cannot be used" in one(found, "a client with an RDMA device")[1]


def test_what_containers_lack() -> None:
    survey = equipped("rxe", "mlx5", closed={"rxe_0": "uverbs0"}, seen=frozenset({"rxe_0"}))
    found = server(replace(survey, machine=replace(PLAIN, cm_device=False)))
    assert [text.partition(":")[0] for text in problems(found)] == [
        "mlx5_1",
        "rxe_0",
        "/dev/infiniband/rdma_cm cannot be opened",
    ]
    assert "does not get RC: the devices cannot be opened" in one(found, "a client with an RDMA device")[1]


@pytest.mark.parametrize(
    ("attach", "capable", "reachable"),
    [
        (None, False, True),
        (Attach.CLASSIC, False, True),
        (Attach.RESTRICTED, False, True),
        (Attach.ADMIN_ONLY, False, False),
        (Attach.ADMIN_ONLY, True, True),
        (Attach.NONE, True, False),
    ],
)
def test_yama_and_the_same_host(attach: Attach | None, capable: bool, reachable: bool) -> None:
    found = server(bare(machine=replace(PLAIN, attach=attach, may_attach_any=capable)))
    assert (one(found, "a client on this machine")[0] == "ok") is reachable


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (replace(PLAIN, huge_pages=32, huge_pages_free=32), "32 of 2 MiB free"),
        (PLAIN, "0 of 2 MiB free; the pool of 64 MiB uses transparent ones (madvise)"),
        (replace(PLAIN, transparent="never"), "transparent ones are off: the pool is in ordinary pages"),
    ],
)
def test_huge_pages(machine: Machine, words: str) -> None:
    assert one(server(equipped("rxe", machine=machine)), "huge pages")[1].endswith(words)


def test_a_client_on_the_servers_own_machine() -> None:
    found = client(at("127.0.0.1", local=True), bare(sockets=(replace(PLACE, there=True),)))
    assert problems(found) == []
    assert one(found, "a client here gets") == (
        "ok",
        "a client here gets from http://127.0.0.1:9000: the same-host transport",
    )
    untrusted = replace(PLACE, there=True, problem="uid 7 is there, which is not trusted")
    found = client(at("127.0.0.1", local=True), bare(sockets=(untrusted,)))
    assert one(found, "a client here gets")[1].endswith(": HTTP")
    assert one(found, "uid 7")[0] == "info"


def test_a_client_on_a_gpu_node() -> None:
    gpu = Gpu("nvidia", "570.86.15", open_module=True)
    found = client(at("10.77.0.9"), equipped("mlx5", machine=replace(PLAIN, gpus=(gpu,))))
    assert problems(found) == []
    assert one(found, "not same host")[1] == "not same host: the endpoint is on another machine"
    assert one(found, "GPU memory")[0] == "ok"
    assert one(found, "a client here gets")[1].endswith(
        "RC, when the server has it: it connects to mlx5_0:1:3 (10.77.0.1 on eth0), in the endpoint's own subnet"
    )


def test_a_client_whose_rails_are_not_in_the_endpoints_network() -> None:
    found = client(at("192.0.2.1"), equipped("mlx5"))
    assert one(found, "a client here gets")[1].endswith("the server must have a way to 10.77.0.0/24 and allow it")


def test_a_client_with_nothing() -> None:
    found = client(at("192.0.2.1"), bare())
    assert one(found, "not RC")[1] == "not RC: there is no RDMA device"
    assert one(found, "a client here gets") == ("info", "a client here gets from http://192.0.2.1:9000: HTTP")


def test_an_endpoint_that_does_not_answer_is_the_problem() -> None:
    found = client(at("192.0.2.1", problem="192.0.2.1 port 9000: timed out"), bare())
    assert problems(found) == ["endpoint http://192.0.2.1:9000: 192.0.2.1 port 9000: timed out"]
    assert "a client here gets" not in str(found)


@pytest.mark.parametrize(
    ("gpu", "kernel", "state", "words"),
    [
        (Gpu("nvidia", "535.1", peer_memory=True), (5, 4), "ok", "by nvidia_peermem"),
        (Gpu("nvidia", "570.1", open_module=True), (5, 4), "info", "no way for RDMA"),
        (Gpu("nvidia", "535.1"), (6, 1), "info", "no way for RDMA"),
        (Gpu("amdgpu", "", open_module=True), (6, 1), "ok", "by dma-buf"),
        (Gpu("amdgpu", "", open_module=True), (5, 4), "info", "dma-buf needs Linux 5.12"),
    ],
)
def test_gpu_memory(gpu: Gpu, kernel: tuple[int, int], state: str, words: str) -> None:
    found = client(at("10.77.0.9"), equipped("mlx5", machine=replace(PLAIN, gpus=(gpu,), kernel=kernel)))
    told = one(found, "GPU memory")
    assert told[0] == state
    assert words in told[1]
