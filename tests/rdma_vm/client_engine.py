"""libcuobjclient by its C interface (rdma/cuobjclient/include/s3verbs.h), with ctypes."""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

from tests.rdma_vm.resources import GuardedBuffer

TOKEN_SIZE = 128


class EngineError(Exception):
    """A call failed, with the library's reason."""


class ClientEngine:
    """The engine of this process, with settings of its own. Use as a context manager, one at a time."""

    def __init__(self, library: Path, **settings: str) -> None:
        """`settings`: environment variables, which the engine reads when it is made."""
        self._settings = {"S3VERBS_TRANSPORT": "rc", "S3VERBS_LOG": "debug", **settings}
        self._before: dict[str, str | None] = {}
        self._library = ctypes.CDLL(str(library))
        self._library.s3verbs_error.restype = ctypes.c_char_p
        for name, types in _ARGUMENTS.items():
            getattr(self._library, name).argtypes = types

    def __enter__(self) -> "ClientEngine":
        self._before = {name: os.environ.get(name) for name in self._settings}
        os.environ.update(self._settings)
        try:
            self._check(self._library.s3verbs_init())
        except EngineError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._library.s3verbs_shutdown()
        _restore(self._before)

    def register(self, buffer: GuardedBuffer) -> None:
        self._check(self._library.s3verbs_register(buffer.address, buffer.size))

    def release(self, buffer: GuardedBuffer) -> None:
        self._check(self._library.s3verbs_release(buffer.address))

    def token(self, buffer: GuardedBuffer, offset: int = 0, size: int | None = None) -> str:
        text = ctypes.create_string_buffer(TOKEN_SIZE)
        length = buffer.size - offset if size is None else size
        self._check(self._library.s3verbs_token(buffer.address + offset, length, text, TOKEN_SIZE))
        return text.value.decode()

    def _check(self, result: int) -> None:
        if result:
            raise EngineError(self._library.s3verbs_error().decode())


def _restore(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


_ARGUMENTS = {
    "s3verbs_register": (ctypes.c_void_p, ctypes.c_size_t),
    "s3verbs_release": (ctypes.c_void_p,),
    "s3verbs_token": (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t),
}
