"""Numbers of the verbs interface, as fixed in rdma-core's infiniband/verbs.h. They are ABI and never change.

Kept here, so that everything above `api` can be imported and tested on a machine without pyverbs.
"""

from enum import IntEnum, IntFlag


class QueuePairState(IntEnum):
    """enum ibv_qp_state."""

    RESET = 0
    INIT = 1
    RTR = 2
    RTS = 3
    SQD = 4
    SQE = 5
    ERR = 6


class QueuePairMask(IntFlag):
    """enum ibv_qp_attr_mask: which attributes a modify changes."""

    STATE = 1 << 0
    CUR_STATE = 1 << 1
    ACCESS_FLAGS = 1 << 3
    PKEY_INDEX = 1 << 4
    PORT = 1 << 5
    QKEY = 1 << 6
    AV = 1 << 7
    PATH_MTU = 1 << 8
    TIMEOUT = 1 << 9
    RETRY_CNT = 1 << 10
    RNR_RETRY = 1 << 11
    RQ_PSN = 1 << 12
    MAX_QP_RD_ATOMIC = 1 << 13
    ALT_PATH = 1 << 14
    MIN_RNR_TIMER = 1 << 15
    SQ_PSN = 1 << 16
    MAX_DEST_RD_ATOMIC = 1 << 17
    PATH_MIG_STATE = 1 << 18
    CAP = 1 << 19
    DEST_QPN = 1 << 20


class Access(IntFlag):
    """enum ibv_access_flags."""

    LOCAL_WRITE = 1 << 0
    REMOTE_WRITE = 1 << 1
    REMOTE_READ = 1 << 2


class CompletionStatus(IntEnum):
    """enum ibv_wc_status."""

    SUCCESS = 0
    LOC_LEN_ERR = 1
    LOC_QP_OP_ERR = 2
    LOC_EEC_OP_ERR = 3
    LOC_PROT_ERR = 4
    WR_FLUSH_ERR = 5
    MW_BIND_ERR = 6
    BAD_RESP_ERR = 7
    LOC_ACCESS_ERR = 8
    REM_INV_REQ_ERR = 9
    REM_ACCESS_ERR = 10
    REM_OP_ERR = 11
    RETRY_EXC_ERR = 12
    RNR_RETRY_EXC_ERR = 13
    LOC_RDD_VIOL_ERR = 14
    REM_INV_RD_REQ_ERR = 15
    REM_ABORT_ERR = 16
    INV_EECN_ERR = 17
    INV_EEC_STATE_ERR = 18
    FATAL_ERR = 19
    RESP_TIMEOUT_ERR = 20
    GENERAL_ERR = 21
    TM_ERR = 22
    TM_RNDV_INCOMPLETE = 23


QPT_RC = 2
QPT_DRIVER = 0xFF
WR_RDMA_WRITE = 0
WR_RDMA_READ = 4
SEND_SIGNALED = 1 << 1
PORT_ACTIVE = 4
LINK_LAYER_ETHERNET = 2
QP_INIT_ATTR_PD = 1 << 0
QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6
QP_EX_WITH_RDMA_WRITE = 1 << 0
QP_EX_WITH_RDMA_READ = 1 << 4
