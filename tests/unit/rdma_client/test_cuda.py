"""GPU memory, with stand-ins for the driver: what is asked of it, and what happens with what it cannot do."""

import ctypes
import itertools
import logging
import mmap
import os
from collections.abc import Iterator
from typing import Any

import pytest

from s3verbs.rdma.client.cuda import CudaDriver, CudaError
from s3verbs.rdma.client.errors import BufferRefused
from s3verbs.rdma.client.place import BOUNCE, CudaPlace
from s3verbs.rdma.client.transport import Memory
from s3verbs.rdma.token import Transport
from tests.unit.rdma_client.scripted import FakeTransport, ScriptedServer, Store, client, s3_error

DATA = bytes(range(256)) * 20
GPU = 1


class Device:
    """Stands in for a GPU's memory: host memory that only this driver is asked to copy. Also an array with
    `__cuda_array_interface__`."""

    def __init__(self, content: bytes, *, read_only: bool = False, strides: tuple[int, ...] | None = None) -> None:
        self.memory = (ctypes.c_char * max(1, len(content)))(*b"")
        self.address = ctypes.addressof(self.memory)
        ctypes.memmove(self.address, content, len(content))
        self.size = len(content)
        self.copies: list[tuple[str, int, int]] = []
        self.dmabufs = 0
        self.without_dmabuf = False
        self.__cuda_array_interface__ = {
            "data": (self.address, read_only),
            "shape": (self.size,),
            "typestr": "|u1",
            "strides": strides,
            "version": 3,
        }

    @property
    def content(self) -> bytes:
        return ctypes.string_at(self.address, self.size)

    def device_of(self, address: int) -> int:
        return GPU

    def open_dmabuf(self, device: int, address: int, size: int) -> tuple[int, int]:
        assert device == GPU
        if self.without_dmabuf:
            raise CudaError("cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_SUPPORTED")
        self.dmabufs += 1
        return os.open(os.devnull, os.O_RDONLY), address % mmap.PAGESIZE

    def to_device(self, device: int, address: int, source: int, size: int) -> None:
        self.copies.append(("to", address - self.address, size))
        ctypes.memmove(address, source, size)

    def from_device(self, device: int, address: int, target: int, size: int) -> None:
        self.copies.append(("from", address - self.address, size))
        ctypes.memmove(target, address, size)


class NicTransport(FakeTransport):
    """RC as it treats memory of a GPU: its dma-buf, else the address where there is a peer memory module."""

    def __init__(self, *, peermem: bool = True) -> None:
        super().__init__(Transport.RC)
        self.peermem = peermem
        self.ways: list[str] = []

    def register(self, memory: Memory) -> Any:
        if memory.gpu is None:
            self.ways.append("host")
            return super().register(memory)
        assert memory.gpu == GPU
        assert memory.dmabuf is not None
        try:
            descriptor, _ = memory.dmabuf()
            os.close(descriptor)
            self.ways.append("dmabuf")
        except OSError as error:
            why = f"{error}; no nvidia-peermem"
            self.refuses = lambda memory: None if memory.gpu is None or self.peermem else why
            if self.peermem:
                self.ways.append("peermem")
        return super().register(memory)


def test_gpu_memory_is_exposed_directly(server: ScriptedServer) -> None:
    device, transport = Device(DATA), NicTransport()
    store = Store(transport)
    server.script += [store.put, store.get]
    with client(server, transport, driver=device) as s3, s3.register(device) as region:
        assert s3.put_from("b", "k", region).transport == "rc"
        assert store.data == DATA
        store.data = DATA[::-1]
        assert s3.get_into("b", "k", region).transport == "rc"
    assert device.content == DATA[::-1]
    assert (transport.ways, device.copies, device.dmabufs) == (["dmabuf"], [], 1)


def test_without_dmabuf_a_peer_memory_module_will_do(server: ScriptedServer) -> None:
    device, transport = Device(DATA), NicTransport()
    device.without_dmabuf = True
    server.script.append(Store(transport, DATA).get)
    with client(server, transport, driver=device) as s3, s3.register(device) as region:
        assert s3.get_into("b", "k", region).transport == "rc"
    assert (transport.ways, device.copies) == (["peermem"], [])


@pytest.mark.parametrize("kind", [Transport.RC, Transport.SAMEHOST])
def test_without_both_it_is_staged_through_host_memory_with_one_warning(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture, kind: Transport
) -> None:
    device = Device(DATA)
    device.without_dmabuf = True
    transport = NicTransport(peermem=False) if kind is Transport.RC else FakeTransport()
    store = Store(transport)
    server.script += [store.put, store.get, store.get]
    with client(server, transport, driver=device) as s3, s3.register(device) as region:
        assert s3.put_from("b", "k", region).transport == kind.value
        assert store.data == DATA
        store.data = b"shorter"
        assert s3.get_into("b", "k", region[10:40]).size == 7
        assert s3.get_into("b", "k", region[100:], (1, 3)).size == 2
    assert device.content == DATA[:10] + b"shorter" + DATA[17:100] + b"ho" + DATA[102:]
    assert not transport.valid
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    reason = "nvidia-peermem" if kind is Transport.RC else "another process"
    assert "staged through host memory" in warning.message
    assert reason in warning.message


def test_over_http_it_goes_through_small_buffers(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s3verbs.rdma.client.place.BOUNCE", 1000)
    device = Device(DATA)
    store = Store(FakeTransport())
    server.script += [store.put, store.get, store.get]
    with client(server, "http", driver=device) as s3, s3.register(device) as region:
        s3.put_from("b", "k", region)
        assert store.data == DATA
        store.data = DATA[1:]
        assert s3.get_into("b", "k", region[1:]).size == len(DATA) - 1
        store.data = b""
        assert s3.get_into("b", "k", region).size == 0
    assert device.content == DATA[:1] + DATA[1:]
    assert {size for _, _, size in device.copies} == {1000, 120, 119}


def test_a_declined_get_goes_to_the_gpu_too(server: ScriptedServer) -> None:
    device, transport = Device(bytes(len(DATA))), NicTransport()
    store = Store(transport, DATA)
    server.script += [s3_error(501, "NotImplemented", x_amz_rdma_reply="501"), store.get]
    with client(server, transport, driver=device) as s3, s3.register(device) as region:
        assert s3.get_into("b", "k", region).transport == "http"
    assert device.content == DATA


def test_places_copy_what_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s3verbs.rdma.client.place.BOUNCE", 64)
    device = Device(DATA)
    place = CudaPlace(device, GPU, device.address)
    assert b"".join(bytes(chunk) for chunk in place.chunks(5, 1000)) == DATA[5:1005]
    assert list(place.chunks(5, 0)) == []
    came: Iterator[int] = itertools.chain([64, 10], itertools.repeat(0))

    def read_into(view: memoryview) -> int:
        count = next(came)
        view[:count] = b"x" * count
        return count

    assert place.fill(0, 200, read_into) == 74
    assert device.content == b"x" * 74 + DATA[74:]
    assert BOUNCE > 64


@pytest.mark.parametrize("wrong", ["strides", "mask"])
def test_gpu_arrays_must_be_contiguous(server: ScriptedServer, wrong: str) -> None:
    device = Device(DATA, strides=(2,) if wrong == "strides" else None)
    if wrong == "mask":
        device.__cuda_array_interface__["mask"] = object()
    with client(server, "http", driver=device) as s3, pytest.raises(BufferRefused):
        s3.register(device)


def test_without_a_driver_gpu_memory_is_refused(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", no_library)
    with client(server, "http") as s3, pytest.raises(BufferRefused, match=r"libcuda\.so\.1"):
        s3.register(Device(DATA))


class Library:
    """Stands in for libcuda: notes the calls, fails those it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.codes: dict[str, int] = {}
        self.missing: set[str] = set()
        self.depth = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu") or name in self.missing:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls.append((name, tuple(getattr(each, "value", each) for each in arguments)))
            if name in self.codes:
                return self.codes[name]
            if name == "cuCtxPushCurrent_v2":
                self.depth += 1
            elif name == "cuCtxPopCurrent_v2":
                self.depth -= 1
            elif name == "cuPointerGetAttribute":
                arguments[0]._obj.value = 3
            elif name == "cuMemGetHandleForAddressRange":
                arguments[0]._obj.value = 55
            elif name == "cuGetErrorName":
                arguments[1]._obj.value = b"CUDA_ERROR_NOT_SUPPORTED"
            return 0

        return call

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in self.calls if called == name]


def test_the_driver_is_asked_for_whole_pages_of_the_range() -> None:
    library = Library()
    driver = CudaDriver(library)
    page = mmap.PAGESIZE
    assert driver.device_of(123) == 3
    assert driver.open_dmabuf(0, 16 * page + 100, page) == (55, 100)
    ((_, first, size, kind, flags),) = library.named("cuMemGetHandleForAddressRange")
    assert (first, size, kind, flags) == (16 * page, 2 * page, 1, 0)
    # GPUDirect RDMA needs copies that are done when they return.
    assert [arguments[1:] for arguments in library.named("cuPointerSetAttribute")] == [(6, 16 * page + 100)]
    assert library.depth == 0


def test_copies_run_in_the_devices_primary_context_and_restore_the_threads() -> None:
    library = Library()
    driver = CudaDriver(library)
    driver.to_device(2, 0x1000, 0x2000, 5)
    driver.from_device(2, 0x1000, 0x2000, 6)
    assert library.named("cuMemcpyHtoD_v2") == [(0x1000, 0x2000, 5)]
    assert library.named("cuMemcpyDtoH_v2") == [(0x2000, 0x1000, 6)]
    assert len(library.named("cuDevicePrimaryCtxRetain")) == 1
    library.codes["cuMemcpyHtoD_v2"] = 700
    with pytest.raises(CudaError, match="cuMemcpyHtoD_v2: CUDA_ERROR_NOT_SUPPORTED"):
        driver.to_device(2, 0x1000, 0x2000, 5)
    assert library.depth == 0


def test_an_old_driver_has_no_dmabuf() -> None:
    library = Library()
    library.missing = {"cuMemGetHandleForAddressRange"}
    with pytest.raises(CudaError, match="too old"):
        CudaDriver(library).open_dmabuf(0, 0, 1)
    assert library.depth == 0
