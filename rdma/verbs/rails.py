"""Which device a connection to a peer starts from: by subnet, in turn among equals, and none that just failed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from s3verbs.rdma.verbs.device import Network, Rail, peer_allowed, route

FIRST_REST = 1.0
LONGEST_REST = 60.0
"""Seconds that a rail rests after a failure of its own side; doubled each time, until it works once."""


@dataclass
class _Health:
    rested_until: float = 0.0
    rest: float = field(default=FIRST_REST)


class Rails:
    """Loop thread only. `clock` is monotonic, in seconds."""

    def __init__(self, rails: Sequence[Rail], allowed: Sequence[Network], clock: Callable[[], float]) -> None:
        """`allowed`: where peers may be; empty: the subnets of the rails."""
        self._rails = list(rails)
        self._allowed = tuple(allowed)
        self._clock = clock
        self._health = {rail: _Health() for rail in rails}

    @property
    def all(self) -> tuple[Rail, ...]:
        return tuple(self._rails)

    def allows(self, peer_gid: bytes) -> bool:
        return peer_allowed(peer_gid, self._allowed, self._rails)

    def to(self, peer_gid: bytes) -> list[Rail]:
        """Rails to try, best first, without those that rest; empty when there is none. Equally good ones take turns:
        the first of the last answer goes behind its equals."""
        now = self._clock()
        found = [rail for rail in route(self._rails, peer_gid) if self._health[rail].rested_until <= now]
        if found:
            # Its equals keep their order before it: `route` sorts stably.
            self._rails.remove(found[0])
            self._rails.append(found[0])
        return found

    def failed(self, rail: Rail) -> None:
        """Its own side failed: the device, the port, the route."""
        health = self._health[rail]
        health.rested_until = self._clock() + health.rest
        health.rest = min(LONGEST_REST, health.rest * 2)

    def worked(self, rail: Rail) -> None:
        self._health[rail] = _Health()

    def resting(self) -> list[Rail]:
        """In the order of their names, for `describe`."""
        now = self._clock()
        return sorted((rail for rail in self._rails if self._health[rail].rested_until > now), key=str)
