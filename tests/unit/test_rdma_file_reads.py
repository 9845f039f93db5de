"""Reads into staging buffers: the right bytes by every way, and an end of file where there is one."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from s3verbs.rdma.fabric import CHUNK
from s3verbs.rdma.file_reads import ALIGNMENT, FileReads
from s3verbs.rdma.staging import StagingArena
from tests.rdma_fixtures import descriptors, noise

PADDED = 3 * CHUNK + 5 * ALIGNMENT
ODD = PADDED - 1000
DATA = noise(PADDED)
BLOCKS_BEFORE_THE_END = PADDED // ALIGNMENT - 10
ARENA = StagingArena(2 * CHUNK)
BUFFER = ARENA.view[:CHUNK]
CASES = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

WAYS = ("direct", "no second descriptor", "not prepared", "unaligned memory")


@pytest.fixture(scope="module", params=[PADDED, ODD], ids=["padded", "odd"])
def fd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A file without a name."""
    path = tmp_path_factory.mktemp("file") / "payload"
    path.write_bytes(DATA[: request.param])
    descriptor = os.open(path, os.O_RDONLY)
    path.unlink()
    yield descriptor
    os.close(descriptor)


@CASES
@given(st.integers(0, PADDED // ALIGNMENT), st.integers(0, ALIGNMENT - 1), st.integers(1, CHUNK), st.sampled_from(WAYS))
@example(BLOCKS_BEFORE_THE_END, 10, CHUNK, WAYS[0])
@example(BLOCKS_BEFORE_THE_END, 10, CHUNK, WAYS[1])
@example(BLOCKS_BEFORE_THE_END, 10, 10 * ALIGNMENT - 1010, WAYS[0])
@example(BLOCKS_BEFORE_THE_END, 10, 10 * ALIGNMENT - 1009, WAYS[0])
@example(BLOCKS_BEFORE_THE_END, 10, 10 * ALIGNMENT - 10, WAYS[0])
def test_every_way_of_reading_gives_the_same(fd: int, block: int, begin: int, length: int, way: str) -> None:
    before = descriptors()
    offset, end = block * ALIGNMENT, min(begin + length, CHUNK)
    view = ARENA.view[512 + 1 : CHUNK + 512 + 1] if way == "unaligned memory" else BUFFER
    view[:] = bytes(CHUNK)
    reads = FileReads(fd)
    with pytest.MonkeyPatch.context() as patch:
        if way == "no second descriptor":
            patch.setattr("s3verbs.rdma.file_reads.os.open", _refuse)
        if way != "not prepared":
            reads.prepare()
    size = os.fstat(fd).st_size
    try:
        if offset + end > size:
            with pytest.raises(EOFError):
                reads.read(view, offset, begin, end)
            return
        reads.read(view, offset, begin, end)
        assert view[begin:end] == DATA[offset + begin : offset + end]
        again = bytearray(CHUNK)
        count = reads.cached(memoryview(again), offset, begin, end)
        assert 0 <= count <= end - begin
        assert again[begin : begin + count] == DATA[offset + begin : offset + begin + count]
    finally:
        reads.close()
        reads.close()
        assert descriptors() == before


def _refuse(*arguments: object) -> int:
    raise OSError("not here")


@CASES
@given(st.integers(0, CHUNK - 1), st.integers(1, CHUNK))
def test_a_read_goes_on_where_the_page_cache_ends(fd: int, have: int, end: int) -> None:
    begin = min(have, end - 1)
    BUFFER[:] = bytes(CHUNK)
    BUFFER[:begin] = DATA[:begin]
    reads = FileReads(fd)
    reads.prepare()
    reads.read(BUFFER, 0, begin, end)
    reads.close()
    assert BUFFER[:end] == DATA[:end]


def test_what_is_in_the_page_cache_is_found_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    assert os.pread(descriptor, 10, 0) == DATA[:10]
    reads = FileReads(descriptor)
    count = reads.cached(BUFFER, 0, 100, 200)
    # A file system that cannot tell says nothing is there.
    assert count in (0, 100)
    assert BUFFER[100 : 100 + count] == DATA[100 : 100 + count]
    os.close(descriptor)


def test_errors_of_the_drive_are_raised(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    reads = FileReads(descriptor)
    assert reads.cached(BUFFER, 0, 0, 10) == 0
    reads.prepare()
    with pytest.raises(IsADirectoryError):
        reads.read(BUFFER, 0, 0, 10)
    reads.close()
    os.close(descriptor)
