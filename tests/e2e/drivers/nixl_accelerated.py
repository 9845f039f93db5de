"""The accelerated OBJ engine of the stock NIXL wheel: guarded DRAM buffers to and from objects, by RDMA.

One process has one agent, made by the case `create`; the other cases use it.
"""

import ctypes
import itertools
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import cases
import numpy
from cases import case, emit, payload, sha256
from nixl_cu13 import _bindings
from nixl_cu13._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t

Array = Any
Errors = tuple(error for name, error in vars(_bindings).items() if name.startswith("nixl") and name.endswith("Error"))

UNTOUCHED = 0xEE
GUARDED = 0xA5
GUARD = 4096 + 13
"""Bytes between two buffers; odd, so that buffers begin anywhere in a page."""


class Buffers:
    """Buffers in one piece of memory, each between two guards."""

    def __init__(self, sizes: Sequence[int]) -> None:
        begins = list(itertools.accumulate((size + GUARD for size in sizes), initial=GUARD))
        self.memory = numpy.full(begins[-1], GUARDED, dtype=numpy.uint8)
        self.views = [self.memory[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)]

    @classmethod
    def blank(cls, sizes: Sequence[int]) -> "Buffers":
        buffers = cls(sizes)
        for view in buffers.views:
            view[:] = UNTOUCHED
        return buffers

    @classmethod
    def filled(cls, keys: Sequence[str], sizes: Sequence[int]) -> "Buffers":
        buffers = cls(sizes)
        for view, key in zip(buffers.views, keys, strict=True):
            view[:] = numpy.frombuffer(payload(key, view.nbytes), dtype=numpy.uint8)
        return buffers

    def intact(self) -> bool:
        """Whether nothing has touched a guard."""
        position = 0
        for view in self.views:
            begin = view.ctypes.data - self.memory.ctypes.data
            if not (self.memory[position:begin] == GUARDED).all():
                return False
            position = begin + view.nbytes
        return bool((self.memory[position:] == GUARDED).all())

    def hold(self, keys: Sequence[str]) -> bool:
        """Whether each buffer holds the payload of its key."""
        return all(view.tobytes() == payload(key, view.nbytes) for view, key in zip(self.views, keys, strict=True))


class Engine:
    """An agent with one OBJ backend; any thread. Raises one of Errors when there can be none."""

    def __init__(self, endpoint: Any, bucket: str, parameters: dict[str, str]) -> None:
        settings = {
            "access_key": endpoint.access_key,
            "secret_key": endpoint.secret_key,
            "bucket": bucket,
            "endpoint_override": endpoint.url,
            "scheme": urlsplit(endpoint.url).scheme,
            "region": endpoint.region,
            "use_virtual_addressing": "false",
            "req_checksum": "required",
            "num_threads": "4",
            "accelerated": "true",
            "type": "dell",
            **parameters,
        }
        strict = nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
        self.agent = nixl_agent("s3verbs", nixl_agent_config(backends=[], sync_mode=strict))
        self.agent.create_backend("OBJ", settings)
        self._numbers = itertools.count(1)
        self.pool = Buffers([])

    def register(self, views: Sequence[Array]) -> Any:
        descriptors = [(view.ctypes.data, view.nbytes, 0, "") for view in views]
        return self.agent.register_memory(descriptors, "DRAM", backends=["OBJ"])

    @contextmanager
    def registered(self, views: Sequence[Array]) -> Iterator[None]:
        registration = self.register(views)
        try:
            yield
        finally:
            self.agent.deregister_memory(registration)

    def transfer(
        self, operation: str, keys: Sequence[str], views: Sequence[Array], offset: int = 0, timeout: float = 90
    ) -> str:
        """Move whole registered buffers to or from the objects, from `offset` on. The final state."""
        # The backend looks keys up by these numbers, for all threads.
        numbers = [next(self._numbers) for _ in keys]
        objects = [
            (0, offset + view.nbytes, number, key) for number, view, key in zip(numbers, views, keys, strict=True)
        ]
        remote = self.agent.register_memory(objects, "OBJ", backends=["OBJ"])
        handle = None
        until = time.monotonic() + timeout
        try:
            handle = self.agent.initialize_xfer(
                operation,
                self.agent.get_xfer_descs([(view.ctypes.data, view.nbytes, 0) for view in views], "DRAM"),
                self.agent.get_xfer_descs(
                    [(offset, view.nbytes, number) for number, view in zip(numbers, views, strict=True)], "OBJ"
                ),
                "s3verbs",
                backends=["OBJ"],
            )
            state: str = self.agent.transfer(handle)
            while state == "PROC":
                if time.monotonic() > until:
                    # Its memory still belongs to the engine's threads: nothing here can go on.
                    raise TimeoutError(f"{operation} of {len(keys)} objects is not over after {timeout} s")
                time.sleep(0.001)
                state = self.agent.check_xfer_state(handle)
        except Errors as error:
            state = f"ERR {type(error).__name__}"
        if handle is not None:
            self.agent.release_xfer_handle(handle)
        self.agent.deregister_memory(remote)
        return state


