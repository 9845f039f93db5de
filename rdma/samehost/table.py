"""Who may be reached where: sessions and their regions, in memory that the parent and all workers share.

    header     the parent's pid
    sessions   sequence, id (2 words), pid, uid, start, image, rows in use   16 words each
    regions    address, length (0: none)                                     2 words each, `regions` of a session
    in flight  which region a system call moves bytes of, plus 1; 0: none    1 word each, `slots` of a worker

All words have 64 bits and are written whole. Only the parent writes sessions and regions; only a worker writes its own
in-flight words, except that the parent clears those of a worker that died.

Taking a region away and using it are decided like with hazard pointers. A worker puts the region into an in-flight
word, *then* looks whether it is still valid, then makes its call, then clears the word. The parent makes the region
invalid, *then* looks at the in-flight words. So one of the two always sees the other: when no word names an invalid
region, no call on it is running or will run. Each side's order holds by `barrier`, which only the parent pays for.
"""

import mmap
import os
import queue
import struct
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate

from s3verbs.rdma.samehost.process_memory import Identity, barrier
from s3verbs.rdma.samehost.protocol import ID_BYTES

SESSIONS = 256
"""The last byte of a session's id is its slot, so there can be no more."""
REGIONS = 4096
"""In each session."""
SLOTS = 64
"""System calls that one worker can have in flight."""

TRIES = 100
"""How often a reader looks again at once when the parent was writing; it writes for microseconds."""

_HEADER = 16
_SESSION = 16
_SEQUENCE, _ID, _PID, _UID, _START, _IMAGE, _ROWS = 0, 1, 3, 4, 5, 6, 7
_IDS = struct.Struct("<QQ")
_WORD = (1 << 64) - 1


class BeingWritten(Exception):
    """The parent was writing whenever the reader looked. On a busy machine it may be kept from running just then."""


@dataclass(frozen=True, slots=True)
class Region:
    """Row `row` of the session in `session`: that many bytes from that address on."""

    session: int
    row: int
    address: int
    length: int


