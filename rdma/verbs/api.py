"""The verbs objects that the rest of the package works with, on top of pyverbs: the only module that imports it.

pyverbs is loaded at the first call, never at import. Distributions' builds of rdma-core 44 to 56 and PyPI's
pyverbs 59 all do; where they differ is said below. Its objects are thin: each class here owns one C object and frees it
in `close`, which is idempotent. Close in the order queue pairs, address handles, memory regions, protection domain,
completion queue, context.

Calls hold the GIL and may block for the time of one kernel command. Post, poll, arm and modify are for one thread at
a time per object. Every failure of the verbs library is a VerbsError with its errno.
"""

import contextlib
import errno
import importlib
import importlib.util
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from s3verbs.rdma.verbs.attributes import (
    Address,
    Completion,
    DeviceLimits,
    LocalSpan,
    PortState,
    QueuePairAttributes,
)
from s3verbs.rdma.verbs.constants import (
    LINK_LAYER_ETHERNET,
    PORT_ACTIVE,
    QP_EX_WITH_RDMA_READ,
    QP_EX_WITH_RDMA_WRITE,
    QP_INIT_ATTR_PD,
    QP_INIT_ATTR_SEND_OPS_FLAGS,
    QPT_DRIVER,
    QPT_RC,
    SEND_SIGNALED,
    WR_RDMA_READ,
    WR_RDMA_WRITE,
    Access,
    CompletionStatus,
)
from s3verbs.rdma.verbs.errors import VerbsError as VerbsError
from s3verbs.rdma.verbs.errors import VerbsUnavailable as VerbsUnavailable

INSTALL_HINT = (
    "install python3-pyverbs (Debian 12 and 13, Ubuntu: apt install python3-pyverbs ibverbs-providers librdmacm1) or, "
    "with rdma-core 59 on the system, pip install pyverbs==59.0"
)


_opening = threading.Lock()
"""Held while this module makes descriptors of the verbs library; see `_channel`."""

_TRIES = 5


def load() -> None:
    """Import pyverbs. Raises VerbsUnavailable."""
    _module("device")


def version() -> str:
    """Where pyverbs was found, for `doctor` and logs. Raises VerbsUnavailable."""
    load()
    package = importlib.import_module("pyverbs")
    generation = "56 or older" if _has_module("pyverbs.enums") else "59 or newer"
    return f"pyverbs ({generation}) in {Path(str(package.__file__)).parent}"


def device_names() -> list[str]:
    """Of the devices that the verbs library sees. Raises VerbsUnavailable."""
    module = _module("device")
    try:
        return [device.name.decode() for device in module.get_device_list()]
    except _module("pyverbs_error").PyverbsError:
        return []  # ENOSYS: a kernel without uverbs has no device


class Context:
    """An open device."""

    def __init__(self, name: str) -> None:
        """Raises VerbsUnavailable, VerbsError."""
        module = _module("device")
        self.name = name
        with _errors(), _opening:
            self.raw = module.Context(name=name)

    def limits(self) -> DeviceLimits:
        with _errors():
            raw = self.raw.query_device()
        return DeviceLimits(
            int(raw.max_qp), int(raw.max_qp_wr), int(raw.max_cqe), int(raw.max_qp_rd_atom), int(raw.max_qp_init_rd_atom)
        )

    def port(self, number: int) -> PortState:
        with _errors():
            raw = self.raw.query_port(number)
        return PortState(
            int(raw.state) == PORT_ACTIVE,
            int(raw.link_layer) == LINK_LAYER_ETHERNET,
            int(raw.lid),
            int(raw.active_mtu),
            int(raw.max_msg_sz),
        )

    def close(self) -> None:
        with _errors():
            self.raw.close()


class ProtectionDomain:
    def __init__(self, context: Context) -> None:
        self.context = context
        with _errors():
            self.raw = _module("pd").PD(context.raw)

    def close(self) -> None:
        with _errors():
            self.raw.close()


class MemoryRegion:
    """Registered memory; it must stay mapped until `close`, after which the device cannot reach it.

    `first`: the address that a peer uses for the region's first byte.
    """

    def __init__(self, domain: ProtectionDomain, address: int, length: int, access: Access) -> None:
        with _errors():
            self._raw = _module("mr").MR(domain.raw, length, int(access), address)
        self._take(address)

    @classmethod
    def of_dmabuf(
        cls, domain: ProtectionDomain, descriptor: int, offset: int, length: int, access: Access
    ) -> "MemoryRegion":
        """`length` bytes of a dma-buf from `offset` on. The descriptor may be closed afterwards. Raises VerbsError
        EOPNOTSUPP where kernel or device cannot."""
        region = cls.__new__(cls)
        with _errors():
            region._raw = _module("mr").DmaBufMR(domain.raw, length, int(access), dmabuf=descriptor, offset=offset)
        region._take(offset)  # pyverbs passes the offset as the region's I/O virtual address
        return region

    def _take(self, first: int) -> None:
        self.first = first
        self.lkey = int(self._raw.lkey)
        self.rkey = int(self._raw.rkey)

    def close(self) -> None:
        with _errors():
            self._raw.close()


