import asyncio
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3verbs.gateway.operations.copy_source import ObjectSource
from s3verbs.storage.errors import PayloadDamaged
from s3verbs.storage.model import Version
from s3verbs.storage.objects import Segment


class Runs:
    """An ObjectReader of given segments."""

    version = Version("key", 0, 0, "", ())

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._segments = segments

    def segments(self, offset: int, length: int) -> Iterable[Segment]:
        return self._segments

    def close(self) -> None: ...


async def drain(source: ObjectSource, chunk: int) -> bytes:
    into = memoryview(bytearray(chunk))
    data = b""
    while count := await source.receive(into):
        data += into[:count]
    return data


@given(st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 5), st.booleans()), max_size=5), st.integers(1, 17))
async def test_runs_of_memory_and_files_are_joined(runs: list[tuple[bytes, int, bool]], chunk: int) -> None:
    fd = os.memfd_create("payload")
    try:
        segments, position = [], 0
        for data, gap, in_file in runs:
            if in_file:
                os.pwrite(fd, data, position + gap)
                segments.append(Segment(position + gap, len(data), fd=fd))
                position += gap + len(data)
            else:
                segments.append(Segment(0, len(data), data))
        whole = b"".join(data for data, _, _ in runs)
        source = ObjectSource(Runs(segments), 0, len(whole))
        assert source.length == len(whole)
        assert await drain(source, chunk) == whole
        assert await source.receive(memoryview(bytearray(1))) == 0
    finally:
        os.close(fd)


async def test_a_file_that_ends_early_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "payload"
    path.write_bytes(b"01234")
    fd = os.open(path, os.O_RDONLY)
    try:
        source = ObjectSource(Runs([Segment(0, 9, fd=fd)]), 0, 9)
        with pytest.raises(PayloadDamaged):
            await drain(source, 4)
    finally:
        os.close(fd)


async def test_a_cancelled_read_ends_before_its_buffer_and_file_are_given_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow_preadv(fd: int, buffers: "list[memoryview]", offset: int) -> int:
        begun.set()
        go.wait(5)
        buffers[0][:] = b"x" * len(buffers[0])
        return len(buffers[0])

    monkeypatch.setattr(os, "preadv", slow_preadv)
    into = memoryview(bytearray(4))
    source = ObjectSource(Runs([Segment(0, 4, fd=0)]), 0, 4)
    reading = asyncio.ensure_future(source.receive(into))
    assert await asyncio.to_thread(begun.wait, 5)
    reading.cancel()
    done, _ = await asyncio.wait((reading,), timeout=0.1)
    assert not done
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert into == b"xxxx"
