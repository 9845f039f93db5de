"""The verbs base without a device: what is missing is said, and C layouts are the headers'."""

import asyncio
import ctypes
import ipaddress
import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3verbs.rdma.verbs import api, cm, memory, opened_device
from s3verbs.rdma.verbs import fabric as fabric_module
from s3verbs.rdma.verbs.api import Context, QueuePair, VerbsError, VerbsUnavailable
from s3verbs.rdma.verbs.attributes import DeviceLimits, LocalSpan, PortState, QueuePairAttributes
from s3verbs.rdma.verbs.cm_structs import AhAttrStruct, CmEventStruct, CmIdStruct, ConnParamStruct, QpAttrStruct
from s3verbs.rdma.verbs.constants import QueuePairMask, QueuePairState
from s3verbs.rdma.verbs.device import Device, GidEntry, Inventory, Netdev, Port
from s3verbs.rdma.verbs.options import VerbsOptions
from tests.fake_rc import FakeQueue, Memory


@pytest.fixture
def no_pyverbs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "pyverbs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyverbs", None)


@pytest.mark.usefixtures("no_pyverbs")
def test_a_missing_pyverbs_is_named_with_what_to_install() -> None:
    for call in (api.load, api.version, api.device_names, lambda: Context("mlx5_0")):
        with pytest.raises(VerbsUnavailable, match=r"apt install python3-pyverbs.*pip install pyverbs"):
            call()


def test_a_pyverbs_of_another_rdma_core_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ImportError("libibverbs.so.1: version `IBVERBS_PRIVATE_59' not found")

    monkeypatch.setattr(api.importlib, "import_module", refuse)
    with pytest.raises(VerbsUnavailable, match="does not match the verbs library"):
        api.load()


def test_a_missing_librdmacm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, **_: object) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(cm.ctypes, "CDLL", refuse)
    monkeypatch.setattr(cm, "_librdmacm", cm._librdmacm.__wrapped__)
    with pytest.raises(VerbsUnavailable, match="install librdmacm1"):
        cm.load()


@pytest.fixture
def fake_pyverbs(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[object]]:
    """pyverbs reduced to what a queue pair touches; its import behaves as badly as the real one's."""
    calls: dict[str, list[object]] = {"wr": [], "qp": [], "closed": []}

    class PyverbsError(Exception):
        pass

    class PyverbsRDMAError(PyverbsError):
        def __init__(self, text: str, code: int) -> None:
            super().__init__(text)
            self.error_code = code

    class Closing:
        def close(self) -> None:
            calls["closed"].append(type(self).__name__)

    class SGE(Closing):
        def __init__(self, *values: int) -> None:
            self.values = values

    class SendWR(Closing):
        def __init__(self, **values: object) -> None:
            self.values = values

        def set_wr_rdma(self, rkey: int, address: int) -> None:
            self.remote = (rkey, address)

    class QP(Closing):
        qp_num = 17
        refuse = 0

        def __init__(self, *_: object) -> None:
            pass

        def post_send(self, wr: SendWR) -> None:
            if QP.refuse:
                raise PyverbsRDMAError("full", QP.refuse)
            calls["wr"].append((wr.values["wr_id"], wr.values["opcode"], wr.values["sg"][0].values, wr.remote))

        def modify(self, attributes: object, mask: int) -> None:
            calls["qp"].append((attributes, mask))

    modules = {
        "pyverbs": {},
        "pyverbs.pyverbs_error": {"PyverbsError": PyverbsError},
        "pyverbs.wr": {"SGE": SGE, "SendWR": SendWR},
        "pyverbs.qp": {
            "QP": QP,
            "QPCap": SimpleNamespace,
            "QPInitAttr": SimpleNamespace,
            "QPAttr": SimpleNamespace,
        },
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return calls


def queue_pair() -> QueuePair:
    return QueuePair(SimpleNamespace(raw=None), SimpleNamespace(raw=None), 32)


def test_work_requests(fake_pyverbs: dict[str, list[object]]) -> None:
    pair = queue_pair()
    pair.post_read(5, LocalSpan(0x1000, 64, 3), 0x2000, 9)
    pair.post_write(6, LocalSpan(0x3000, 32, 3), 0x4000, 9)
    ibv_wr_rdma_write, ibv_wr_rdma_read = 0, 4
    assert fake_pyverbs["wr"] == [
        (5, ibv_wr_rdma_read, (0x1000, 64, 3), (9, 0x2000)),
        (6, ibv_wr_rdma_write, (0x3000, 32, 3), (9, 0x4000)),
    ]
    assert sorted(fake_pyverbs["closed"]) == ["SGE", "SGE", "SendWR", "SendWR"]


def test_a_refused_work_request_frees_its_parts(fake_pyverbs: dict[str, list[object]]) -> None:
    pair = queue_pair()
    sys.modules["pyverbs.qp"].QP.refuse = 12
    with pytest.raises(VerbsError) as error:
        pair.post_read(5, LocalSpan(0x1000, 64, 3), 0x2000, 9)
    assert error.value.code == 12
    assert sorted(fake_pyverbs["closed"]) == ["SGE", "SendWR"]


def test_attributes_reach_pyverbs_under_its_names(fake_pyverbs: dict[str, list[object]]) -> None:
    mask = QueuePairMask.STATE | QueuePairMask.TIMEOUT
    queue_pair().modify(QueuePairAttributes(mask, QueuePairState.RTS, timeout=16, retry_cnt=7, max_rd_atomic=4, port=1))
    ((raw, passed),) = fake_pyverbs["qp"]
    assert passed == 1 | 1 << 9
    assert (raw.qp_state, raw.timeout, raw.retry_cnt, raw.max_rd_atomic, raw.port_num) == (3, 16, 7, 4, 1)


def test_a_channel_that_hides_its_descriptor_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # The second answer has two new ones: another thread opened a device meanwhile.
    seen = iter([{3}, {3, 8, 9}, {3, 8}, {3, 8, 11}])
    monkeypatch.setattr(api, "_event_descriptors", lambda: next(seen))
    closed = []
    module = SimpleNamespace(CompChannel=lambda _: SimpleNamespace(close=lambda: closed.append(True)))
    _, descriptor = api._channel(module, SimpleNamespace(raw=None))
    assert (descriptor, closed) == (11, [True])


def test_a_channel_that_tells_its_descriptor_is_believed() -> None:
    module = SimpleNamespace(CompChannel=lambda _: SimpleNamespace(fd=42))
    assert api._channel(module, SimpleNamespace(raw=None))[1] == 42


def test_importing_pyverbs_leaves_the_root_logger_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)

    def noisy(name: str) -> ModuleType:
        root.addHandler(logging.NullHandler())
        root.setLevel(logging.DEBUG)
        return ModuleType(name)

    monkeypatch.setattr(api.importlib, "import_module", noisy)
    api.load()
    assert (root.handlers, root.level) == before


