"""What is moved: contexts cut into objects, and objects into windows that fit the buffer. Pure arithmetic."""

from dataclasses import dataclass

MAX_BUFFER = 8 << 30
"""Bytes of a buffer at most, unless asked for more: what LMCache's published recipe gives one worker."""


@dataclass(frozen=True, slots=True)
class Context:
    """The KV cache of `tokens` tokens as one tensor-parallel worker stores it: an object for each chunk, the last one
    shorter when its chunk is not full."""

    tokens: int
    chunk: int
    bytes_per_token: int

    @property
    def total_bytes(self) -> int:
        return self.tokens * self.bytes_per_token

    @property
    def objects(self) -> int:
        return -(-self.tokens // self.chunk)

    def size_of(self, number: int) -> int:
        """Bytes of object `number`, counted from 0."""
        return min(self.chunk, self.tokens - number * self.chunk) * self.bytes_per_token


def windows(objects: int, slots: int) -> list[range]:
    """Object numbers that are moved together, in order: at most `slots`, one buffer full."""
    return [range(first, min(first + slots, objects)) for first in range(0, objects, slots)]


def slots_within(memory: int, buffers: int, object_bytes: int, objects: int) -> int:
    """Objects that each of `buffers` equal buffers holds when all of them share `memory` bytes, never more than there
    are. 0: not even one fits."""
    return min(memory // buffers // object_bytes, objects)


def readable_tokens(tokens: int) -> str:
    """8192 is 8K; a number that is no multiple of 1024 stays as it is."""
    return f"{tokens >> 10}K" if tokens and tokens % 1024 == 0 else str(tokens)


def readable_bytes(count: float) -> str:
    """In binary units with at most three digits before the point."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.3g} {unit}" if count < 1000 else f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"