class CompletionQueue:
    """A completion queue with a completion channel of its own.

    `fileno` becomes readable when a completion arrives after `arm`. The caller then calls `take_event`, `arm`, and
    polls until empty, in this order: a completion between two of these steps raises the next event.
    """

    def __init__(self, context: Context, entries: int) -> None:
        module = _module("cq")
        with _errors(), _opening:
            self._channel, self._descriptor = _channel(module, context)
            os.set_blocking(self._descriptor, False)
            self.raw = module.CQ(context.raw, entries, None, self._channel, 0)

    def fileno(self) -> int:
        return self._descriptor

    def arm(self) -> None:
        with _errors():
            self.raw.req_notify()

    def take_event(self) -> bool:
        """Take one event off the channel; False when there is none."""
        try:
            with _errors():
                self._channel.get_cq_event(self.raw)
        except VerbsError as error:
            if error.code in (errno.EAGAIN, errno.EINTR):
                return False
            raise
        self.raw.ack_events(1)
        return True

    def poll(self, most: int) -> list[Completion]:
        with _errors():
            _, found = self.raw.poll(most)
        return [
            Completion(int(wc.wr_id), CompletionStatus(int(wc.status)), int(wc.qp_num), int(wc.vendor_err))
            for wc in found
        ]

    def close(self) -> None:
        with _errors():
            self.raw.close()
            self._channel.close()


