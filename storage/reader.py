"""Objects opened for reading: what a reader needs so that its bytes stay there until it closes.

An inline payload is loaded when the object is opened. A single file stays readable through its open descriptor, even
when it is unlinked. An object of several files holds a shared lock on the first, which keeps reclaim away from all, and
opens the others as they are reached.
"""

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from s3verbs.storage import keys
from s3verbs.storage.errors import ObjectNotFound, PayloadDamaged
from s3verbs.storage.metadata import MetadataStore, Table
from s3verbs.storage.model import BucketName, FilePayload, InlinePayload, Payload, Version
from s3verbs.storage.payload import PayloadReader, PayloadStore
from s3verbs.storage.publishing import file_payloads, version_payloads

OPEN_TRIES = 16
"""How often an object may be replaced between lookup and open before the reader gives up."""

OPEN_PARTS = 4
"""Descriptors that a reader of several files has open at a time, beside the one it holds."""

REMEMBERED_PAYLOADS = 65_536


@dataclass(frozen=True, slots=True)
class Segment:
    """A contiguous run of an object's bytes: either `data`, or `length` bytes at `offset` of descriptor `fd`.

    The descriptor is the reader's; it stays open until the third segment after this one is taken, or `close`.
    """

    offset: int
    length: int
    data: bytes | None = None
    fd: int = -1


class ObjectReader(Protocol):
    """An object opened for reading: holds its payload against reclaim until `close`."""

    version: Version

    def segments(self, offset: int, length: int) -> Iterable[Segment]:
        """The runs that make up [offset, offset + length), in order, cut off at the object's end. Blocking, for as
        long as opening a file takes. Opening a part's file may raise PayloadDamaged."""

    def close(self) -> None:
        """Let the payload go; a second close does nothing."""


class InlineReader:
    """An object whose bytes are in memory."""

    def __init__(self, version: Version, data: bytes) -> None:
        self.version = version
        self._data = data

    def segments(self, offset: int, length: int) -> Iterable[Segment]:
        data = self._data if offset == 0 and length >= len(self._data) else self._data[offset : offset + length]
        return (Segment(0, len(data), data),) if data else ()

    def close(self) -> None:
        """Nothing is held."""


class FileReader:
    """An object in one payload file."""

    def __init__(self, version: Version, payload: PayloadReader) -> None:
        self.version = version
        self._payload: PayloadReader | None = payload

    def segments(self, offset: int, length: int) -> Iterable[Segment]:
        if self._payload is None:
            raise ValueError("the reader is closed")
        length = min(length, self.version.size - offset)
        return (Segment(offset, length, fd=self._payload.fileno()),) if length > 0 else ()

    def close(self) -> None:
        if self._payload is not None:
            self._payload.close()
            self._payload = None


class PartsReader:
    """An object of several payloads. `held` is the open reader of its first file."""

    def __init__(
        self,
        version: Version,
        payloads: PayloadStore,
        inline: dict[bytes, bytes],
        held: PayloadReader,
        closed: Callable[[], None],
    ) -> None:
        self.version = version
        self._payloads = payloads
        self._inline = inline
        self._held: PayloadReader | None = held
        self._first = next(index for index, part in enumerate(version.parts) if isinstance(part.payload, FilePayload))
        self._starts = [0, *accumulate(part.size for part in version.parts)]
        self._open: OrderedDict[int, PayloadReader] = OrderedDict()
        self._closed = closed

    def segments(self, offset: int, length: int) -> Iterator[Segment]:
        end = min(offset + length, self.version.size)
        index = bisect_right(self._starts, offset) - 1
        while offset < end:
            start, stop = self._starts[index], min(self._starts[index + 1], end)
            if stop > offset:
                yield self._segment(index, offset - start, stop - offset)
                offset = stop
            index += 1

    def _segment(self, index: int, offset: int, length: int) -> Segment:
        if self._held is None:
            raise ValueError("the reader is closed")
        payload = self.version.parts[index].payload
        if isinstance(payload, InlinePayload):
            return Segment(0, length, self._inline[payload.id][offset : offset + length])
        if index == self._first:
            return Segment(offset, length, fd=self._held.fileno())
        reader = self._open.get(index)
        if reader is None:
            try:
                reader = self._payloads.open(payload)
            except FileNotFoundError as error:
                raise PayloadDamaged(f"payload file {payload.id.hex()} is missing") from error
            self._open[index] = reader
            if len(self._open) > OPEN_PARTS:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(index)
        return Segment(offset, length, fd=reader.fileno())

    def close(self) -> None:
        if self._held is None:
            return
        for reader in self._open.values():
            reader.close()
        self._open.clear()
        self._held.close()
        self._held = None
        self._closed()


