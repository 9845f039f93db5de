"""What an operator can choose about verbs."""

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network


@dataclass(frozen=True, slots=True)
class VerbsOptions:
    """Times in seconds."""

    devices: tuple[str, ...] = ()
    """`device[:port[:gid index]]` each; empty: every active RoCE port."""
    dc_key: int = 0xFFEEDDCC
    """Access key of the clients' DC targets: cuFile's `rdma_dc_key`."""
    allowed_peers: tuple[IPv4Network | IPv6Network, ...] = ()
    """Where this server may connect to; empty: the subnets of its own RDMA devices."""
    max_connections: int = 256
    """RC queue pairs of one process."""
    idle_timeout: float = 300.0
    """How long a connection without a request is kept."""
    connect_timeout: float = 3.0
    transfer_timeout: float = 10.0
    """What one chunk may take, with its reconnect and retry: the longest that a vanished peer holds a buffer."""
