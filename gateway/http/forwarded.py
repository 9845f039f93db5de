"""What trusted proxies say about the request they pass on: X-Forwarded-For, -Host and -Proto."""

import ipaddress
from collections.abc import Sequence
from functools import lru_cache

from s3verbs.gateway.http.exchange import Exchange

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Forwarded:
    """Believes the networks it is given, and nobody else."""

    def __init__(self, trusted: Sequence[Network]) -> None:
        self._trusted = tuple(trusted)
        self.trusts = lru_cache(maxsize=1024)(self._trusts)

    def _trusts(self, remote: str) -> bool:
        try:
            address = ipaddress.ip_address(remote)
        except ValueError:
            return False
        return any(address in network for network in self._trusted)

    def apply(self, exchange: Exchange, headers: dict[str, str], host: str) -> str:
        """Take over the client's address and scheme; the host it asked for, which is what it has signed."""
        if chain := headers.get("x-forwarded-for"):
            exchange.remote = self._client(chain, exchange.remote)
        if proto := headers.get("x-forwarded-proto"):
            exchange.secure_client = proto.strip().lower() == "https"
        asked = headers.get("x-forwarded-host", "").partition(",")[0].strip()
        if asked:
            headers["host"] = asked
            return asked
        return host

    def _client(self, chain: str, remote: str) -> str:
        """The nearest address that no trusted proxy has: what stands before it could be made up."""
        for hop in reversed(chain.split(",")):
            address = hop.strip()
            if not self.trusts(address):
                return address or remote
            remote = address
        return remote
