"""The memory behind a region, as HTTP bodies and checksums see it: host memory, or a GPU's through small host
buffers."""

import ctypes
from collections.abc import Callable, Iterator
from typing import Protocol

from s3verbs.rdma.client.cuda import Driver

BOUNCE = 4 << 20
"""Bytes of host memory that one transfer from or to a GPU over HTTP holds."""


class Place(Protocol):
    """Offsets are from the region's first byte; the caller has checked them. Any thread."""

    def chunks(self, offset: int, length: int) -> Iterator[memoryview]:
        """The bytes in order, each view valid until the next is taken."""

    def fill(self, offset: int, length: int, read_into: Callable[[memoryview], int]) -> int:
        """Call `read_into` until `length` bytes are in place, or it fills less than it was given. Bytes placed."""


class HostPlace:
    """Memory of this process. Does not own it."""

    def __init__(self, address: int, size: int, *, writable: bool) -> None:
        view = memoryview((ctypes.c_char * size).from_address(address)).cast("B") if size else memoryview(b"")
        self._view = view if writable else view.toreadonly()

    def chunks(self, offset: int, length: int) -> Iterator[memoryview]:
        yield self._view[offset : offset + length]

    def fill(self, offset: int, length: int, read_into: Callable[[memoryview], int]) -> int:
        return read_into(self._view[offset : offset + length])


class CudaPlace:
    """Memory of a GPU. Copies are the driver's, through a host buffer of each call's own."""

    def __init__(self, driver: Driver, device: int, address: int) -> None:
        self._driver = driver
        self._device = device
        self._address = address

    def chunks(self, offset: int, length: int) -> Iterator[memoryview]:
        bounce = (ctypes.c_char * min(BOUNCE, length))() if length else None
        for start in range(offset, offset + length, BOUNCE):
            assert bounce is not None
            count = min(BOUNCE, offset + length - start)
            self._driver.from_device(self._device, self._address + start, ctypes.addressof(bounce), count)
            yield memoryview(bounce).cast("B")[:count]

    def fill(self, offset: int, length: int, read_into: Callable[[memoryview], int]) -> int:
        bounce = (ctypes.c_char * min(BOUNCE, max(length, 1)))()
        view = memoryview(bounce).cast("B")
        placed = 0
        while placed < length:
            wanted = min(BOUNCE, length - placed)
            count = read_into(view[:wanted])
            if count:
                self._driver.to_device(self._device, self._address + offset + placed, ctypes.addressof(bounce), count)
            placed += count
            if count < wanted:
                break
        return placed
