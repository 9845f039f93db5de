"""The session table that the server's processes share."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.rdma.samehost.process_memory import Identity, join_barrier
from s3verbs.rdma.samehost.table import BeingWritten, InFlight, Region, SessionRecord, SessionTable

WHO = Identity(1234, 99, 77)


@pytest.fixture
def table() -> Iterator[SessionTable]:
    made = SessionTable(2, sessions=3, regions=4, slots=2)
    yield made
    made.close()


def begin(table: SessionTable) -> tuple[int, bytes]:
    begun = table.begin(WHO, 1000)
    assert begun is not None
    return begun


def test_a_session_is_found_by_its_id_until_it_ends(table: SessionTable) -> None:
    slot, id = begin(table)
    record = table.session(id)
    assert record is not None
    assert (record.slot, record.id, record.identity, record.uid, record.regions) == (slot, id, WHO, 1000, [])
    assert table.lives(id)
    table.end(slot)
    assert table.session(id) is None
    assert not table.lives(id)


def test_no_other_id_finds_a_session(table: SessionTable) -> None:
    slot, id = begin(table)
    for other in (bytes(16), id[:-1] + bytes((slot + 1,)), id[:-1] + b"\xff", bytes(15) + id[-1:], os.urandom(16)):
        assert table.session(other) is None
        assert not table.lives(other)
    table.end(slot)
    assert table.session(bytes(15) + bytes((slot,))) is None


def test_slots_and_rows_are_taken_until_they_are_given_back(table: SessionTable) -> None:
    slots = {begin(table)[0] for _ in range(3)}
    assert slots == {0, 1, 2}
    assert table.begin(WHO, 0) is None
    table.end(1)
    assert table.begin(WHO, 0) is None
    table.vacate(1)
    slot, id = begin(table)
    assert slot == 1
    rows = [table.add(slot, 4096 * number, 100) for number in range(4)]
    assert sorted(row for row in rows if row is not None) == [0, 1, 2, 3]
    assert table.add(slot, 0, 1) is None
    table.remove(slot, 2)
    assert table.add(slot, 0, 1) is None
    record = table.session(id)
    assert record is not None
    assert [region.row for region in record.regions] == [0, 1, 3]
    table.free(slot, 2)
    assert table.add(slot, 5, 6) == 2


def test_a_new_session_in_a_slot_has_no_region_of_the_old(table: SessionTable) -> None:
    slot, id = begin(table)
    table.add(slot, 4096, 100)
    region = Region(slot, 0, 4096, 100)
    assert table.holds(id, region)
    table.end(slot)
    assert not table.holds(id, region)
    table.vacate(slot)
    _, second = begin(table)
    record = table.session(second)
    assert record is not None
    assert record.regions == []
    assert table.add(slot, 4096, 100) == 0
    assert table.holds(second, region)
    assert not table.holds(id, region)


def test_every_change_changes_the_sequence(table: SessionTable) -> None:
    slot, _ = begin(table)
    seen = {table.sequence(slot)}
    row = table.add(slot, 1, 2)
    assert row is not None
    seen.add(table.sequence(slot))
    table.remove(slot, row)
    seen.add(table.sequence(slot))
    table.end(slot)
    seen.add(table.sequence(slot))
    assert len(seen) == 4


def test_a_session_that_is_being_written_is_not_called_ended(table: SessionTable) -> None:
    slot, id = begin(table)
    at = table._session(slot)
    table._open_write(at)
    with pytest.raises(BeingWritten):
        table.session(id)
    table._close_write(at)
    assert table.session(id) is not None


def test_what_is_in_flight_is_seen_until_it_is_cleared(table: SessionTable) -> None:
    first, second = InFlight(table, 0), InFlight(table, 1)
    assert table.in_flight() == set()
    at = first.announce(Region(0, 0, 1, 1))
    second.announce(Region(2, 3, 1, 1))
    second.announce(Region(1, 2, 1, 1))
    assert table.in_flight() == {(0, 0), (2, 3), (1, 2)}
    first.clear(at)
    assert table.in_flight() == {(2, 3), (1, 2)}
    table.clear(0)
    assert table.in_flight() == {(2, 3), (1, 2)}
    table.clear(1)
    assert table.in_flight() == set()


@pytest.mark.parametrize("worker", [-1, 2])
def test_a_worker_that_the_table_does_not_know_is_refused(table: SessionTable, worker: int) -> None:
    with pytest.raises(ValueError, match="no worker"):
        InFlight(table, worker)


@pytest.mark.parametrize("sessions", [0, 257])
def test_an_impossible_count_of_sessions_is_refused(sessions: int) -> None:
    with pytest.raises(ValueError, match="sessions"):
        SessionTable(1, sessions=sessions)


ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=12)


@given(ranges, st.integers(0, 100), st.integers(1, 30))
def test_a_range_is_found_exactly_if_one_region_holds_it(held: list[tuple[int, int]], address: int, size: int) -> None:
    regions = [Region(0, row, *where) for row, where in enumerate(held)]
    record = SessionRecord(0, b"", WHO, 0, 0, list(regions))
    found = record.find(address, size)
    holding = [one for one in regions if one.address <= address and address + size <= one.address + one.length]
    assert found in holding if holding else found is None


@settings(max_examples=50)
@given(st.lists(st.one_of(st.tuples(st.integers(0, 9), st.integers(1, 9)), st.integers(0, 9)), max_size=30))
def test_readers_see_what_was_added_and_not_removed(steps: list[tuple[int, int] | int]) -> None:
    table = SessionTable(1, sessions=1, regions=5, slots=1)
    slot, id = begin(table)
    held: dict[int, tuple[int, int]] = {}
    for step in steps:
        if isinstance(step, tuple):
            row = table.add(slot, *step)
            assert (row is None) == (len(held) == 5)
            if row is not None:
                assert row not in held
                held[row] = step
        elif held:
            row = list(held)[step % len(held)]
            del held[row]
            table.remove(slot, row)
            table.free(slot, row)
        record = table.session(id)
        assert record is not None
        assert {region.row: (region.address, region.length) for region in record.regions} == held
    table.close()


def settled(table: SessionTable, id: bytes) -> SessionRecord | None:
    """What a reader finds that looks again."""
    while True:
        with suppress(BeingWritten):
            return table.session(id)


def test_no_reader_sees_half_of_a_change() -> None:
    """A writer keeps changing a session and its regions; what belongs together is always seen together."""
    table = SessionTable(1, sessions=1, regions=8, slots=1)
    ids, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            number = 0
            while os.getppid() != 1:
                number += 1
                begun = table.begin(Identity(number, number * 3, number * 5), number * 7)
                assert begun is not None
                os.write(told, begun[1])
                for row in range(4):
                    assert table.add(begun[0], number << 20, number << 20 | row) is not None
                table.remove(begun[0], 1)
                table.free(begun[0], 1)
                table.add(begun[0], number << 20, number << 20 | 9)
                table.end(begun[0])
                table.vacate(begun[0])
        finally:
            os._exit(1)
    try:
        join_barrier()
        seen = 0
        until = time.monotonic() + 20
        while seen < 300 and time.monotonic() < until:
            id = os.read(ids, 16)
            while record := settled(table, id):
                number = record.identity.pid
                assert record.identity == Identity(number, number * 3, number * 5)
                assert record.uid == number * 7
                for region in record.regions:
                    assert region.address == region.length >> 20 << 20 == number << 20
                seen += bool(record.regions)
        assert seen >= 300
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(ids)
        os.close(told)
        table.close()