_engine: Engine | None = None


def engine() -> Engine:
    assert _engine is not None, "create comes first"
    return _engine


@case
def create(endpoint: Any, bucket: str, parameters: dict[str, str]) -> str:
    """What went wrong, or nothing."""
    global _engine
    try:
        _engine = Engine(endpoint, bucket, parameters)
    except Errors as error:
        return f"{type(error).__name__}: {error}"
    return ""


@case
def present(_: Any, keys: list[str]) -> list[bool]:
    answers = engine().agent.query_memory([(0, 0, 0, key) for key in keys], "OBJ", mem_type="OBJ")
    return [answer is not None for answer in answers]


@case
def write(_: Any, keys: list[str], sizes: list[int]) -> dict[str, Any]:
    """Payloads of the keys, from memory that is registered for this."""
    buffers = Buffers.filled(keys, sizes)
    state = _registered_transfer("WRITE", keys, buffers)
    return {"state": state, "intact": buffers.intact() and buffers.hold(keys)}


@case
def read(_: Any, keys: list[str], sizes: list[int], offset: int = 0) -> dict[str, Any]:
    """Into buffers filled with UNTOUCHED: the digest of each whole buffer."""
    buffers = Buffers.blank(sizes)
    state = _registered_transfer("READ", keys, buffers, offset)
    return {"state": state, "intact": buffers.intact(), "sha256": [sha256(view.data) for view in buffers.views]}


def _registered_transfer(operation: str, keys: list[str], buffers: Buffers, offset: int = 0) -> str:
    try:
        with engine().registered(buffers.views):
            return engine().transfer(operation, keys, buffers.views, offset)
    except Errors as error:
        return f"ERR {type(error).__name__} when registering"


@case
def hold(_: Any, sizes: list[int]) -> None:
    """Register memory of these sizes, all of it at once, for the cases that use what was held."""
    pool = engine().pool = Buffers.blank(sizes)
    engine().register([pool.memory])


@case
def rounds(_: Any, prefix: str, until: str, more: int) -> list[dict[str, Any]]:
    """Write what is held, blank it, read it back, again and again; `more` times after the file `until` is there. Each
    begins with an event: how many went well without a break, and when that was on the system's clock."""
    outcomes: list[dict[str, Any]] = []
    well = after = 0
    for number in itertools.count():
        emit({"event": well, "at": time.monotonic()})
        after += Path(until).exists()
        outcome = _round(engine().pool, f"{prefix}/{number}")
        outcomes.append(outcome)
        if outcome["same"]:
            well += 1
        else:
            well = 0
            time.sleep(0.05)
        if after > more:
            break
    return outcomes


@case
def one_round(_: Any, prefix: str) -> dict[str, Any]:
    return _round(engine().pool, prefix)


def _round(pool: Buffers, prefix: str) -> dict[str, Any]:
    keys = [f"{prefix}/{number}" for number in range(len(pool.views))]
    for view, key in zip(pool.views, keys, strict=True):
        view[:] = numpy.frombuffer(payload(key, view.nbytes), dtype=numpy.uint8)
    write = engine().transfer("WRITE", keys, pool.views)
    for view in pool.views:
        view[:] = UNTOUCHED
    read = engine().transfer("READ", keys, pool.views) if write == "DONE" else ""
    return {"prefix": prefix, "write": write, "read": read, "same": pool.hold(keys), "intact": pool.intact()}


@case
def threads(_: Any, count: int, repeat: int, sizes: list[int], prefix: str) -> list[str]:
    """Each thread writes and reads objects of its own. What failed."""

    def work(thread: int, failures: list[str]) -> None:
        for number in range(repeat):
            _there_and_back([f"{prefix}/{thread}/{number}/{size}" for size in sizes], sizes, failures)

    return _together([lambda failures, thread=thread: work(thread, failures) for thread in range(count)])