@dataclass(slots=True)
class SessionRecord:
    """A session as a worker has seen it, not torn. `sequence` tells whether it is still like that."""

    slot: int
    id: bytes
    identity: Identity
    uid: int
    sequence: int
    regions: list[Region]
    _starts: list[int] = field(init=False)
    _furthest: list[Region] = field(init=False)

    def __post_init__(self) -> None:
        self.regions.sort(key=lambda region: region.address)
        self._starts = [region.address for region in self.regions]
        # Regions may overlap: of all that start before an address, the one that ends last holds it if any does.
        self._furthest = list(accumulate(self.regions, _ending_last))

    def find(self, address: int, size: int) -> Region | None:
        """A region that holds all of [address, address + size)."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        region = self._furthest[index]
        return region if address + size <= region.address + region.length else None


def _ending_last(one: Region, two: Region) -> Region:
    return one if one.address + one.length >= two.address + two.length else two


class SessionTable:
    """Made by the parent before it forks workers, which inherit it."""

    def __init__(self, workers: int, *, sessions: int = SESSIONS, regions: int = REGIONS, slots: int = SLOTS) -> None:
        if not 0 < sessions <= SESSIONS:
            raise ValueError(f"{sessions} sessions; at most {SESSIONS} are possible")
        self.workers = workers
        self.sessions = sessions
        self.regions = regions
        self.slots = slots
        self._regions_at = _HEADER + sessions * _SESSION
        self._flight_at = self._regions_at + sessions * regions * 2
        size = (self._flight_at + workers * slots) * 8
        self._memory = mmap.mmap(-1, size)
        self._words = memoryview(self._memory).cast("Q")
        self._words[0] = os.getpid()
        self._free = list(range(sessions))[::-1]
        self._free_rows: list[list[int]] = [[] for _ in range(sessions)]

    def close(self) -> None:
        """Unmap it in this process; nothing here uses it any more."""
        self._words.release()
        self._memory.close()

    # -- the parent --

    def begin(self, identity: Identity, uid: int) -> tuple[int, bytes] | None:
        """A session for that process: its slot and its id, which is a secret. None when all slots are taken."""
        if not self._free:
            return None
        slot = self._free.pop()
        id = os.urandom(ID_BYTES - 1) + bytes((slot,))
        at = self._session(slot)
        words = self._words
        self._open_write(at)
        words[at + _ID], words[at + _ID + 1] = _IDS.unpack(id)
        words[at + _PID], words[at + _UID] = identity.pid, uid
        words[at + _START], words[at + _IMAGE] = identity.start, identity.image
        words[at + _ROWS] = 0
        self._close_write(at)
        self._free_rows[slot] = []
        return slot, id

    def end(self, slot: int) -> None:
        """From now on nothing new begins in that session. The slot stays taken until `vacate`."""
        at = self._session(slot)
        self._open_write(at)
        self._words[at + _ID] = self._words[at + _ID + 1] = self._words[at + _PID] = 0
        for row in range(self._words[at + _ROWS]):
            self._words[self._region(slot, row) + 1] = 0
        self._close_write(at)

    def vacate(self, slot: int) -> None:
        """The slot of an ended session that nothing is in flight for may be used again."""
        self._free.append(slot)

    def add(self, slot: int, address: int, length: int) -> int | None:
        """The row of a new region; None when there is no more room. 0 < length, address + length < 2^64."""
        at = self._session(slot)
        words = self._words
        if self._free_rows[slot]:
            row = self._free_rows[slot].pop()
        elif (row := words[at + _ROWS]) == self.regions:
            return None
        region = self._region(slot, row)
        self._open_write(at)
        words[region] = address
        words[region + 1] = length
        words[at + _ROWS] = max(words[at + _ROWS], row + 1)
        self._close_write(at)
        return row

    def remove(self, slot: int, row: int) -> None:
        """From now on nothing new begins in that region. The row stays taken until `free`."""
        at = self._session(slot)
        self._open_write(at)
        self._words[self._region(slot, row) + 1] = 0
        self._close_write(at)

    def free(self, slot: int, row: int) -> None:
        """The row of a removed region that nothing is in flight for may be used again."""
        self._free_rows[slot].append(row)

    def in_flight(self) -> set[tuple[int, int]]:
        """(session slot, row) of every system call that may be running. Meaningful for what was ended or removed."""
        words = self._words[self._flight_at : self._flight_at + self.workers * self.slots].tolist()
        return {((word - 1) >> 32, (word - 1) & 0xFFFFFFFF) for word in words if word}

    def clear(self, worker: int) -> None:
        """A worker is dead, with all its threads: its system calls are over."""
        first = self._flight_at + worker * self.slots
        for index in range(first, first + self.slots):
            self._words[index] = 0

    def _open_write(self, at: int) -> None:
        self._words[at + _SEQUENCE] = self._words[at + _SEQUENCE] + 1 & _WORD
        barrier()

    def _close_write(self, at: int) -> None:
        barrier()
        self._words[at + _SEQUENCE] = self._words[at + _SEQUENCE] + 1 & _WORD
        barrier()

    # -- workers --

    @property
    def supervised(self) -> bool:
        """Whether the parent that keeps the table lives. Without it nobody would notice a client that goes away."""
        return self._words[0] in (os.getppid(), os.getpid())

    def sequence(self, slot: int) -> int:
        """Changes whenever the session in that slot or one of its regions does; odd while it does."""
        return self._words[self._session(slot) + _SEQUENCE]

    def session(self, id: bytes) -> SessionRecord | None:
        """The live session of that id, with its regions; None when there is none. Raises BeingWritten."""
        slot = id[-1]
        if slot >= self.sessions:
            return None
        at, wanted = self._session(slot), _IDS.unpack(id)
        for _ in range(TRIES):
            sequence = self._words[at + _SEQUENCE]
            if sequence & 1:
                os.sched_yield()
                continue
            head = self._words[at : at + _SESSION].tolist()
            first = self._region(slot, 0)
            rows = self._words[first : first + 2 * min(head[_ROWS], self.regions)].tolist()
            if self._words[at + _SEQUENCE] != sequence:
                continue
            if (head[_ID], head[_ID + 1]) != wanted or not head[_PID]:
                return None
            identity = Identity(head[_PID], head[_START], head[_IMAGE])
            regions = [
                Region(slot, row, rows[2 * row], rows[2 * row + 1])
                for row in range(len(rows) // 2)
                if rows[2 * row + 1]
            ]
            return SessionRecord(slot, id, identity, head[_UID], sequence, regions)
        raise BeingWritten

    def lives(self, id: bytes) -> bool:
        """Whether the session goes on."""
        at = self._session(id[-1])
        return id[-1] < self.sessions and (self._words[at + _ID], self._words[at + _ID + 1]) == _IDS.unpack(id)

    def holds(self, id: bytes, region: Region) -> bool:
        """Whether that region of that session is still registered. To be asked with an in-flight word set."""
        at, row = self._session(region.session), self._region(region.session, region.row)
        words = self._words
        return (
            words[row + 1] == region.length
            and words[row] == region.address
            and (words[at + _ID], words[at + _ID + 1]) == _IDS.unpack(id)
        )

    def _session(self, slot: int) -> int:
        return _HEADER + slot * _SESSION

    def _region(self, slot: int, row: int) -> int:
        return self._regions_at + (slot * self.regions + row) * 2

    def _flight(self, worker: int, slot: int) -> int:
        return self._flight_at + worker * self.slots + slot


class InFlight:
    """One worker's in-flight words. Any thread of it."""

    def __init__(self, table: SessionTable, worker: int) -> None:
        if not 0 <= worker < table.workers:
            raise ValueError(f"the table has no worker {worker}")
        self._words = table._words
        self._first = table._flight(worker, 0)
        self._idle: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(table.slots):
            self._idle.put(slot)

    def announce(self, region: Region) -> int:
        """What to give `clear`; waits while all words are taken."""
        slot = self._idle.get()
        self._words[self._first + slot] = (region.session << 32 | region.row) + 1
        return slot

    def clear(self, slot: int) -> None:
        self._words[self._first + slot] = 0
        self._idle.put(slot)
