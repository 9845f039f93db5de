"""Plain values that go in and out of `api`. Pure.

Source of the fields: rdma-core's infiniband/verbs.h.
"""

from dataclasses import dataclass, replace
from typing import Any

from s3verbs.rdma.verbs.constants import CompletionStatus, QueuePairMask, QueuePairState


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """From ibv_query_device. `read_targets`: RDMA READs that a peer may have in flight at one of our queue pairs
    (max_qp_rd_atom); `read_starts`: those that we may have (max_qp_init_rd_atom)."""

    queue_pairs: int
    work_requests: int
    completion_entries: int
    read_targets: int
    read_starts: int


@dataclass(frozen=True, slots=True)
class PortState:
    """From ibv_query_port. `mtu` is an enum ibv_mtu, `max_message` in bytes."""

    active: bool
    ethernet: bool
    lid: int
    mtu: int
    max_message: int


@dataclass(frozen=True, slots=True)
class Address:
    """struct ibv_ah_attr. `gid` is the destination's, 16 bytes, or None when the path has no global route; `gid_index`
    is the source's index in the table of `port`."""

    port: int
    gid: bytes | None
    gid_index: int = 0
    hop_limit: int = 64
    traffic_class: int = 0
    flow_label: int = 0
    lid: int = 0
    service_level: int = 0
    path_bits: int = 0
    static_rate: int = 0


@dataclass(frozen=True, slots=True)
class QueuePairAttributes:
    """struct ibv_qp_attr: what `mask` names is valid. `path_mtu` is an enum ibv_mtu; `timeout` and `min_rnr_timer` are
    encoded as in ibv_modify_qp(3): timeout t is 4.096 us * 2^t per try. `access` is made of `Access`."""

    mask: QueuePairMask
    state: QueuePairState
    path_mtu: int = 0
    qkey: int = 0
    rq_psn: int = 0
    sq_psn: int = 0
    dest_qp_num: int = 0
    access: int = 0
    address: Address | None = None
    pkey_index: int = 0
    max_rd_atomic: int = 0
    max_dest_rd_atomic: int = 0
    min_rnr_timer: int = 0
    port: int = 0
    timeout: int = 0
    retry_cnt: int = 0
    rnr_retry: int = 0

    def but(self, **changes: Any) -> "QueuePairAttributes":
        """A copy with other values; the mask stays unless given."""
        return replace(self, **changes)


TO_ERROR = QueuePairAttributes(QueuePairMask.STATE, QueuePairState.ERR)


@dataclass(frozen=True, slots=True)
class Completion:
    """A work completion. Only `work`, `status` and `queue_pair` are valid when the status is not SUCCESS."""

    work: int
    status: CompletionStatus
    queue_pair: int
    vendor_error: int = 0


@dataclass(frozen=True, slots=True)
class LocalSpan:
    """`length` bytes at `address` of this process, inside the memory region of `lkey`."""

    address: int
    length: int
    lkey: int