class QueuePair:
    """A queue pair of type RC, in state RESET. It receives nothing."""

    def __init__(self, domain: ProtectionDomain, queue: CompletionQueue, depth: int) -> None:
        """`depth`: work requests that may be posted at once."""
        module = _module("qp")
        with _errors():
            cap = module.QPCap(max_send_wr=depth, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
            init = module.QPInitAttr(qp_type=QPT_RC, scq=queue.raw, rcq=queue.raw, cap=cap)
            self._raw = module.QP(domain.raw, init)
        self.number = int(self._raw.qp_num)

    def modify(self, attributes: QueuePairAttributes) -> None:
        with _errors():
            self._raw.modify(_attributes(attributes), int(attributes.mask))

    def post_read(self, work: int, local: LocalSpan, remote: int, rkey: int) -> None:
        """RDMA READ of `local.length` bytes at the peer's address `remote` into `local`, signaled as `work`."""
        self._post(WR_RDMA_READ, work, local, remote, rkey)

    def post_write(self, work: int, local: LocalSpan, remote: int, rkey: int) -> None:
        """RDMA WRITE of `local` to the peer's address `remote`, signaled as `work`."""
        self._post(WR_RDMA_WRITE, work, local, remote, rkey)

    def _post(self, opcode: int, work: int, local: LocalSpan, remote: int, rkey: int) -> None:
        module = _module("wr")
        # Their destructors free nothing (a misspelt __dealloc__), so both are closed by hand.
        with _errors(), contextlib.closing(module.SGE(local.address, local.length, local.lkey)) as span:
            request = module.SendWR(wr_id=work, opcode=opcode, num_sge=1, sg=[span], send_flags=SEND_SIGNALED)
            with contextlib.closing(request):
                request.set_wr_rdma(rkey, remote)
                self._raw.post_send(request)

    def close(self) -> None:
        """On return the device touches no memory for this queue pair any more."""
        with _errors():
            self._raw.close()


class AddressHandle:
    def __init__(self, domain: ProtectionDomain, address: Address) -> None:
        with _errors():
            self.raw = _module("addr").AH(domain.raw, attr=_address(address))

    def close(self) -> None:
        with _errors():
            self.raw.close()


class DcInitiator:
    """An mlx5 DC initiator, in state RESET. Raises VerbsError on devices that have none."""

    def __init__(self, domain: ProtectionDomain, queue: CompletionQueue, depth: int) -> None:
        mlx5, names, base = _module("providers.mlx5.mlx5dv"), _module("providers.mlx5.mlx5_enums"), _module("qp")
        with _errors():
            init = base.QPInitAttrEx(
                cap=base.QPCap(max_send_wr=depth, max_recv_wr=0, max_send_sge=1, max_recv_sge=0),
                qp_type=QPT_DRIVER,
                scq=queue.raw,
                rcq=queue.raw,
                pd=domain.raw,
                comp_mask=QP_INIT_ATTR_PD | QP_INIT_ATTR_SEND_OPS_FLAGS,
                send_ops_flags=QP_EX_WITH_RDMA_READ | QP_EX_WITH_RDMA_WRITE,
            )
            dc = mlx5.Mlx5DVDCInitAttr(dc_type=names.MLX5DV_DCTYPE_DCI)
            own = mlx5.Mlx5DVQPInitAttr(comp_mask=names.MLX5DV_QP_INIT_ATTR_MASK_DC, dc_init_attr=dc)
            self._raw = mlx5.Mlx5QP(domain.context.raw, init, own)
        self.number = int(self._raw.qp_num)

    def modify(self, attributes: QueuePairAttributes) -> None:
        with _errors():
            self._raw.modify(_attributes(attributes), int(attributes.mask))

    def post(
        self,
        work: int,
        local: LocalSpan,
        remote: int,
        rkey: int,
        *,
        read: bool,
        handle: AddressHandle,
        target: int,
        key: int,
    ) -> None:
        """One signaled READ or WRITE at DC target `target`, which must have been made with access key `key`."""
        qp = self._raw
        with _errors(), contextlib.closing(_module("wr").SGE(local.address, local.length, local.lkey)) as span:
            qp.wr_start()
            qp.wr_id = work
            qp.wr_flags = SEND_SIGNALED
            (qp.wr_rdma_read if read else qp.wr_rdma_write)(rkey, remote)
            qp.wr_set_dc_addr(handle.raw, target, key)
            qp.wr_set_sge(span)
            qp.wr_complete()

    def close(self) -> None:
        with _errors():
            self._raw.close()


def _module(name: str) -> Any:
    # pyverbs calls logging.basicConfig at import: whatever it does to the root logger is undone.
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        return importlib.import_module(f"pyverbs.{name}")
    except ModuleNotFoundError as error:
        raise VerbsUnavailable(f"pyverbs is not installed ({error}): {INSTALL_HINT}") from error
    except ImportError as error:
        # The extension modules are bound to one version of libibverbs (IBVERBS_PRIVATE_n).
        raise VerbsUnavailable(f"pyverbs does not match the verbs library ({error}): {INSTALL_HINT}") from error
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def _has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    base = _module("pyverbs_error").PyverbsError
    try:
        yield
    except base as error:
        raise VerbsError(str(error), getattr(error, "error_code", 0)) from error


def _address(address: Address) -> Any:
    module = _module("addr")
    route = None
    if address.gid is not None:
        text = address.gid.hex()
        route = module.GlobalRoute(
            dgid=module.GID(":".join(text[i : i + 4] for i in range(0, 32, 4))),
            flow_label=address.flow_label,
            sgid_index=address.gid_index,
            hop_limit=address.hop_limit,
            traffic_class=address.traffic_class,
        )
    return module.AHAttr(
        dlid=address.lid,
        sl=address.service_level,
        src_path_bits=address.path_bits,
        static_rate=address.static_rate,
        is_global=int(route is not None),
        port_num=address.port,
        gr=route,
    )


_PLAIN = (
    *("path_mtu", "qkey", "rq_psn", "sq_psn", "dest_qp_num", "pkey_index", "max_rd_atomic", "max_dest_rd_atomic"),
    *("min_rnr_timer", "timeout", "retry_cnt", "rnr_retry"),
)
"""Attributes that QueuePairAttributes and pyverbs' QPAttr call the same."""


def _attributes(values: QueuePairAttributes) -> Any:
    raw = _module("qp").QPAttr(qp_state=int(values.state), port_num=values.port)
    for name in _PLAIN:
        setattr(raw, name, getattr(values, name))
    raw.qp_access_flags = values.access
    if values.address is not None:
        raw.ah_attr = _address(values.address)
    return raw


def _event_descriptors() -> set[int]:
    """Descriptors of this process that are channels of the verbs library."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(entry.readlink()).startswith("anon_inode:[infinibandevent]"):
                found.add(int(entry.name))
    return found


def _channel(module: Any, context: Context) -> tuple[Any, int]:
    """A completion channel and its descriptor, which CompChannel does not tell up to rdma-core 56."""
    for _ in range(_TRIES):
        before = _event_descriptors()
        channel = module.CompChannel(context.raw)
        if hasattr(channel, "fd"):
            return channel, int(channel.fd)
        new = _event_descriptors() - before
        if len(new) == 1:
            return channel, new.pop()
        channel.close()  # librdmacm has just opened a device in another thread
    raise VerbsError("cannot tell which descriptor is the completion channel's")
