"""A model of pyverbs with one mlx5 device, as far as DC initiators need it.

It stands in for pyverbs itself, under `rdma/verbs/api`, so the very calls are checked: their order, and what the mlx5
driver demands of each (drivers/infiniband/hw/mlx5/qp.c, modify_dci_qp_is_ok). Work requests move real bytes between
this process and the memory of made-up clients. What real hardware does beyond that, it cannot tell.
"""

import ctypes
import errno
import os
import sys
from collections import deque
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

SUCCESS, LOC_PROT_ERR, WR_FLUSH_ERR, REM_ACCESS_ERR, RETRY_EXC_ERR = 0, 4, 5, 10, 12
RESET, INIT, RTR, RTS, ERR = 0, 1, 2, 3, 6
STATE, PKEY_INDEX, PORT, PATH_MTU = 1 << 0, 1 << 4, 1 << 5, 1 << 8
TIMEOUT, RETRY_CNT, RNR_RETRY, MAX_QP_RD_ATOMIC, SQ_PSN = 1 << 9, 1 << 10, 1 << 11, 1 << 13, 1 << 16

_DEMANDED = {
    (RESET, INIT): STATE | PKEY_INDEX | PORT,
    (INIT, RTR): STATE | PATH_MTU,
    (RTR, RTS): STATE | TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC,
}


class PyverbsError(Exception):
    pass


class PyverbsRDMAError(PyverbsError):
    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.error_code = code


@dataclass
class Client:
    """A process with a DC target: its GID, the target's number and access key, and one memory region."""

    gid: bytes
    target: int
    key: int
    address: int
    rkey: int
    memory: bytearray
    silent: bool = False
    """It never acknowledges."""


@dataclass(frozen=True)
class Request:
    """A posted work request, as the device got it. `route` are the arguments of the address handle."""

    qp: int
    work: int
    read: bool
    rkey: int
    remote: int
    route: tuple[tuple[str, Any], ...]
    target: int
    key: int
    lkey: int
    local: int
    length: int


@dataclass
class Adapter:
    """The device. `held`: work requests wait for `release`. `absent`: GIDs that do not resolve."""

    clients: list[Client] = field(default_factory=list)
    absent: set[bytes] = field(default_factory=set)
    held: bool = False
    has_dc: bool = True
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    live: dict[str, int] = field(default_factory=dict)
    """Objects that are not closed, by kind."""
    most_posted: dict[int, int] = field(default_factory=dict)
    regions: dict[int, tuple[int, int]] = field(default_factory=dict)
    queue_pairs: "dict[int, Mlx5QP]" = field(default_factory=dict)
    made: int = 0
    serial: int = 0x40

    def number(self) -> int:
        self.serial += 1
        return self.serial

    def count(self, kind: str, change: int) -> None:
        self.live[kind] = self.live.get(kind, 0) + change

    def release(self) -> None:
        """Execute what was held, and hold nothing more."""
        self.held = False
        for queue_pair in list(self.queue_pairs.values()):
            queue_pair.run()

    def finish(self, target: int) -> None:
        """Execute what is posted for one target; hold the rest."""
        self.held = False
        for queue_pair in list(self.queue_pairs.values()):
            if queue_pair.posted and queue_pair.posted[0].target == target:
                queue_pair.run()
        self.held = True

    def posted(self, target: int) -> int:
        return sum(one.target == target for queue_pair in self.queue_pairs.values() for one in queue_pair.posted)

    @property
    def in_flight(self) -> int:
        return sum(len(queue_pair.posted) for queue_pair in self.queue_pairs.values())

    def execute(self, request: Request) -> int:
        begin, size = self.regions.get(request.lkey, (0, 0))
        if not begin <= request.local <= request.local + request.length <= begin + size:
            return LOC_PROT_ERR
        gid = dict(request.route)["dgid"]
        client = next((one for one in self.clients if (one.gid, one.target) == (gid, request.target)), None)
        if client is None or client.silent:
            return RETRY_EXC_ERR
        offset = request.remote - client.address
        inside = 0 <= offset <= offset + request.length <= len(client.memory)
        if client.key != request.key or client.rkey != request.rkey or not inside:
            return REM_ACCESS_ERR
        local = (ctypes.c_char * request.length).from_address(request.local)
        if request.read:
            local[:] = bytes(client.memory[offset : offset + request.length])
        else:
            client.memory[offset : offset + request.length] = bytes(local)
        return SUCCESS


class Closeable:
    kind = ""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.closed = False
        adapter.count(type(self).__name__, 1)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.adapter.count(type(self).__name__, -1)


