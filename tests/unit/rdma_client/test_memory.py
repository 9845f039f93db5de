"""What can be registered: every kind of contiguous memory, and a clear refusal of everything else."""

import ctypes
import gc
import mmap
import os
import subprocess
import sys
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from s3verbs.rdma.client.errors import BufferRefused, RegionClosed
from s3verbs.rdma.client.memory import describe
from tests.unit.rdma_client.scripted import FakeTransport, ScriptedServer, client

LOADED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure."""


class Tensor:
    """As torch's: DLPack, no buffer protocol. `kind` is DLPack's device type."""

    def __init__(self, array: Any, kind: tuple[int, int] | None = None) -> None:
        self.array = array
        self.kind = kind

    def __dlpack__(self, stream: object = None) -> object:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind or self.array.__dlpack_device__()


class NeedsGradient(Tensor):
    def __dlpack__(self, stream: object = None) -> object:
        raise BufferError("Can't export tensors that require gradient")


def bytes_at(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def test_buffers_of_all_kinds_are_described_where_they_are() -> None:
    for buffer in (bytearray(b"abc"), b"abc", memoryview(bytearray(b"xabcx"))[1:4], (ctypes.c_char * 3)(*b"abc")):
        found = describe(buffer)
        assert bytes_at(found.address, found.size) == b"abc"
        assert found.writable != isinstance(buffer, bytes)
        assert found.gpu is None


@LOADED
@given(
    shape=st.lists(st.integers(0, 4), max_size=4),
    kind=st.sampled_from(["u1", "i8", "f2", ">f4", "c16", "?", "S5", "i4,f8"]),
    wrapped=st.booleans(),
)
def test_arrays_of_any_shape_and_type(shape: list[int], kind: str, wrapped: bool) -> None:
    array = np.zeros(shape, kind)
    if wrapped and kind in (">f4", "S5", "i4,f8"):
        return  # DLPack has no such types.
    found = describe(Tensor(array) if wrapped else array)
    assert (found.address, found.size) == (array.ctypes.data if array.size else found.address, array.nbytes)


def test_a_slice_of_rows_is_contiguous_and_columns_are_not() -> None:
    array = np.arange(24, dtype="u1").reshape(4, 6)
    for target in (array[1:3], Tensor(array[1:3])):
        found = describe(target)
        assert bytes_at(found.address, found.size) == bytes(range(6, 18))
    for target in (array[:, :3], array.T, array[::2], array[::-1]):
        for refused in (target, Tensor(target)):
            with pytest.raises(BufferRefused, match="contiguous"):
                describe(refused)
    # A dimension of one element has any stride.
    assert describe(Tensor(array[1:2, :])).size == 6


@pytest.mark.parametrize(
    "target",
    [
        *(7, "text", None, object(), [1, 2]),
        *(np.zeros(3, object), np.zeros(3, "i4,O"), NeedsGradient(np.zeros(3)), Tensor(np.zeros(3), (8, 0))),
    ],
)
def test_what_has_no_memory_is_refused_and_says_what_to_do(target: object) -> None:
    with pytest.raises(BufferRefused) as raised:
        describe(target)
    assert isinstance(raised.value, TypeError)
    assert type(target).__name__ in str(raised.value)


def test_dates_and_names_of_fields_are_no_objects() -> None:
    assert describe(np.zeros(3, "M8[s]")).size == 24
    assert describe(np.zeros(3, [("O", "i4")])).size == 12


def test_read_only_arrays_are_read_only() -> None:
    array = np.zeros(4)
    array.flags.writeable = False
    assert not describe(array).writable


def test_registered_memory_cannot_move_or_go_away(server: ScriptedServer, transport: FakeTransport) -> None:
    buffer = bytearray(100)
    mapped = mmap.mmap(-1, 4096)
    shared = shared_memory.SharedMemory(create=True, size=4096)
    try:
        with client(server, transport) as s3:
            regions = [s3.register(each) for each in (buffer, mapped, shared.buf)]
            with pytest.raises(BufferError):
                buffer.extend(b"more")
            with pytest.raises(BufferError):
                mapped.close()
            assert all(region.close() for region in regions)
            regions.clear()
            gc.collect()
            buffer.extend(b"more")
            mapped.close()
    finally:
        shared.close()
        shared.unlink()


def test_regions_slice_like_sequences(server: ScriptedServer, transport: FakeTransport) -> None:
    with client(server, transport) as s3:
        region = s3.register(bytearray(100))
        assert (len(region), region.size) == (100, 100)
        part = region[10:-10][5:15]
        assert (part.address - region.address, part.size) == (15, 10)
        assert region[90:200].size == 10
        assert region[50:40].size == 0
        with pytest.raises(ValueError, match="step"):
            region[::2]
        with pytest.raises(TypeError):
            region[5]  # type: ignore[index]
        assert part.close()
        assert not region.closed
        assert "registered" in repr(part)
        region.close()
        assert part.closed
        assert "closed" in repr(part)


@LOADED
@given(st.integers(0, 50), st.lists(st.tuples(st.integers(-60, 60), st.integers(-60, 60)), max_size=4))
def test_slices_of_slices_are_those_of_bytes(size: int, slices: list[tuple[int, int]]) -> None:
    from s3verbs.rdma.client.exposure import Exposer
    from s3verbs.rdma.client.quarantine import Quarantine
    from s3verbs.rdma.client.region import Region, RegisteredMemory

    data = bytes(range(size))
    memory = RegisteredMemory(describe(data), Exposer("http", "h", 1), Quarantine())
    region, expected = Region(memory, 0, size), data
    for start, stop in slices:
        region, expected = region[start:stop], expected[start:stop]
    assert bytes_at(region.address, region.size) == expected


def test_a_forked_process_cannot_use_its_parents_regions(server: ScriptedServer, transport: FakeTransport) -> None:
    script = f"""
import os, sys
sys.path.insert(0, {str(Path.cwd())!r})
import s3verbs
from s3verbs.rdma.client.errors import RegionClosed
from tests.unit.rdma_client.scripted import FakeTransport
client = s3verbs.Client("http://127.0.0.1:1", access_key="a", secret_key="b", transport=FakeTransport())
region = client.register(bytearray(10))
child = os.fork()
if child == 0:
    refused = 0
    for use in (lambda: client.get_into("b", "k", region), lambda: client.register(bytearray(1))):
        try:
            use()
        except RegionClosed as error:
            refused += "forked" in str(error)
    os._exit(refused)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
assert client.close()
"""
    environment = {**os.environ, "PYTHONPATH": "src"}
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr


def test_a_closed_client_refuses(server: ScriptedServer, transport: FakeTransport) -> None:
    s3 = client(server, transport)
    region = s3.register(bytearray(10))
    assert s3.close()
    assert s3.close()
    assert region.released
    with pytest.raises(RegionClosed):
        s3.put_from("b", "k", region)
    with pytest.raises(RegionClosed):
        print(region.transport)
