"""A fabric inside one process, over plain buffers, for tests: it fails where it is told to, and checks its caller.

    memory = LoopbackMemory()
    faults = LoopbackFaults()
    faults.add("read", 2, Fault(RemoteAccess))          the third READ
    fabric = LoopbackFabric(memory, faults=faults)
    token = memory.expose(bytearray(1 << 20))

It moves bytes in two steps with a turn of the loop between them, so a buffer that is given away too early holds the
wrong bytes, and a transfer that fails has moved half. What breaks the rules of `rdma/fabric` raises LoopbackMisuse
and is noted: `check` raises it again at the end of a test, in case somebody swallowed it.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NoReturn

from s3verbs.rdma.errors import Decline, Declined, Failure, PeerUnreachable, RemoteAccess
from s3verbs.rdma.fabric import CHUNK, Arena, RegisteredBuffer
from s3verbs.rdma.staging import StagingBuffer
from s3verbs.rdma.token import MAX_SIZE, Token, Transport

Step = Literal["open", "read", "write", "close"]

GID = bytes(10) + b"\xff\xff" + bytes((127, 0, 0, 1))
PORT = 18515

_FIRST_ADDRESS = 0x7F00_0000_0000
_GUARD = 1 << 20
"""Bytes between two exposed buffers that belong to none."""


class LoopbackMisuse(AssertionError):
    """The caller broke a rule of the fabric port."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at a step, in this order: a pause of `delay` seconds; with `hang` a wait that only cancellation
    ends, and that takes `flush` seconds more then, as a queue pair's flush does, with the buffer still in use; the
    error. A close can only be delayed: it never raises."""

    error: Callable[[], Exception] | None = None
    delay: float = 0.0
    hang: bool = False
    flush: float = 0.0


class LoopbackFaults:
    """Faults by step and number: the n-th open, read, write or close of the fabric, counted from 0. One fault each."""

    def __init__(self) -> None:
        self.passed: list[Step] = []
        """The steps that were reached, in order."""
        self._due: dict[tuple[Step, int], Fault] = {}
        self._counts: dict[Step, int] = {"open": 0, "read": 0, "write": 0, "close": 0}

    def add(self, step: Step, number: int, fault: Fault) -> None:
        if step == "close" and (fault.error is not None or fault.hang):
            raise ValueError("a close can only be delayed")
        self._due[step, number] = fault

    def reach(self, step: Step) -> Fault | None:
        self.passed.append(step)
        number = self._counts[step]
        self._counts[step] += 1
        return self._due.pop((step, number), None)


class LoopbackMemory:
    """The clients' memory: buffers by address, each with a key and a secret of its own."""

    def __init__(self) -> None:
        self._exposed: dict[int, tuple[memoryview, Token]] = {}
        self._next = _FIRST_ADDRESS

    def expose(
        self,
        buffer: "bytearray | memoryview",
        *,
        transport: Transport = Transport.RC,
        secret: bytes | None = None,
        gid: bytes = GID,
    ) -> Token:
        """A token for all of a writable buffer, at an address made up for it. `secret` is drawn when it is None."""
        view = memoryview(buffer).cast("B")
        if view.readonly or not 0 < len(view) <= MAX_SIZE:
            raise ValueError("only a writable buffer of 1 byte to 4 GiB can be exposed")
        address, number = self._next, len(self._exposed) + 1
        self._next += len(view) + _GUARD
        if transport is Transport.DC:
            token = Token(address, len(view), 0x1000 + number, qp=number, gid=gid)
        else:
            drawn = random.randbytes(16) if secret is None else secret  # noqa: S311  a seeded test, no secret
            if transport is Transport.RC:
                token = Token(address, len(view), 0x1000 + number, 0, PORT, gid, transport, drawn)
            else:
                token = Token(address, len(view), transport=transport, secret=drawn)
        self._exposed[address] = (view, token)
        return token

    def revoke(self, token: Token) -> None:
        """What the token names cannot be reached any more. Raises KeyError when it names no exposed buffer."""
        for address, (view, exposed) in self._exposed.items():
            if exposed.secret == token.secret and address <= token.address < address + len(view):
                del self._exposed[address]
                return
        raise KeyError(repr(token))

    def knows(self, token: Token) -> bool:
        """Whether anybody is there who knows the token's secret."""
        return any(exposed.secret == token.secret for _, exposed in self._exposed.values())

    def reach(self, token: Token, offset: int, length: int) -> memoryview:
        """The exposed bytes at `offset` of the token's buffer. Raises RemoteAccess, as the client's device would."""
        begin = token.address + offset
        for address, (view, exposed) in self._exposed.items():
            if address <= begin and begin + length <= address + len(view):
                if (token.rkey, token.secret) != (exposed.rkey, exposed.secret):
                    raise RemoteAccess("wrong remote key")
                return view[begin - address : begin - address + length]
        raise RemoteAccess("no region has these addresses")


