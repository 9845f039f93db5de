"""Asking for huge pages changes no byte and fails for nobody."""

import ctypes
import mmap
import re
from pathlib import Path

import pytest

from s3verbs.rdma.client.huge_pages import HUGE_PAGE, prefer_huge_pages


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def huge_bytes(address: int) -> int:
    """AnonHugePages of the mapping that `address` lies in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if span := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(span[1], 16) <= address < int(span[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024
    return 0


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 8 * HUGE_PAGE), (1, 8 * HUGE_PAGE - 1), (4097, 3 * HUGE_PAGE), (0, 5)]
)
def test_the_bytes_stay(offset: int, size: int) -> None:
    memory = mmap.mmap(-1, 9 * HUGE_PAGE)
    pattern = bytes(range(256)) * (len(memory) // 256)
    memory[:] = pattern
    prefer_huge_pages(address_of(memory) + offset, size)
    assert memory[:] == pattern


def test_what_was_never_touched_costs_nothing() -> None:
    memory = mmap.mmap(-1, 64 * HUGE_PAGE)
    before = int(Path("/proc/self/statm").read_text().split()[1])
    prefer_huge_pages(address_of(memory), len(memory))
    assert int(Path("/proc/self/statm").read_text().split()[1]) - before < 16 * HUGE_PAGE // mmap.PAGESIZE


def test_touched_memory_gets_huge_pages_where_the_kernel_has_them() -> None:
    memory = mmap.mmap(-1, 8 * HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    memory[:] = b"x" * len(memory)
    begin = -(-address_of(memory) // HUGE_PAGE) * HUGE_PAGE
    assert huge_bytes(begin) == 0
    prefer_huge_pages(address_of(memory), len(memory))
    allowed = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if allowed.exists() and "[never]" not in allowed.read_text():
        assert huge_bytes(begin) > 0
    assert memory[:] == b"x" * len(memory)


def test_memory_that_cannot_have_them_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"y" * (4 * HUGE_PAGE))
    with file.open("r+b") as stream:
        shared = mmap.mmap(stream.fileno(), 0)
    prefer_huge_pages(address_of(shared), len(shared))
    assert shared[:] == b"y" * len(shared)
    prefer_huge_pages(HUGE_PAGE, 4 * HUGE_PAGE)  # Nothing is mapped there.
