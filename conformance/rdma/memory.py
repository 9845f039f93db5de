"""A client's buffer between two guards. A server that writes one byte too many, or too early, is seen."""

import ctypes
import mmap

GUARD = 64 << 10
_PATTERN = bytes((index * 37 + 11) & 0xFF for index in range(GUARD))


class Memory:
    """`size` bytes at `address`, page-aligned at the start only, with GUARD bytes of a pattern on both sides."""

    def __init__(self, size: int, content: bytes = b"") -> None:
        self.size = size
        self._map = mmap.mmap(-1, GUARD + size + GUARD)
        self._map[:GUARD] = _PATTERN
        self._map[GUARD + size :] = _PATTERN
        self._anchor = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._anchor) + GUARD
        self.fill(content or b"\xa5" * size)

    def fill(self, content: bytes, offset: int = 0) -> None:
        self._map[GUARD + offset : GUARD + offset + len(content)] = content

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        length = self.size - offset if length is None else length
        return self._map[GUARD + offset : GUARD + offset + length]

    @property
    def guards_intact(self) -> bool:
        return self._map[:GUARD] == _PATTERN and self._map[GUARD + self.size :] == _PATTERN

    def close(self) -> None:
        """The memory must not be exposed any more."""
        del self._anchor
        self._map.close()
