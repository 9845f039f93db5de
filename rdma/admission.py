"""Who gets the next staging buffer: fair between peers, in order within a peer. Pure; used by the staging pool.

First come, first served per request is not enough. A client with many requests would get as many turns, and one that
has gone away holds what its transfers hold until they time out: a handful of those would stop everybody. So:

1. A peer may take another buffer only while it holds fewer than are idle. One peer alone gets half of the buffers, two
   get a third each, n get one part of n + 1: there is always room for one more, and nothing has to be configured.
   A peer that holds none may have any idle one, so each makes progress with a single buffer.
2. Peers that wait take turns; the requests of one peer are served in the order in which they came.

Source of rule 1: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998.
"""

from collections import Counter, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from s3verbs.rdma.token import Token

W = TypeVar("W")


def peer_of(token: Token) -> Hashable:
    """What counts as one peer: a port (all processes behind a GID go away together), or a process of this host."""
    return token.transport, token.gid or token.secret


class Turns(Generic[W]):
    """The buffers that each peer holds, and the waiters `W` of each peer. `None` is a peer without a share: rule 1 does
    not apply to it. A peer is forgotten when it holds nothing and waits for nothing."""

    def __init__(self) -> None:
        self._held: Counter[Hashable] = Counter()
        self._queues: dict[Hashable, deque[W]] = {}
        self.waiting = 0

    def may_take(self, peer: Hashable, idle: int) -> bool:
        """Whether `peer` may have a buffer now, with `idle` of them there and its earlier requests before it."""
        return peer not in self._queues and self._within_share(peer, idle)

    def taken(self, peer: Hashable) -> None:
        self._held[peer] += 1

    def given_back(self, peer: Hashable) -> None:
        self._held[peer] -= 1
        if not self._held[peer]:
            del self._held[peer]

    def wait(self, peer: Hashable, waiter: W) -> None:
        self._queues.setdefault(peer, deque()).append(waiter)
        self.waiting += 1

    def withdraw(self, peer: Hashable, waiter: W) -> None:
        """`waiter` waits no longer. Raises KeyError or ValueError when it did not."""
        queue = self._queues[peer]
        queue.remove(waiter)
        self.waiting -= 1
        if not queue:
            del self._queues[peer]

    def next(self, idle: int) -> tuple[Hashable, W] | None:
        """The waiter whose turn it is, and its peer; it waits no longer. None when none may have one of `idle`."""
        for peer, queue in self._queues.items():
            if self._within_share(peer, idle):
                # Its next request waits behind every other peer.
                del self._queues[peer]
                waiter = queue.popleft()
                if queue:
                    self._queues[peer] = queue
                self.waiting -= 1
                return peer, waiter
        return None

    def _within_share(self, peer: Hashable, idle: int) -> bool:
        return idle > 0 and (peer is None or self._held[peer] < idle)