class Opener:
    """Opens versions for reading. `epoch` is the store's current one: files of relaxed versions from earlier ones are
    verified before this process reads them for the first time."""

    def __init__(
        self,
        metadata: MetadataStore,
        payloads: PayloadStore,
        *,
        epoch: int,
        lookup: Callable[[BucketName, str], Version],
        remove_damaged: Callable[[BucketName, str, Version], Awaitable[bool]],
        closed: Callable[[], None],
    ) -> None:
        self._metadata = metadata
        self._payloads = payloads
        self._epoch = epoch
        self._lookup = lookup
        self._remove_damaged = remove_damaged
        self._closed = closed
        self._verified: OrderedDict[bytes, None] = OrderedDict()

    async def open(self, bucket: BucketName, key: str, version: Version) -> ObjectReader:
        """See ObjectStore.open."""
        for _ in range(OPEN_TRIES):
            damage: PayloadDamaged | None = None
            try:
                return await self._open(version)
            except FileNotFoundError as error:
                latest = self._lookup(bucket, key)
                if same_payloads(latest, version):
                    damage = PayloadDamaged(f"a payload of the object is missing: {error}")
                else:
                    version = latest
            except PayloadDamaged as error:
                damage = error
            if damage is None:
                continue
            if not version.epoch:
                raise damage
            if await self._remove_damaged(bucket, key, version):
                raise ObjectNotFound(key) from damage
            version = self._lookup(bucket, key)
        raise PayloadDamaged(f"the object was replaced {OPEN_TRIES} times while it was opened")

    async def _open(self, version: Version) -> ObjectReader:
        """Raises FileNotFoundError when a payload is gone, PayloadDamaged."""
        payloads = version_payloads(version)
        files = file_payloads(payloads)
        if version.epoch and version.epoch < self._epoch:
            await self._verify([part.payload for part in version.parts if 0 < part.epoch < self._epoch])
        inline = self._load([payload for payload in payloads if isinstance(payload, InlinePayload)])
        if not files:
            if len(payloads) == 1:
                return InlineReader(version, inline[payloads[0].id])
            return InlineReader(version, b"".join([inline[payload.id] for payload in payloads]))
        first = self._payloads.open(files[0])
        if len(payloads) == 1:
            return FileReader(version, first)
        if len(files) > 1:
            try:
                held = first.hold()
            except BaseException:
                first.close()
                raise
            if not held:
                first.close()
                raise FileNotFoundError(files[0].id.hex())
        return PartsReader(version, self._payloads, inline, first, self._closed)

    def _load(self, payloads: Sequence[InlinePayload]) -> dict[bytes, bytes]:
        """Bytes by payload id. Ids are never used twice, so a row that is there is of the version that named it."""
        loaded: dict[bytes, bytes] = {}
        if not payloads:
            return loaded
        with self._metadata.read() as transaction:
            for payload in payloads:
                data = transaction.get(Table.INLINE, keys.payload_key(payload.id))
                if data is None:
                    raise FileNotFoundError(payload.id.hex())
                if len(data) != payload.length:
                    raise PayloadDamaged(f"inline payload {payload.id.hex()} has {len(data)} bytes")
                loaded[payload.id] = data
        return loaded

    async def _verify(self, payloads: Sequence[Payload]) -> None:
        pending = [file for file in file_payloads(payloads) if file.id not in self._verified]
        if not pending:
            return
        await asyncio.to_thread(self._verify_files, pending)
        for file in pending:
            self._verified[file.id] = None
        while len(self._verified) > REMEMBERED_PAYLOADS:
            self._verified.popitem(last=False)

    def _verify_files(self, files: Sequence[FilePayload]) -> None:
        # On a thread with its own readers: a cancelled open leaves nothing that this could still use.
        for file in files:
            reader = self._payloads.open(file)
            try:
                reader.verify()
            finally:
                reader.close()


def same_payloads(one: Version, other: Version) -> bool:
    """Whether two versions are the same publication: payload ids are never used twice."""
    return [payload.id for payload in version_payloads(one)] == [payload.id for payload in version_payloads(other)]
