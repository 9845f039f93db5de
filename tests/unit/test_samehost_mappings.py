"""Mappings of payload files: when they are shared, how long they are kept, and what they keep from going away."""

import asyncio
import ctypes
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from s3verbs.rdma.samehost.mappings import FileMappings, Mapping

SIZE = 3 * 4096


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "payload", os.O_RDWR | os.O_CREAT, 0o600)
    os.write(fd, os.urandom(SIZE))
    yield fd
    os.close(fd)


def mapped_files() -> list[str]:
    """Paths of what is mapped in this process, " (deleted)" behind those without a name."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6]


def is_mapped(path: Path) -> bool:
    return not {str(path), f"{path} (deleted)"}.isdisjoint(mapped_files())


def use(mappings: FileMappings, fd: int, offset: int = 0, length: int = SIZE) -> Mapping:
    """Take a mapping, look that it shows the file, and give it back."""
    mapping = mappings.take(fd, offset, length)
    assert ctypes.string_at(mapping.address(), length) == os.pread(fd, length, offset)
    mappings.give_back(mapping, keep=True)
    return mapping


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def eventually_gone(path: Path) -> None:
    await eventually(lambda: not is_mapped(path))


async def test_reads_of_one_range_share_a_mapping(file: int) -> None:
    mappings = FileMappings()
    first = use(mappings, file)
    assert first.populated
    again = os.open(f"/proc/self/fd/{file}", os.O_RDONLY)
    assert use(mappings, again) is first
    os.close(again)
    assert use(mappings, file, 100, 5000) is not first
    mappings.close()


async def test_one_that_is_in_use_is_shared_too(file: int) -> None:
    mappings = FileMappings(seconds=0.01)
    first = mappings.take(file, 0, SIZE)
    assert use(mappings, file) is first
    await asyncio.sleep(0.1)
    # It is still in use, so it must not have been unmapped.
    assert ctypes.string_at(first.address(), SIZE) == os.pread(file, SIZE, 0)
    mappings.give_back(first, keep=True)
    mappings.close()


async def test_it_is_unmapped_some_time_after_its_last_use(file: int, tmp_path: Path) -> None:
    mappings = FileMappings(seconds=0.2)
    loop = asyncio.get_running_loop()
    until = loop.time() + 0.5
    while loop.time() < until:
        use(mappings, file)
        await asyncio.sleep(0.02)
    last = loop.time()
    assert is_mapped(tmp_path / "payload")
    await eventually_gone(tmp_path / "payload")
    assert loop.time() - last >= 0.15
    mappings.close()


async def test_each_goes_in_its_own_time(tmp_path: Path) -> None:
    mappings = FileMappings(seconds=0.2)
    for name in ("first", "second"):
        path = tmp_path / name
        path.write_bytes(os.urandom(SIZE))
        with path.open("rb") as opened:
            use(mappings, opened.fileno())
        await asyncio.sleep(0.1)
    await eventually_gone(tmp_path / "first")
    await eventually_gone(tmp_path / "second")
    mappings.close()


async def test_a_deleted_file_gives_its_space_back(tmp_path: Path) -> None:
    mappings = FileMappings(seconds=0.1)
    path = tmp_path / "payload"
    path.write_bytes(os.urandom(SIZE))
    with path.open("rb") as opened:
        use(mappings, opened.fileno())
    path.unlink()
    assert is_mapped(path)
    await eventually_gone(path)
    mappings.close()


async def test_another_file_of_that_name_is_another_mapping(tmp_path: Path) -> None:
    mappings = FileMappings()
    path = tmp_path / "payload"
    seen = set()
    for _ in range(20):
        path.write_bytes(os.urandom(SIZE))
        with path.open("rb") as opened:
            seen.add(use(mappings, opened.fileno()))
        path.unlink()
    # The inode numbers of those that are still mapped are not used again.
    assert len(seen) == 20
    mappings.close()


async def test_a_file_that_was_written_to_is_mapped_anew(file: int) -> None:
    mappings = FileMappings()
    first = use(mappings, file)
    os.pwrite(file, b"more", SIZE)
    second = use(mappings, file)
    assert second is not first
    mappings.close()


async def test_a_reader_lets_go_of_its_lock_when_it_closes(tmp_path: Path) -> None:
    mappings = FileMappings()
    path = tmp_path / "payload"
    path.write_bytes(os.urandom(SIZE))
    reader = os.open(path, os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH | fcntl.LOCK_NB)
    use(mappings, reader)
    os.close(reader)
    assert is_mapped(path)
    with path.open("rb") as reclaim:
        fcntl.flock(reclaim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    mappings.close()


async def test_bytes_and_ranges_are_bounded(tmp_path: Path) -> None:
    mappings = FileMappings(bytes=8 * SIZE, ranges=6)
    paths = [tmp_path / f"payload-{number}" for number in range(20)]
    for path in paths:
        path.write_bytes(os.urandom(2 * SIZE))
        with path.open("rb") as opened:
            use(mappings, opened.fileno(), 0, 2 * SIZE)
        await eventually(lambda: sum(map(is_mapped, paths)) <= 4)
    # Those used last are the ones that stay.
    assert is_mapped(paths[-1])
    assert not any(is_mapped(path) for path in paths[:16])
    with paths[0].open("rb") as opened:
        for start in range(20):
            use(mappings, opened.fileno(), start, 10)
            await eventually(lambda: mapped_files().count(str(paths[0])) <= 6)
    mappings.close()


async def test_more_than_may_be_kept_is_mapped_for_one_use(file: int, tmp_path: Path) -> None:
    mappings = FileMappings(bytes=SIZE - 1)
    first = mappings.take(file, 0, SIZE)
    assert ctypes.string_at(first.address(), SIZE) == os.pread(file, SIZE, 0)
    mappings.give_back(first, keep=True)
    await eventually_gone(tmp_path / "payload")
    mappings.close()


async def test_those_in_use_are_not_thrown_out(tmp_path: Path) -> None:
    mappings = FileMappings(bytes=2 * SIZE)
    held = []
    for number in range(4):
        path = tmp_path / f"payload-{number}"
        path.write_bytes(os.urandom(SIZE))
        fd = os.open(path, os.O_RDONLY)
        mapping = mappings.take(fd, 0, SIZE)
        mapping.address()
        held.append((fd, mapping))
    await asyncio.sleep(0.05)
    for fd, mapping in held:
        assert ctypes.string_at(mapping.address(), SIZE) == os.pread(fd, SIZE, 0)
        mappings.give_back(mapping, keep=True)
        os.close(fd)
    await eventually_gone(tmp_path / "payload-3")
    mappings.close()


async def test_what_failed_is_not_used_again(file: int) -> None:
    mappings = FileMappings()
    failed = mappings.take(file, 0, SIZE)
    beside = mappings.take(file, 0, SIZE)
    assert beside is failed
    mappings.give_back(failed, keep=False)
    assert use(mappings, file) is not failed
    assert ctypes.string_at(beside.address(), SIZE) == os.pread(file, SIZE, 0)
    mappings.give_back(beside, keep=True)
    assert use(mappings, file) is not failed
    mappings.close()


async def test_closing_unmaps_all(file: int, tmp_path: Path) -> None:
    mappings = FileMappings()
    use(mappings, file)
    use(mappings, file, 4096, 4096)
    mappings.close()
    assert not is_mapped(tmp_path / "payload")
    mappings.close()


async def test_closing_leaves_what_is_in_use(file: int, tmp_path: Path) -> None:
    mappings = FileMappings()
    held = mappings.take(file, 0, SIZE)
    assert held.address()
    mappings.close()
    assert ctypes.string_at(held.address(), SIZE) == os.pread(file, SIZE, 0)
    mappings.give_back(held, keep=True)
    await eventually_gone(tmp_path / "payload")


async def test_a_short_file_is_an_error(file: int) -> None:
    mappings = FileMappings()
    with pytest.raises(EOFError):
        mappings.take(file, 1, SIZE)
    mappings.close()


async def test_a_file_that_cannot_be_mapped_has_no_address() -> None:
    # Files of sysfs can be read, but not mapped.
    mappings = FileMappings()
    with Path("/sys/kernel/notes").open("rb") as opened:
        mapping = mappings.take(opened.fileno(), 0, 1)
        assert mapping.address() == 0
        mappings.give_back(mapping, keep=True)
    mappings.close()
