"""What the regions of RC and DC share: the bounds of a chunk, and a close that waits for the chunks on their way."""

import asyncio
from abc import ABC, abstractmethod

from s3verbs.rdma.fabric import CHUNK, RegisteredBuffer
from s3verbs.rdma.token import Token


class ChunkRegion(ABC):
    """The reads and writes of a RemoteRegion, each one `_transfer`. Loop thread only."""

    def __init__(self, token: Token) -> None:
        self._token = token
        self._moving = 0
        self._still = asyncio.Event()
        self._still.set()

    @property
    def size(self) -> int:
        return self._token.size

    async def read(self, offset: int, into: RegisteredBuffer, length: int) -> None:
        await self._move(offset, into.address, length, read=True)

    async def write(self, offset: int, data: RegisteredBuffer, length: int, start: int = 0) -> None:
        if start < 0 or start + length > CHUNK:
            raise ValueError(f"[{start}, {start + length}) is not in a buffer")
        await self._move(offset, data.address + start, length, read=False)

    async def _move(self, offset: int, address: int, length: int, *, read: bool) -> None:
        if offset < 0 or not 0 < length <= CHUNK or offset + length > self._token.size:
            raise ValueError(f"{length} bytes at {offset} are not in a region of {self._token.size}")
        self._moving += 1
        self._still.clear()
        try:
            await self._transfer(offset, address, length, read=read)
        finally:
            self._moving -= 1
            if not self._moving:
                self._still.set()

    @abstractmethod
    async def _transfer(self, offset: int, address: int, length: int, *, read: bool) -> None:
        """Move one chunk between client memory at `offset` and our `address`. Raises what the port says."""

    async def close(self) -> None:
        """As the port says."""
        await self._still.wait()