def test_c_layouts() -> None:
    # offsetof and sizeof of rdma-core's headers on 64-bit machines.
    assert CmIdStruct.source.offset == 32
    assert CmIdStruct.destination.offset == 160
    assert CmIdStruct.path_rec.offset == 328
    assert CmIdStruct.port_num.offset == 348
    assert ConnParamStruct.qp_num.offset == 16
    assert CmEventStruct.conn.offset == 24
    assert (AhAttrStruct.dlid.offset, AhAttrStruct.port_num.offset, ctypes.sizeof(AhAttrStruct)) == (24, 30, 32)
    assert (QpAttrStruct.ah_attr.offset, QpAttrStruct.pkey_index.offset) == (56, 120)
    assert (QpAttrStruct.rate_limit.offset, ctypes.sizeof(QpAttrStruct)) == (136, 144)


@given(st.ip_addresses(), st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF))
def test_socket_addresses_round_trip(address: ipaddress.IPv4Address, port: int, scope: int) -> None:
    peer = cm.Peer(address, port, scope if address.version == 6 else 0)
    raw = cm._sockaddr(peer)
    assert len(raw) == (16 if address.version == 4 else 28)
    assert cm._peer(raw + bytes(128 - len(raw))) == peer


@given(st.integers(0, (1 << 26) - 1), st.integers(0, 6))
def test_attributes_of_rdma_cm_keep_what_the_mask_names(mask: int, state: int) -> None:
    raw = QpAttrStruct(qp_state=state, path_mtu=5, rq_psn=77, dest_qp_num=9, timeout=19, port_num=2)
    raw.ah_attr.is_global, raw.ah_attr.sgid_index, raw.ah_attr.port_num = 1, 3, 1
    found = cm._attributes(raw, mask)
    assert (found.state, found.path_mtu, found.rq_psn, found.dest_qp_num, found.timeout) == (state, 5, 77, 9, 19)
    if mask & QueuePairMask.AV:
        assert found.address is not None
        assert (found.address.gid, found.address.gid_index, found.address.port) == (bytes(16), 3, 1)
    else:
        assert found.address is None


# --- opening


class Opened:
    """Every verbs object that the fakes below have made, and whether it is closed; `refuse` makes one of them fail."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.closed: list[str] = []
        self.refuse: dict[str, VerbsError] = {}
        self.limits = DeviceLimits(1000, 1000, 1000, 16, 16)
        self.port = PortState(True, True, 0, 5, 1 << 30)

    def part(self, kind: str) -> type:
        opened = self

        class Part(FakeQueue):
            def __init__(self, owner: object, *values: object) -> None:
                if kind in opened.refuse:
                    raise opened.refuse[kind]
                super().__init__()
                self.name = owner
                self.context = owner
                self.values = values
                self.lkey = self.rkey = 7
                opened.open.append(kind)

            def limits(self) -> DeviceLimits:
                return opened.limits

            def port(self, number: int) -> PortState:
                return opened.port

            def close(self) -> None:
                super().close()
                opened.open.remove(kind)
                opened.closed.append(kind)

        return Part


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    found = Opened()
    monkeypatch.setattr(opened_device, "Context", found.part("context"))
    monkeypatch.setattr(opened_device, "ProtectionDomain", found.part("domain"))
    monkeypatch.setattr(opened_device, "CompletionQueue", found.part("queue"))
    monkeypatch.setattr(memory, "MemoryRegion", found.part("region"))
    monkeypatch.setattr(fabric_module.api, "load", lambda: None)
    monkeypatch.setattr(fabric_module.cm, "load", lambda: None)
    addresses = (ipaddress.ip_interface("10.1.0.1/16"),)
    gid = GidEntry(3, bytes(10) + b"\xff\xff\x0a\x01\x00\x01", "RoCE v2", "eth0")
    devices = (Device("mlx5_0", "mlx5", (Port(1, "ACTIVE", "Ethernet", gids=(gid,)),)),)
    inventory = Inventory(devices, {"eth0": Netdev("eth0", 9000, addresses=addresses)})
    monkeypatch.setattr(fabric_module, "read_inventory", lambda: inventory)
    return found


class Arena(Memory):
    size = 1 << 20


async def open_and_close(options: VerbsOptions = VerbsOptions()) -> str:  # noqa: B008
    fabric = fabric_module.open_verbs(options, Arena(1), asyncio.get_running_loop())
    text = fabric.describe()
    await fabric.close()
    return text


async def test_a_fabric_closes_what_it_opened_in_order(opened: Opened) -> None:
    assert "mlx5_0:1:3 (10.1.0.1 on eth0)" in await open_and_close()
    assert not opened.open
    assert opened.closed == ["region", "domain", "queue", "context"]


@pytest.mark.parametrize("kind", ["context", "domain", "queue", "region"])
async def test_whatever_cannot_be_opened_nothing_stays_open(opened: Opened, kind: str) -> None:
    opened.refuse[kind] = VerbsError("no", 13)
    with pytest.raises(VerbsUnavailable, match="mlx5_0"):
        await open_and_close()
    assert not opened.open


async def test_a_memlock_limit_is_named(opened: Opened) -> None:
    opened.refuse["region"] = VerbsError("no", 12)
    with pytest.raises(VerbsUnavailable, match="limit of locked memory"):
        await open_and_close()
    assert not opened.open


async def test_devices_too_small_for_a_chunk_are_refused(opened: Opened) -> None:
    opened.port = PortState(True, True, 0, 5, 4096)
    with pytest.raises(VerbsUnavailable, match="only 4096 bytes"):
        await open_and_close()
    assert not opened.open


async def test_devices_without_resources_are_refused(opened: Opened) -> None:
    opened.limits = DeviceLimits(0, 1000, 1000, 16, 16)
    with pytest.raises(VerbsUnavailable, match="too few resources"):
        await open_and_close()
    assert not opened.open


async def test_a_pin_that_is_not_here_is_named(opened: Opened) -> None:
    with pytest.raises(VerbsUnavailable, match="mlx5_9: pinned"):
        await open_and_close(VerbsOptions(devices=("mlx5_9",)))


async def test_no_device_at_all(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric_module, "read_inventory", Inventory)
    with pytest.raises(VerbsUnavailable, match="no RDMA device"):
        await open_and_close()


def test_spans_stay_inside_the_arena(opened: Opened) -> None:
    arena = Arena(1)
    registered = memory.RegisteredArena(SimpleNamespace(context=SimpleNamespace(name="mlx5_0")), arena)
    assert registered.span(arena.address + 10, 20) == LocalSpan(arena.address + 10, 20, 7)
    for address, length in ((arena.address - 1, 2), (arena.address + arena.size - 1, 2), (arena.address, 0)):
        with pytest.raises(ValueError, match="staging arena"):
            registered.span(address, length)
    registered.close()
    assert not opened.open
