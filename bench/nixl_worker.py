"""Runs NIXL's OBJ plugin for `s3verbs bench kv`: one process for each transport, whose CPU time is what is measured.

Started by path, with the interpreter that has NIXL, so it imports nothing of s3verbs: the standard library, numpy and
NIXL. It speaks JSON lines. The first line of standard input is the job:

    {"parameters": {...} of the OBJ plugin, "slots": N, "slot_bytes": B, "timeout": seconds}

It answers {"event": "ready", "nixl": version, "register_seconds": s}. Then each line is one window of objects,

    {"operation": "store" | "load", "keys": [...], "sizes": [bytes, ...], "first": N, "salt": N}

`first` being the number of its first object, answered with {"event": "done", "seconds": s, "cpu": s}. Whatever fails
is answered with {"event": "error", "kind": "nixl" | "plugin" | "backend" | "memory" | "transfer" | "content", "text":
...}, and the process ends.

The clock and the CPU counter run while objects are registered, moved and released; not while the buffer is filled or
compared. The buffer is made and registered once. A salt gives every store content of its own, and a load begins with
other bytes in the buffer, so neither an older object nor a transfer that moved nothing passes.
"""

import ctypes
import importlib
import importlib.metadata
import importlib.util
import json
import mmap
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

MODULES = ("nixl_cu13", "nixl_cu12", "nixl")
"""Packages that hold the bindings, the first that imports is taken; only that of CUDA 13 has accelerated engines."""
REGION_BYTES = 2 << 30
"""Of one registration at most; cuObject's limit is 4 GiB - 64 KiB."""
POLL_SECONDS = 0.001
"""What LMCache waits between two looks at a transfer."""
BLOCK = 1 << 20
"""Bytes of the pattern before it repeats, with another number added."""
ABSENT = 0xEE
"""What a load must overwrite."""


