"""What must not leak: objects of the verbs library in the kernel, by process, and file descriptors."""

import ctypes
import hashlib
import json
import mmap
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from s3verbs.rdma.client.transport import Memory

KINDS = ("qp", "mr", "pd", "cq", "ctx", "cm_id")
GUARD = 1 << 16
PATTERN = bytes(range(1, 256)) * (GUARD // 255 + 1)


def objects(pid: int) -> dict[str, int]:
    """How many objects of each kind the kernel has for a process, from `rdma resource show`."""
    found = {}
    for kind in KINDS:
        output = subprocess.run(["rdma", "-j", "resource", "show", kind], capture_output=True, text=True, check=True)
        entries = json.loads(output.stdout or "[]")
        found[kind] = sum(int(entry.get("pid", -1)) == pid for entry in entries)
    return found


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether the condition comes true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def settled(read: Callable[[], Mapping[str, int]], expected: Mapping[str, int], seconds: float = 30.0) -> None:
    """Wait until the counts are the expected ones; assert that they are."""
    assert eventually(lambda: read() == expected, seconds), read()


class GuardedBuffer:
    """`size` bytes of page-aligned memory between two guards that nothing may write to.

    The last byte of the memory is next to its guard; the first one is `lead` bytes after its own.
    """

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        self.size = size
        self._begin = GUARD + -size % page
        self._map = mmap.mmap(-1, self._begin + size + GUARD)
        self._all = memoryview(self._map)
        self._all[: self._begin] = (PATTERN * 2)[: self._begin]
        self._all[self._begin + size :] = PATTERN[:GUARD]
        self.view = self._all[self._begin : self._begin + size]
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + self._begin

    @property
    def memory(self) -> Memory:
        return Memory(self.address, self.size, self)

    def fill(self, seed: bytes) -> None:
        """Content that differs in every part of it."""
        block = hashlib.shake_128(seed).digest(1 << 20)
        for number, start in enumerate(range(0, self.size, len(block))):
            turn = number % len(block)
            piece = (block[turn:] + block[:turn])[: self.size - start]
            self.view[start : start + len(piece)] = piece

    def intact(self) -> bool:
        """Whether both guards are as they were made."""
        before, after = self._all[: self._begin], self._all[self._begin + self.size :]
        return before == (PATTERN * 2)[: self._begin] and after == PATTERN[:GUARD]


def wire(state: str) -> None:
    """Pull the plug ("down") or put it back ("up")."""
    script = Path(__file__).resolve().parent / "wire.sh"
    subprocess.run(["sh", str(script), state], check=True, capture_output=True)
