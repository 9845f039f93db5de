"""Who gets the next buffer: room for a newcomer, turns between peers, order within a peer, nobody forgotten."""

import itertools
from collections import Counter
from collections.abc import Hashable

from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.rdma.admission import Turns, peer_of
from s3verbs.rdma.token import Token, Transport

PEERS = ("a", "b", "c", None)


class Buffers:
    """A pool without memory: what is held, and who waits, as the pool drives Turns."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.held: Counter[Hashable] = Counter()
        self.turns: Turns[int] = Turns()
        self.waiters: list[tuple[Hashable, int]] = []
        self.served: list[tuple[Hashable, int]] = []

    @property
    def idle(self) -> int:
        return self.total - self.held.total()

    def ask(self, peer: Hashable, number: int) -> bool:
        if self.turns.may_take(peer, self.idle):
            self._take(peer)
            return True
        self.turns.wait(peer, number)
        self.waiters.append((peer, number))
        return False

    def give_back(self, peer: Hashable) -> None:
        self.turns.given_back(peer)
        self.held[peer] -= 1
        while (turn := self.turns.next(self.idle)) is not None:
            self.waiters.remove(turn)
            self.served.append(turn)
            self._take(turn[0])
        self.check()

    def withdraw(self, waiter: tuple[Hashable, int]) -> None:
        self.turns.withdraw(*waiter)
        self.waiters.remove(waiter)

    def check(self) -> None:
        assert 0 <= self.idle <= self.total
        assert self.turns.waiting == len(self.waiters)
        for peer, _ in self.waiters:
            assert not self._allowed(peer), "somebody waits for a buffer that he may have"

    def _allowed(self, peer: Hashable) -> bool:
        return self.idle > 0 and (peer is None or self.held[peer] < self.idle)

    def _take(self, peer: Hashable) -> None:
        assert self._allowed(peer)
        self.turns.taken(peer)
        self.held[peer] += 1


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 9), st.data())
def test_no_order_of_events_breaks_the_rule_or_forgets_a_waiter(total: int, data: st.DataObject) -> None:
    buffers = Buffers(total)
    numbers = itertools.count()
    for _ in range(data.draw(st.integers(0, 60))):
        holders = sorted((peer for peer in buffers.held if buffers.held[peer]), key=str)
        action = data.draw(st.sampled_from(["ask", "ask", *(["give"] if holders else []), "withdraw"]))
        if action == "ask":
            buffers.ask(data.draw(st.sampled_from(PEERS)), next(numbers))
        elif action == "give":
            buffers.give_back(data.draw(st.sampled_from(holders)))
        elif buffers.waiters:
            buffers.withdraw(data.draw(st.sampled_from(buffers.waiters)))
        buffers.check()
    for peer in PEERS:
        order = [number for who, number in buffers.served if who == peer]
        assert order == sorted(order)
    while buffers.held.total():
        buffers.give_back(next(peer for peer in buffers.held if buffers.held[peer]))
    assert not buffers.waiters
    assert buffers.turns.waiting == 0
    assert not buffers.turns._held
    assert not buffers.turns._queues


def test_one_peer_alone_gets_half_and_two_a_third_each() -> None:
    buffers = Buffers(12)
    assert [buffers.ask("a", each) for each in range(8)].count(True) == 6
    assert [buffers.ask("b", each) for each in range(8)].count(True) == 3
    buffers.give_back("a")
    buffers.give_back("a")
    assert [buffers.held[peer] for peer in "ab"] == [4, 4]
    assert buffers.ask("c", 0)


def test_a_peer_that_holds_nothing_may_have_the_last_one() -> None:
    buffers = Buffers(3)
    assert all(buffers.ask(peer, 0) for peer in "abc")
    assert not buffers.ask("d", 0)
    buffers.give_back("b")
    assert buffers.served == [("d", 0)]


def test_a_peer_with_many_requests_gets_no_more_turns_than_one_with_a_few() -> None:
    buffers = Buffers(1)
    buffers.ask("a", 0)
    for number in range(1, 100):
        buffers.ask("a", number)
    buffers.ask("b", 0)
    buffers.ask("b", 1)
    for holder in "aaba":
        buffers.give_back(holder)
    assert buffers.served == [("a", 1), ("b", 0), ("a", 2), ("b", 1)]


def test_who_has_no_share_may_take_all() -> None:
    buffers = Buffers(3)
    assert [buffers.ask(None, each) for each in range(4)] == [True, True, True, False]


def test_what_counts_as_a_peer() -> None:
    def rc(host: int, nonce: int) -> Token:
        return Token(1, 1, 2, 0, 3, bytes(15) + bytes((host,)), Transport.RC, bytes(15) + bytes((nonce,)))

    def samehost(session: int) -> Token:
        return Token(1, 1, transport=Transport.SAMEHOST, secret=bytes(15) + bytes((session,)))

    assert peer_of(rc(1, 1)) == peer_of(rc(1, 2)) != peer_of(rc(2, 1))
    assert peer_of(samehost(1)) == peer_of(samehost(1)) != peer_of(samehost(2))
    assert peer_of(rc(1, 1)) != peer_of(Token(1, 1, gid=bytes(15) + b"\1"))
    assert hash(peer_of(Token(1, 1))) == hash(peer_of(Token(2, 2)))
