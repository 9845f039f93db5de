"""C structures of rdma-core that `cm` reads and writes. Only what their layout needs; names are the headers' own.

Sources: rdma/rdma_cma.h (rdma_cm_id, rdma_conn_param, rdma_cm_event), infiniband/verbs.h (ibv_qp_attr, ibv_ah_attr).
"""

import ctypes


class CmIdStruct(ctypes.Structure):
    """struct rdma_cm_id up to `port_num`. `source` and `destination` are struct sockaddr_storage."""

    _fields_ = (
        ("verbs", ctypes.c_void_p),
        ("channel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("qp", ctypes.c_void_p),
        ("source", ctypes.c_ubyte * 128),
        ("destination", ctypes.c_ubyte * 128),
        ("gids", ctypes.c_uint64 * 4),
        ("pkey", ctypes.c_uint16),
        ("path_rec", ctypes.c_void_p),
        ("num_paths", ctypes.c_int),
        ("route_padding", ctypes.c_int),
        ("ps", ctypes.c_int),
        ("port_num", ctypes.c_uint8),
    )


class ConnParamStruct(ctypes.Structure):
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


class CmEventStruct(ctypes.Structure):
    """struct rdma_cm_event; of its union only the member for connections."""

    _fields_ = (
        ("id", ctypes.c_void_p),
        ("listen_id", ctypes.c_void_p),
        ("event", ctypes.c_int),
        ("status", ctypes.c_int),
        ("conn", ConnParamStruct),
    )


class AhAttrStruct(ctypes.Structure):
    """struct ibv_ah_attr with its struct ibv_global_route; a GID is aligned like a 64-bit integer."""

    _fields_ = (
        ("dgid", ctypes.c_uint64 * 2),
        ("flow_label", ctypes.c_uint32),
        ("sgid_index", ctypes.c_uint8),
        ("hop_limit", ctypes.c_uint8),
        ("traffic_class", ctypes.c_uint8),
        ("grh_padding", ctypes.c_uint8),
        ("dlid", ctypes.c_uint16),
        ("sl", ctypes.c_uint8),
        ("src_path_bits", ctypes.c_uint8),
        ("static_rate", ctypes.c_uint8),
        ("is_global", ctypes.c_uint8),
        ("port_num", ctypes.c_uint8),
    )


class QpAttrStruct(ctypes.Structure):
    """struct ibv_qp_attr."""

    _fields_ = (
        ("qp_state", ctypes.c_int),
        ("cur_qp_state", ctypes.c_int),
        ("path_mtu", ctypes.c_int),
        ("path_mig_state", ctypes.c_int),
        ("qkey", ctypes.c_uint32),
        ("rq_psn", ctypes.c_uint32),
        ("sq_psn", ctypes.c_uint32),
        ("dest_qp_num", ctypes.c_uint32),
        ("qp_access_flags", ctypes.c_uint32),
        ("cap", ctypes.c_uint32 * 5),
        ("ah_attr", AhAttrStruct),
        ("alt_ah_attr", AhAttrStruct),
        ("pkey_index", ctypes.c_uint16),
        ("alt_pkey_index", ctypes.c_uint16),
        ("en_sqd_async_notify", ctypes.c_uint8),
        ("sq_draining", ctypes.c_uint8),
        ("max_rd_atomic", ctypes.c_uint8),
        ("max_dest_rd_atomic", ctypes.c_uint8),
        ("min_rnr_timer", ctypes.c_uint8),
        ("port_num", ctypes.c_uint8),
        ("timeout", ctypes.c_uint8),
        ("retry_cnt", ctypes.c_uint8),
        ("rnr_retry", ctypes.c_uint8),
        ("alt_port_num", ctypes.c_uint8),
        ("alt_timeout", ctypes.c_uint8),
        ("rate_limit", ctypes.c_uint32),
    )