class WorkerError(Exception):
    """`kind` as in the module's docstring."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Pattern:
    """Content that tells apart every object of every store, and every MiB in it. `size` in bytes."""

    def __init__(self, numpy: Any) -> None:
        self._numpy = numpy
        self._base = numpy.random.default_rng(20_240_607).integers(0, 1 << 64, BLOCK // 8, dtype=numpy.uint64)
        self._block = numpy.empty_like(self._base)

    def fill(self, slot: Any, salt: int, number: int) -> None:
        """Write the content of object `number` into `slot`, a contiguous array of bytes."""
        for start, block in self._blocks(slot.nbytes, salt, number):
            slot[start : start + block.nbytes] = block

    def first_difference(self, slot: Any, salt: int, number: int) -> int | None:
        """Where `slot` has other content, None when it has not."""
        for start, block in self._blocks(slot.nbytes, salt, number):
            found = slot[start : start + block.nbytes]
            words = block.nbytes // 8 * 8
            same = self._numpy.array_equal(found[:words].view("u8"), block[:words].view("u8"))
            if not same or not self._numpy.array_equal(found[words:], block[words:]):
                return start + int((found != block).argmax())
        return None

    def _blocks(self, size: int, salt: int, number: int) -> Iterator[tuple[int, Any]]:
        for start in range(0, size, BLOCK):
            step = (salt * 0x9E3779B97F4A7C15 + number * 0xC2B2AE3D27D4EB4F + start * 0x165667B19E3779F9) % (1 << 64)
            self._numpy.add(self._base, self._numpy.uint64(step), out=self._block)
            yield start, self._block.view("u1")[: size - start]


class Objects:
    """The agent with its OBJ backend, and the registered buffer of `slots` times `slot_bytes`."""

    def __init__(self, job: dict[str, Any]) -> None:
        bindings, self.version = load_nixl()
        import numpy

        self._timeout = job["timeout"]
        self._slot_bytes = job["slot_bytes"]
        self._pattern = Pattern(numpy)
        self._agent = self._with_backend(bindings, job["parameters"])
        size = job["slots"] * self._slot_bytes
        try:
            memory = mmap.mmap(-1, size)
        except OSError as error:
            raise WorkerError("memory", f"a buffer of {size} bytes: {error.strerror}") from None
        # Where the kernel has huge pages, both transports get them.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        self._buffer = numpy.frombuffer(memory, dtype="u1")
        self._buffer.fill(ABSENT)
        began = time.perf_counter()
        self._register(size)
        self.register_seconds = time.perf_counter() - began

    def move(self, operation: str, keys: list[str], sizes: list[int], first: int, salt: int) -> tuple[float, float]:
        """One window. Seconds and CPU seconds."""
        slots = [self._slot(place, size) for place, size in enumerate(sizes)]
        for number, slot in enumerate(slots, first):
            if operation == "store":
                self._pattern.fill(slot, salt, number)
            else:
                slot.fill(ABSENT)
        cpu, began = cpu_seconds(), time.perf_counter()
        self._transfer("WRITE" if operation == "store" else "READ", keys, slots)
        seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu
        if operation == "load":
            for number, (key, slot) in enumerate(zip(keys, slots, strict=True), first):
                if (place := self._pattern.first_difference(slot, salt, number)) is not None:
                    raise WorkerError("content", f"{key}: byte {place} is not what was stored")
        return seconds, cpu

    def close(self) -> None:
        for region in self._regions:
            self._agent.deregister_memory(region)

    def _slot(self, place: int, size: int) -> Any:
        return self._buffer[place * self._slot_bytes :][:size]

    def _register(self, size: int) -> None:
        step = max(1, REGION_BYTES // self._slot_bytes) * self._slot_bytes
        base = self._buffer.ctypes.data
        self._regions: list[Any] = []
        for start in range(0, size, step):
            described = [(base + start, min(step, size - start), 0, "")]
            try:
                self._regions.append(self._agent.register_memory(described, "DRAM", backends=["OBJ"]))
            except Exception as error:  # noqa: BLE001 whatever the bindings raise is an answer
                raise WorkerError("memory", f"NIXL cannot register {size} bytes: {said(error)}") from None

    def _transfer(self, operation: str, keys: list[str], slots: list[Any]) -> None:
        agent, deadline = self._agent, time.monotonic() + self._timeout
        objects = [(0, slot.nbytes, number, key) for number, (slot, key) in enumerate(zip(slots, keys, strict=True))]
        try:
            remote = agent.register_memory(objects, "OBJ", backends=["OBJ"])
            handle = agent.initialize_xfer(
                operation,
                agent.get_xfer_descs([(slot.ctypes.data, slot.nbytes, 0) for slot in slots], "DRAM"),
                agent.get_xfer_descs([(0, slot.nbytes, number) for number, slot in enumerate(slots)], "OBJ"),
                agent.name,
                backends=["OBJ"],
            )
            state = agent.transfer(handle)
            while state == "PROC" and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
                state = agent.check_xfer_state(handle)
        except Exception as error:  # noqa: BLE001 whatever the bindings raise is an answer
            raise WorkerError("transfer", f"{operation} of {len(keys)} objects: {said(error)}") from None
        if state == "PROC":
            raise WorkerError("transfer", f"{operation} of {len(keys)} objects took more than {self._timeout:g} s")
        if state != "DONE":
            raise WorkerError("transfer", f"{operation} of {len(keys)} objects ended with {state}")
        agent.release_xfer_handle(handle)
        agent.deregister_memory(remote)

    @staticmethod
    def _with_backend(bindings: Any, parameters: dict[str, str]) -> Any:
        agent = bindings.nixl_agent("s3verbs-bench", bindings.nixl_agent_config(backends=[]))
        try:
            agent.create_backend("OBJ", parameters)
        except Exception as error:  # noqa: BLE001 whatever the bindings raise is an answer
            if "NOT_FOUND" in str(error):
                raise WorkerError("plugin", f"NIXL cannot load its OBJ plugin: {why_no_plugin()}") from None
            raise WorkerError("backend", f"NIXL cannot make its OBJ backend: {said(error)}") from None
        return agent


def load_nixl() -> tuple[Any, str]:
    """The module of the bindings, and the package with its version."""
    try:
        importlib.import_module("numpy")
    except ImportError:
        raise WorkerError("nixl", "numpy is not installed") from None
    problems = []
    for name in MODULES:
        try:
            bindings = importlib.import_module(f"{name}._api")
        except ImportError as error:
            if importlib.util.find_spec(name) is not None:
                problems.append(f"{name} does not import: {error}")
            continue
        return bindings, f"{name} {importlib.metadata.version(name.replace('_', '-'))}"
    raise WorkerError("nixl", "; ".join(problems) or "NIXL is not installed")


def why_no_plugin() -> str:
    """The usual reason is that the library of its accelerated engines is not found."""
    try:
        ctypes.CDLL("libcuobjclient.so.1")
    except OSError as error:
        return str(error)
    return "it is not there, or a library that it needs is not"


def said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def cpu_seconds() -> float:
    """User and system time of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(event: str, **fields: Any) -> None:
        answers.write(json.dumps({"event": event, **fields}) + "\n")
        answers.flush()

    code = 0
    try:
        objects = Objects(json.loads(sys.stdin.readline()))
        answer("ready", nixl=objects.version, register_seconds=objects.register_seconds)
        for line in sys.stdin:
            seconds, cpu = objects.move(**json.loads(line))
            answer("done", seconds=seconds, cpu=cpu)
        objects.close()
    except WorkerError as error:
        answer("error", kind=error.kind, text=str(error))
        code = 1
    except KeyboardInterrupt:
        code = 130
    # Threads of the plugin may be in the middle of a transfer; waiting for them would hang.
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
