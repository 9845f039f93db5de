"""From an object of the caller to the memory behind it: address, size, who keeps it alive.

Tried in this order: the buffer protocol (bytearray, mmap, numpy), DLPack (torch, JAX, CuPy),
`__cuda_array_interface__`. Sources: Python's C API "Buffer Protocol"; DLPack's dlpack.h, version 0.8; Numba's "CUDA
Array Interface", version 3.
"""

import ctypes
import math
import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from s3verbs.rdma.client.errors import BufferRefused

_HOST_DEVICES = {1: "host", 3: "pinned host"}
_CUDA_DEVICES = {2: "CUDA", 13: "CUDA managed"}


@dataclass(frozen=True, slots=True)
class Described:
    """`size` bytes at `address`, alive and in place as long as `owner` is. `gpu` is the device's ordinal."""

    address: int
    size: int
    owner: object
    writable: bool
    gpu: int | None = None


def describe(target: object) -> Described:
    """Raises BufferRefused: no memory behind it, not contiguous, or on a device that is not known. Exporters raise what
    they like (torch for bfloat16 and for tensors that need a gradient): that is a reason like any other."""
    reasons = []
    try:
        return _by_buffer_protocol(target)
    except TypeError as error:
        reasons.append(f"buffer protocol: {error}")
    except (BufferError, ValueError) as error:
        raise BufferRefused(_advice(target, str(error))) from error
    if hasattr(target, "__dlpack__") and hasattr(target, "__dlpack_device__"):
        try:
            return _by_dlpack(target)
        except BufferRefused:
            raise
        except Exception as error:  # noqa: BLE001  exporters raise what they like
            reasons.append(f"DLPack: {error}")
    try:
        interface = getattr(target, "__cuda_array_interface__", None)
    except Exception as error:  # noqa: BLE001  exporters raise what they like
        interface = None
        reasons.append(f"__cuda_array_interface__: {error}")
    if interface is not None:
        return _by_cuda_array_interface(target, interface)
    raise BufferRefused(_advice(target, "; ".join(reasons)))


def _advice(target: object, why: str) -> str:
    return (
        f"cannot expose a {type(target).__name__}: {why}. It must be contiguous memory: a buffer (bytearray, mmap, "
        "numpy), DLPack (torch: .detach().contiguous()), or __cuda_array_interface__"
    )


class _PyBuffer(ctypes.Structure):
    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_SIMPLE, _WRITABLE = 0, 1


class _Export:
    """An exported buffer: its object can neither move nor free the memory until this is collected."""

    def __init__(self, target: object) -> None:
        buffer = _PyBuffer()
        get = ctypes.pythonapi.PyObject_GetBuffer
        get.argtypes = (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)
        try:
            get(target, ctypes.byref(buffer), _WRITABLE)
            self.writable = True
        except (BufferError, ValueError):
            get(target, ctypes.byref(buffer), _SIMPLE)
            self.writable = not buffer.readonly
        self.address = int(buffer.buf or 0)
        self.size = int(buffer.len)
        release = ctypes.pythonapi.PyBuffer_Release
        release.argtypes = (ctypes.POINTER(_PyBuffer),)
        release.restype = None
        # Not at exit: the interpreter gives everything back, and threads may still use it.
        weakref.finalize(self, release, ctypes.byref(buffer)).atexit = False


def _by_buffer_protocol(target: object) -> Described:
    export = _Export(target)
    if _holds_objects(target):
        raise BufferRefused(_advice(target, "its elements are references to Python objects"))
    return Described(export.address, export.size, export, export.writable)


def _holds_objects(target: Any) -> bool:
    try:
        with memoryview(target) as view:
            # "O" as a type, not in the name of a field.
            return "O" in re.sub(r":[^:]*:", "", view.format)
    except ValueError:
        return False  # numpy's dates: it has no format for them, and they are plain numbers.


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def _by_dlpack(target: Any) -> Described:
    kind, ordinal = (int(part) for part in target.__dlpack_device__())
    if kind not in _HOST_DEVICES and kind not in _CUDA_DEVICES:
        raise BufferRefused(f"cannot expose a {type(target).__name__}: it is on a device of DLPack type {kind}")
    # The capsule is never consumed: collecting it runs the exporter's deleter, so it is the owner.
    capsule = target.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    pointer.restype = ctypes.c_void_p
    tensor = ctypes.cast(pointer(capsule, b"dltensor"), ctypes.POINTER(_DLTensor)).contents
    shape = tensor.shape[: tensor.ndim]
    strides = tensor.strides[: tensor.ndim] if tensor.strides else None
    item_bits = tensor.bits * tensor.lanes
    _require_contiguous(target, shape, strides)
    size = math.prod(shape) * item_bits // 8
    address = (tensor.data or 0) + tensor.byte_offset
    return Described(address, size, (capsule, target), True, ordinal if kind in _CUDA_DEVICES else None)


def _by_cuda_array_interface(target: object, interface: Any) -> Described:
    address, read_only = interface["data"]
    shape = tuple(interface["shape"])
    item = int(interface["typestr"][2:])
    strides = interface.get("strides")
    _require_contiguous(target, shape, None if strides is None else [stride // item for stride in strides])
    if interface.get("mask") is not None:
        raise BufferRefused(_advice(target, "it has a mask"))
    ordinal = getattr(getattr(target, "device", None), "id", None)
    return Described(
        int(address or 0),
        math.prod(shape) * item,
        target,
        not read_only,
        ordinal if isinstance(ordinal, int) else -1,
    )


def _require_contiguous(target: object, shape: Sequence[int], strides: Sequence[int] | None) -> None:
    """`strides` in items."""
    if strides is None or 0 in shape:
        return
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            raise BufferRefused(_advice(target, "it is not C-contiguous"))
        expected *= extent
