"""The part of rdma-core's C interface that the RC lane needs. Sources: rdma/rdma_cma.h, infiniband/verbs.h."""

import ctypes
from typing import Any

PS_TCP = 0x0106
QPT_RC = 2
LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ = 1, 2, 4

CONNECT_REQUEST = 4
"""enum rdma_cm_event_type: a server wants to connect."""
ENDINGS = frozenset({6, 7, 8, 10, 11})
"""CONNECT_ERROR, UNREACHABLE, REJECTED, DISCONNECTED, DEVICE_REMOVAL."""


class SockaddrIn(ctypes.Structure):
    _fields_ = (
        ("family", ctypes.c_uint16),
        ("port", ctypes.c_uint8 * 2),
        ("address", ctypes.c_uint8 * 4),
        ("zero", ctypes.c_uint8 * 8),
    )


class ConnParam(ctypes.Structure):
    """struct rdma_conn_param."""

    _fields_ = (
        ("private_data", ctypes.c_void_p),
        ("private_data_len", ctypes.c_uint8),
        ("responder_resources", ctypes.c_uint8),
        ("initiator_depth", ctypes.c_uint8),
        ("flow_control", ctypes.c_uint8),
        ("retry_count", ctypes.c_uint8),
        ("rnr_retry_count", ctypes.c_uint8),
        ("srq", ctypes.c_uint8),
        ("qp_num", ctypes.c_uint32),
    )


class CmEvent(ctypes.Structure):
    """struct rdma_cm_event; of its union the member for connections."""

    _fields_ = (
        ("id", ctypes.c_void_p),
        ("listen_id", ctypes.c_void_p),
        ("event", ctypes.c_int),
        ("status", ctypes.c_int),
        ("conn", ConnParam),
    )


class QpInitAttr(ctypes.Structure):
    """struct ibv_qp_init_attr with its struct ibv_qp_cap."""

    _fields_ = (
        ("qp_context", ctypes.c_void_p),
        ("send_cq", ctypes.c_void_p),
        ("recv_cq", ctypes.c_void_p),
        ("srq", ctypes.c_void_p),
        ("max_send_wr", ctypes.c_uint32),
        ("max_recv_wr", ctypes.c_uint32),
        ("max_send_sge", ctypes.c_uint32),
        ("max_recv_sge", ctypes.c_uint32),
        ("max_inline_data", ctypes.c_uint32),
        ("qp_type", ctypes.c_int),
        ("sq_sig_all", ctypes.c_int),
    )


class Mr(ctypes.Structure):
    """struct ibv_mr."""

    _fields_ = (
        ("context", ctypes.c_void_p),
        ("pd", ctypes.c_void_p),
        ("addr", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("handle", ctypes.c_uint32),
        ("lkey", ctypes.c_uint32),
        ("rkey", ctypes.c_uint32),
    )


_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_CM: dict[str, tuple[Any, list[Any]]] = {
    "rdma_create_event_channel": (_POINTER, []),
    "rdma_destroy_event_channel": (None, [_POINTER]),
    "rdma_create_id": (_INT, [_POINTER, ctypes.POINTER(_POINTER), _POINTER, _INT]),
    "rdma_destroy_id": (_INT, [_POINTER]),
    "rdma_bind_addr": (_INT, [_POINTER, ctypes.POINTER(SockaddrIn)]),
    "rdma_listen": (_INT, [_POINTER, _INT]),
    "rdma_get_src_port": (ctypes.c_uint16, [_POINTER]),
    "rdma_get_cm_event": (_INT, [_POINTER, ctypes.POINTER(ctypes.POINTER(CmEvent))]),
    "rdma_ack_cm_event": (_INT, [ctypes.POINTER(CmEvent)]),
    "rdma_create_qp": (_INT, [_POINTER, _POINTER, ctypes.POINTER(QpInitAttr)]),
    "rdma_destroy_qp": (None, [_POINTER]),
    "rdma_accept": (_INT, [_POINTER, ctypes.POINTER(ConnParam)]),
    "rdma_reject": (_INT, [_POINTER, _POINTER, ctypes.c_uint8]),
    "rdma_disconnect": (_INT, [_POINTER]),
}
_VERBS: dict[str, tuple[Any, list[Any]]] = {
    "ibv_alloc_pd": (_POINTER, [_POINTER]),
    "ibv_dealloc_pd": (_INT, [_POINTER]),
    "ibv_create_cq": (_POINTER, [_POINTER, _INT, _POINTER, _POINTER, _INT]),
    "ibv_destroy_cq": (_INT, [_POINTER]),
    "ibv_reg_mr": (ctypes.POINTER(Mr), [_POINTER, _POINTER, ctypes.c_size_t, _INT]),
    "ibv_dereg_mr": (_INT, [ctypes.POINTER(Mr)]),
}


def load() -> tuple[Any, Any]:
    """librdmacm and libibverbs. Raises OSError when rdma-core is not installed."""
    libraries = []
    for name, functions in (("librdmacm.so.1", _CM), ("libibverbs.so.1", _VERBS)):
        library = ctypes.CDLL(name, use_errno=True)
        for function, (result, arguments) in functions.items():
            found = getattr(library, function)
            found.restype, found.argtypes = result, arguments
        libraries.append(library)
    return libraries[0], libraries[1]