class LoopbackFabric:
    """A Fabric over `memory`. With `arena`, buffers must lie in it. With `seed`, transfers take a random number of the
    loop's turns, so that they complete in any order. Loop thread only."""

    def __init__(
        self,
        memory: LoopbackMemory,
        *,
        transports: Iterable[Transport] = Transport,
        faults: LoopbackFaults | None = None,
        arena: Arena | None = None,
        seed: int | None = None,
    ) -> None:
        self.memory = memory
        self.faults = faults or LoopbackFaults()
        self.arena = arena
        self.opened = 0
        self.open_regions = 0
        self.moved = 0
        """Bytes of the transfers that succeeded."""
        self.in_use: dict[int, int] = {}
        """By buffer address: how many writes use it, or -1 for a read."""
        self._transports = frozenset(transports)
        self._random = random.Random(seed) if seed is not None else None  # noqa: S311  a seeded test, no secret
        self._closed = False
        self._misuses: list[LoopbackMisuse] = []

    @property
    def transports(self) -> frozenset[Transport]:
        return self._transports

    @property
    def connections(self) -> int:
        return 0

    async def open(self, token: Token) -> "LoopbackRegion":
        if self._closed:
            self.misuse("open after the fabric's close")
        await suffer(self.faults.reach("open"))
        if token.transport not in self._transports:
            raise Declined(Decline.NO_TRANSPORT)
        if not self.memory.knows(token):
            if token.transport is Transport.SAMEHOST:
                raise Declined(Decline.NO_SESSION)
            raise PeerUnreachable(Failure.REJECTED)
        self.opened += 1
        self.open_regions += 1
        return LoopbackRegion(self, token)

    def describe(self) -> str:
        return f"loopback: {', '.join(sorted(each.value for each in self._transports))}"

    async def close(self) -> None:
        if self.open_regions:
            self.misuse(f"closed with {self.open_regions} open regions")
        self._closed = True

    def check(self) -> None:
        """At the end of a test: no rule was broken, every region is closed, nothing is on its way."""
        if self._misuses:
            raise self._misuses[0]
        if self.open_regions or self.in_use:
            raise LoopbackMisuse(f"{self.open_regions} regions are open, {len(self.in_use)} buffers in use")

    def misuse(self, text: str) -> NoReturn:
        self._misuses.append(LoopbackMisuse(text))
        raise self._misuses[-1]

    async def turns(self) -> None:
        for _ in range(self._random.randrange(8) if self._random is not None else 1):
            await asyncio.sleep(0)


class LoopbackRegion:
    """A RemoteRegion of the loopback fabric."""

    def __init__(self, fabric: LoopbackFabric, token: Token) -> None:
        self._fabric = fabric
        self._token = token
        self._closed = False
        self._running = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def size(self) -> int:
        return self._token.size

    @property
    def transport(self) -> Transport:
        return self._token.transport

    @property
    def device(self) -> str:
        return "loopback0"

    async def read(self, offset: int, into: RegisteredBuffer, length: int) -> None:
        await self._transfer("read", offset, into, length, 0)

    async def write(self, offset: int, data: RegisteredBuffer, length: int, start: int = 0) -> None:
        await self._transfer("write", offset, data, length, start)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._quiet.wait()
        self._fabric.open_regions -= 1
        await suffer(self._fabric.faults.reach("close"))

    async def _transfer(
        self, step: Literal["read", "write"], offset: int, buffer: RegisteredBuffer, length: int, start: int
    ) -> None:
        self._check(step, offset, buffer, length, start)
        fabric = self._fabric
        fault = fabric.faults.reach(step)
        lease = _lease(buffer)
        fabric.in_use[buffer.address] = -1 if step == "read" else fabric.in_use.get(buffer.address, 0) + 1
        self._running += 1
        self._quiet.clear()
        try:
            ours = buffer.view[start : start + length]
            theirs = fabric.memory.reach(self._token, offset, length)
            into, data = (ours, theirs) if step == "read" else (theirs, ours)
            half = length // 2
            into[:half] = data[:half]
            await fabric.turns()
            await suffer(fault)
            into[half:] = data[half:]
            fabric.moved += length
        finally:
            self._running -= 1
            if not self._running:
                self._quiet.set()
            fabric.in_use[buffer.address] -= 1
            if fabric.in_use[buffer.address] <= 0:
                del fabric.in_use[buffer.address]
            if _lease(buffer) != lease:
                fabric.misuse(f"a buffer was given back during a {step}")

    def _check(self, step: str, offset: int, buffer: RegisteredBuffer, length: int, start: int) -> None:
        misuse, arena = self._fabric.misuse, self._fabric.arena
        if self._closed:
            misuse(f"{step} after close")
        if not (length > 0 and start >= 0 and start + length <= CHUNK):
            misuse(f"{step} of {length} bytes at {start} of a buffer")
        if not (offset >= 0 and offset + length <= self.size):
            misuse(f"{step} of {length} bytes at {offset} of a region of {self.size}")
        if arena is not None and not arena.address <= buffer.address <= arena.address + arena.size - CHUNK:
            misuse(f"{step} with a buffer outside of the arena")
        if _lease(buffer) == 0:
            misuse(f"{step} with a buffer that nobody holds")
        users = self._fabric.in_use.get(buffer.address, 0)
        if users < 0 or (users and step == "read"):
            misuse(f"{step} with a buffer that another transfer uses")


async def suffer(fault: Fault | None) -> None:
    if fault is None:
        return
    if fault.delay:
        await asyncio.sleep(fault.delay)
    if fault.hang:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await _shielded_pause(fault.flush)
    if fault.error is not None:
        raise fault.error()


def _lease(buffer: RegisteredBuffer) -> int | None:
    """A number that changes when the buffer changes hands, 0 when nobody holds it, None when it cannot be told."""
    return buffer.lease if isinstance(buffer, StagingBuffer) else None


async def _shielded_pause(seconds: float) -> None:
    """Cancellation does not end it."""
    end = asyncio.get_running_loop().time() + seconds
    while (left := end - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue
