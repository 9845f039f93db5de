"""The few calls of the CUDA driver that exposing GPU memory needs, by ctypes; libcuda is loaded at the first use.

Source: CUDA Driver API reference (cuda.h, 12.x). Not run on a GPU yet: the tests use a stand-in library.
"""

import ctypes
import mmap
import os
from typing import Any, Protocol

from s3verbs.rdma.client.errors import BufferRefused

_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_SYNC_MEMOPS = 6  # CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
_DMA_BUF_FD = 1  # CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD


class CudaError(Exception):
    """A driver call failed; the text has the call and the driver's own name of the error."""


class Driver(Protocol):
    """What the client needs of a GPU's driver. Any thread. All raise CudaError."""

    def device_of(self, address: int) -> int:
        """The ordinal of the device whose memory this is."""

    def open_dmabuf(self, device: int, address: int, size: int) -> tuple[int, int]:
        """A new dma-buf descriptor over the pages around [address, address + size), and the offset of `address` in
        it."""

    def to_device(self, device: int, address: int, source: int, size: int) -> None:
        """Copy from host memory at `source`; done on return."""

    def from_device(self, device: int, address: int, target: int, size: int) -> None:
        """Copy to host memory at `target`; done on return."""


class CudaDriver:
    """libcuda.so.1. Works in each device's primary context, which is the one that CUDA's runtime and torch use."""

    def __init__(self, library: Any = None) -> None:
        """Raises CudaError when there is no driver."""
        if library is None:
            try:
                library = ctypes.CDLL("libcuda.so.1")
            except OSError as error:
                raise CudaError(f"libcuda.so.1 cannot be loaded: {error}") from error
        self._library = library
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._call("cuInit", ctypes.c_uint(0))

    def device_of(self, address: int) -> int:
        ordinal = ctypes.c_int(-1)
        self._call(
            "cuPointerGetAttribute", ctypes.byref(ordinal), ctypes.c_int(_DEVICE_ORDINAL), ctypes.c_uint64(address)
        )
        return ordinal.value

    def open_dmabuf(self, device: int, address: int, size: int) -> tuple[int, int]:
        page = mmap.PAGESIZE
        first = address - address % page
        end = -(-(address + size) // page) * page
        descriptor = ctypes.c_int(-1)
        with _Current(self, device):
            # Copies that are still on their way when they return would race with the NIC.
            on = ctypes.c_uint(1)
            self._call("cuPointerSetAttribute", ctypes.byref(on), ctypes.c_int(_SYNC_MEMOPS), ctypes.c_uint64(address))
            self._call(
                "cuMemGetHandleForAddressRange",
                ctypes.byref(descriptor),
                ctypes.c_uint64(first),
                ctypes.c_size_t(end - first),
                ctypes.c_int(_DMA_BUF_FD),
                ctypes.c_ulonglong(0),
            )
        return descriptor.value, address - first

    def to_device(self, device: int, address: int, source: int, size: int) -> None:
        with _Current(self, device):
            self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), ctypes.c_void_p(source), ctypes.c_size_t(size))

    def from_device(self, device: int, address: int, target: int, size: int) -> None:
        with _Current(self, device):
            self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(target), ctypes.c_uint64(address), ctypes.c_size_t(size))

    def context(self, device: int) -> ctypes.c_void_p:
        """The primary context; kept for the life of the process, as the runtime does."""
        found = self._contexts.get(device)
        if found is None:
            handle = ctypes.c_int(0)
            self._call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
            found = ctypes.c_void_p()
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(found), handle)
            self._contexts[device] = found
        return found

    def _call(self, name: str, *arguments: object) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError as error:
            raise CudaError(f"{name}: this driver is too old to have it") from error
        code = int(function(*arguments))
        if code:
            raise CudaError(f"{name}: {self._error_name(code)}")

    def _error_name(self, code: int) -> str:
        text = ctypes.c_char_p()
        if self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text)) or text.value is None:
            return f"error {code}"
        return text.value.decode()


class _Current:
    """The device's context is this thread's current one, and the previous is again after."""

    def __init__(self, driver: CudaDriver, device: int) -> None:
        self._driver = driver
        self._device = device

    def __enter__(self) -> None:
        self._driver._call("cuCtxPushCurrent_v2", self._driver.context(self._device))

    def __exit__(self, *_: object) -> None:
        self._driver._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def owner_device(driver: Driver, address: int, told: int) -> int:
    """The device that the driver names, or `told` where it cannot. Raises BufferRefused without either."""
    try:
        return driver.device_of(address)
    except CudaError as error:
        if told >= 0:
            return told
        raise BufferRefused(f"cannot tell the device of the memory at {address:#x}: {error}") from error


def close_descriptor(descriptor: int) -> None:
    """Of `open_dmabuf`; nothing for -1."""
    if descriptor >= 0:
        os.close(descriptor)