def _there_and_back(keys: Sequence[str], sizes: Sequence[int], failures: list[str]) -> None:
    """Memory registered, written from, read into, and given back."""
    source, target = Buffers.filled(keys, sizes), Buffers.blank(sizes)
    with engine().registered(source.views), engine().registered(target.views):
        states = [
            engine().transfer(operation, keys, buffers.views)
            for operation, buffers in (("WRITE", source), ("READ", target))
        ]
    if states != ["DONE", "DONE"]:
        failures.append(f"{keys[0]}: {states}")
    elif not (target.hold(keys) and source.hold(keys)):
        failures.append(f"{keys[0]}: other bytes")
    elif not (source.intact() and target.intact()):
        failures.append(f"{keys[0]}: a guard was touched")


def _together(works: Sequence[Callable[[list[str]], None]]) -> list[str]:
    failures: list[str] = []

    def run(work: Callable[[list[str]], None]) -> None:
        try:
            work(failures)
        except (*Errors, TimeoutError) as error:
            failures.append(f"{type(error).__name__}: {error}")

    running = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return failures[:20]


@case
def churn(_: Any, seconds: float, prefix: str) -> dict[str, Any]:
    """Memory is registered and given back without pause, beside threads that move objects."""
    until = time.monotonic() + seconds
    moved, registered = itertools.count(), itertools.count()
    sizes = [1, 4097, 300_000, 2 << 20]
    footprints: list[dict[str, int]] = []

    def move(thread: int, failures: list[str]) -> None:
        while time.monotonic() < until and not failures:
            size = sizes[next(moved) % len(sizes)]
            _there_and_back([f"{prefix}/{thread}/{size}"], [size], failures)

    def register(failures: list[str]) -> None:
        arena = Buffers([1 << 20] * 8)
        pieces = [*arena.views, arena.memory, *(view[7:-9] for view in arena.views)]
        while time.monotonic() < until and not failures:
            # Several at once, of which some lie in others, given back in another order.
            chosen = [engine().register([pieces[next(registered) % len(pieces)]]) for _ in range(3)]
            for registration in random.sample(chosen, 3):
                engine().agent.deregister_memory(registration)
        if not arena.intact():
            failures.append("memory that was registered only has changed")

    def stay(failures: list[str]) -> None:
        """What is held keeps its registration all the time."""
        for number in itertools.count():
            if time.monotonic() >= until or failures:
                return
            outcome = _round(engine().pool, f"{prefix}/held/{number % 4}")
            if (outcome["write"], outcome["read"], outcome["same"], outcome["intact"]) != ("DONE", "DONE", True, True):
                failures.append(str(outcome))

    def watch(failures: list[str]) -> None:
        while time.monotonic() < until and not failures:
            footprints.append(footprint())
            time.sleep(seconds / 8)
        footprints.append(footprint())

    movers = [lambda failures, thread=thread: move(thread, failures) for thread in range(4)]
    failures = _together([*movers, register, register, stay, watch])
    return {
        "failures": failures,
        "moved": next(moved),
        "registered": next(registered),
        "footprints": footprints,
    }


def footprint() -> dict[str, int]:
    """Resident bytes, descriptors and threads of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "resident": pages * os.sysconf("SC_PAGE_SIZE"),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
    }


@case
def fork(endpoint: Any, bucket: str, parameters: dict[str, str], prefix: str) -> list[dict[str, Any]]:
    """Fork with an agent at work, and let the child do something; what was held is moved after each."""
    parents = engine()
    mine = Buffers.blank([10_000])
    inherited = parents.register(mine.views)

    def leave() -> None:
        """As a child that only wanted to call another program."""

    def give_back() -> None:
        """As the destructors of a child do that inherited the parent's objects."""
        parents.agent.deregister_memory(inherited)

    def end() -> None:
        """With the exit handlers and destructors of all libraries."""
        ctypes.CDLL(None).exit(0)

    def move() -> None:
        # Nothing of the parent's is destroyed: that would wait for threads which the child does not have.
        global _engine
        _engine = Engine(endpoint, bucket, parameters)
        failures: list[str] = []
        _there_and_back([f"{prefix}/child"], [100_000], failures)
        assert not failures, failures

    outcomes = []
    for work in (leave, give_back, end, move):
        status = _in_child(work)
        outcomes.append({"child": work.__name__, "status": status} | _round(parents.pool, f"{prefix}/{work.__name__}"))
    parents.agent.deregister_memory(inherited)
    return outcomes


def _in_child(work: Callable[[], None], timeout: float = 60) -> int:
    """The child's exit status; below 0 the signal that ended it, SIGKILL when it hung."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001  the child must not go on as the parent
            traceback.print_exc()
            os._exit(1)
    until = time.monotonic() + timeout
    while (found := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(found[1])


if __name__ == "__main__":
    cases.main()