class Context(Closeable):
    def query_device(self) -> Any:
        return Values(max_qp=1000, max_qp_wr=8192, max_cqe=1 << 20, max_qp_rd_atom=16, max_qp_init_rd_atom=12)

    def query_port(self, number: int) -> Any:
        assert number == 1
        return Values(state=4, link_layer=2, lid=0, active_mtu=5, max_msg_sz=1 << 30)


class Values:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class MR(Closeable):
    def __init__(self, adapter: Adapter, length: int, access: int, address: int) -> None:
        super().__init__(adapter)
        assert access == 1, "a server's arena is for its own device only"
        self.lkey = self.rkey = adapter.number()
        adapter.regions[self.lkey] = (address, length)

    def close(self) -> None:
        super().close()
        self.adapter.regions.pop(self.lkey, None)


class CompChannel(Closeable):
    fd = -1

    def __init__(self, adapter: Adapter) -> None:
        super().__init__(adapter)
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)

    def get_cq_event(self, queue: "CQ") -> None:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            raise PyverbsRDMAError("no event", errno.EAGAIN) from None

    def close(self) -> None:
        if not self.closed:
            os.close(self.fd)
        super().close()


class CQ(Closeable):
    def __init__(self, adapter: Adapter, entries: int, channel: CompChannel) -> None:
        super().__init__(adapter)
        self.channel = channel
        self.armed = False
        self.entries = entries
        self.found: deque[Any] = deque()

    def req_notify(self) -> None:
        self.armed = True

    def ack_events(self, _: int) -> None:
        pass

    def poll(self, most: int) -> tuple[int, list[Any]]:
        found = [self.found.popleft() for _ in range(min(most, len(self.found)))]
        return len(found), found

    def complete(self, work: int, status: int, qp: int) -> None:
        assert len(self.found) < self.entries, "the completion queue overruns"
        self.found.append(Values(wr_id=work, status=status, qp_num=qp, vendor_err=0))
        if self.armed:
            self.armed = False
            os.eventfd_write(self.channel.fd, 1)


class AH(Closeable):
    def __init__(self, adapter: Adapter, attr: dict[str, Any]) -> None:
        assert attr["is_global"] == 1
        if attr["dgid"] in adapter.absent:
            raise PyverbsRDMAError("Failed to create AH", errno.ETIMEDOUT)
        super().__init__(adapter)
        self.route = tuple(sorted(attr.items()))


class SGE(Closeable):
    def __init__(self, adapter: Adapter, addr: int, length: int, lkey: int) -> None:
        super().__init__(adapter)
        self.addr, self.length, self.lkey = addr, length, lkey


class Mlx5QP(Closeable):
    """Only as a DC initiator."""

    def __init__(self, adapter: Adapter, init: Values, own: Values) -> None:
        if not adapter.has_dc:
            raise PyverbsRDMAError("Failed to create MLX5 QP", errno.EOPNOTSUPP)
        super().__init__(adapter)
        assert (init.qp_type, init.comp_mask, init.send_ops_flags) == (0xFF, (1 << 0) | (1 << 6), (1 << 0) | (1 << 4))
        assert (own.comp_mask, own.dc_init_attr.dc_type) == ("MASK_DC", "DCI")
        assert init.cap.max_send_sge == 1
        self.depth = init.cap.max_send_wr
        self.queue: CQ = init.scq
        self.qp_num = adapter.number()
        self.state = RESET
        self.attributes: dict[str, Any] = {}
        self.posted: deque[Request] = deque()
        self.building: dict[str, Any] | None = None
        adapter.made += 1
        adapter.queue_pairs[self.qp_num] = self

    def modify(self, attr: Values, mask: int) -> None:
        if attr.qp_state == ERR:
            assert mask == STATE
            self.state = ERR
            self.run()
            return
        assert _DEMANDED.get((self.state, attr.qp_state)) == mask, (self.state, attr.qp_state, mask)
        self.state = attr.qp_state
        self.attributes.update({name: value for name, value in vars(attr).items() if value})

    def _call(self, name: str, *arguments: Any) -> dict[str, Any]:
        self.adapter.calls.append((name, *arguments))
        assert self.building is not None, f"{name} before wr_start"
        return self.building

    def wr_start(self) -> None:
        assert self.building is None
        self.building = {}
        self._call("wr_start")

    @property
    def wr_id(self) -> int:
        raise AssertionError

    @wr_id.setter
    def wr_id(self, work: int) -> None:
        self._call("wr_id", work)["work"] = work

    @property
    def wr_flags(self) -> int:
        raise AssertionError

    @wr_flags.setter
    def wr_flags(self, flags: int) -> None:
        self._call("wr_flags", flags)["signaled"] = flags == 1 << 1

    def wr_rdma_read(self, rkey: int, remote: int) -> None:
        self._operation("wr_rdma_read", rkey, remote, read=True)

    def wr_rdma_write(self, rkey: int, remote: int) -> None:
        self._operation("wr_rdma_write", rkey, remote, read=False)

    def _operation(self, name: str, rkey: int, remote: int, *, read: bool) -> None:
        building = self._call(name, rkey, remote)
        assert "work" in building, "wr_id counts for the request that follows it"
        building.update(read=read, rkey=rkey, remote=remote)

    def wr_set_dc_addr(self, handle: AH, target: int, key: int) -> None:
        assert not handle.closed
        building = self._call("wr_set_dc_addr", handle.route, target, key)
        assert "read" in building, "the setters follow the operation"
        building.update(route=handle.route, target=target, key=key)

    def wr_set_sge(self, sge: SGE) -> None:
        building = self._call("wr_set_sge", sge.lkey, sge.addr, sge.length)
        assert "read" in building, "the setters follow the operation"
        building.update(lkey=sge.lkey, local=sge.addr, length=sge.length)

    def wr_complete(self) -> None:
        building = self._call("wr_complete")
        self.building = None
        assert building.pop("signaled")
        if self.state == RTS and len(self.posted) >= self.depth:
            raise PyverbsRDMAError("ibv_wr_complete failed", errno.ENOMEM)
        request = Request(self.qp_num, **building)
        self.adapter.requests.append(request)
        self.posted.append(request)
        most = self.adapter.most_posted
        most[self.qp_num] = max(most.get(self.qp_num, 0), len(self.posted))
        self.run()

    def run(self) -> None:
        while self.posted and (self.state == ERR or not self.adapter.held):
            request = self.posted.popleft()
            status = WR_FLUSH_ERR if self.state == ERR else self.adapter.execute(request)
            if status != SUCCESS:
                self.state = ERR
            self.queue.complete(request.work, status, self.qp_num)

    def close(self) -> None:
        super().close()
        self.posted.clear()
        self.adapter.queue_pairs.pop(self.qp_num, None)


def install(monkeypatch: pytest.MonkeyPatch) -> Adapter:
    """Make `import pyverbs` give this model; for the time of a test."""
    adapter = Adapter()

    def module(name: str, **names: Any) -> None:
        made = ModuleType(f"pyverbs.{name}")
        made.__dict__.update(names)
        monkeypatch.setitem(sys.modules, made.__name__, made)

    def of_gid(text: str) -> bytes:
        return bytes.fromhex(text.replace(":", ""))

    def of_adapter(made: Any) -> Any:
        return lambda *_, **__: made(adapter)

    def bound(channel: CompChannel) -> None:
        CompChannel.__init__(channel, adapter)

    def address(**values: Any) -> dict[str, Any]:
        return {**values.pop("gr"), **values}

    monkeypatch.setitem(sys.modules, "pyverbs", ModuleType("pyverbs"))
    module("pyverbs_error", PyverbsError=PyverbsError)
    module("device", Context=of_adapter(Context))
    module("pd", PD=of_adapter(type("PD", (Closeable,), {})))
    module("mr", MR=lambda _, length, access, at: MR(adapter, length, access, at))
    module(
        "cq",
        CompChannel=type("OfAdapter", (CompChannel,), {"__init__": lambda self, _: bound(self)}),
        CQ=lambda _, entries, __, channel, ___: CQ(adapter, entries, channel),
    )
    module("qp", QPCap=Values, QPInitAttrEx=Values, QPAttr=Values)
    module("wr", SGE=lambda at, length, lkey: SGE(adapter, at, length, lkey))
    module("addr", GID=of_gid, GlobalRoute=dict, AHAttr=address, AH=lambda _, attr: AH(adapter, attr))
    module(
        "providers.mlx5.mlx5dv",
        Mlx5DVDCInitAttr=Values,
        Mlx5DVQPInitAttr=Values,
        Mlx5QP=lambda _, init, own: Mlx5QP(adapter, init, own),
    )
    module("providers.mlx5.mlx5_enums", MLX5DV_DCTYPE_DCI="DCI", MLX5DV_QP_INIT_ATTR_MASK_DC="MASK_DC")
    return adapter
