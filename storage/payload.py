"""The payload port: immutable byte strings, written once, sealed, read at any offset, deleted."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from s3verbs.storage.model import FilePayload


class PayloadWriter(Protocol):
    """A payload file being written; it has no name until it is sealed, so a crash leaves nothing behind.

    `write` and `seal` block: call them on an executor thread, one call at a time. `discard` may be called on any
    thread, also while one of them runs. After any of them has raised, the payload is discarded.
    """

    def write(self, chunk: memoryview) -> None:
        """Append. The chunk may be reused on return. Every chunk but the last must be a multiple of BLOCK_SIZE
        and begin on a page boundary for the direct path; others are accepted and staged. Raises StorageFull."""

    def seal(self, *, durable: bool) -> FilePayload:
        """Write the block checksums and give the file its name. With `durable`, bytes and directory entry are on
        stable storage on return (concurrent seals share directory syncs). Raises StorageFull."""

    def discard(self) -> None:
        """Drop everything; never raises; a no-op after seal."""


class PayloadReader(Protocol):
    """A sealed payload, open. The open file keeps the bytes alive even when the payload is deleted meanwhile."""

    length: int

    def fileno(self) -> int:
        """A descriptor whose bytes [0, length) are the payload: for sendfile. Owned by the reader."""

    def read_into(self, offset: int, into: memoryview) -> int:
        """Fill `into` from `offset`, as far as the payload goes; the count of bytes. Blocking, not verified."""

    def verify(self) -> None:
        """Read everything and compare with the stored checksums. Blocking. Raises PayloadDamaged."""

    def verify_range(self, offset: int, length: int) -> None:
        """Verify the 1 MiB blocks that [offset, offset + length) touches. Blocking. Raises PayloadDamaged."""

    def hold(self) -> bool:
        """Take a shared lock that keeps a multi-file payload from being reclaimed until close. Never waits.
        False when the file has been unlinked or is about to be: look the object up again."""

    def close(self) -> None:
        """Release the descriptor. No other call may be running."""


class PayloadStore(Protocol):
    """All payload directories of a store."""

    def create(self, size_hint: int = 0, *, durable: bool = True) -> PayloadWriter:
        """A new payload in a directory that has room. `size_hint` is the number of bytes that will come: room for them
        is taken at once, so a full disk shows here and not half-way. `durable` says how it will be sealed; it only
        chooses the faster way to write. Blocking, some 50 microseconds. Raises StorageFull when no directory has
        room, StorageBusy when the process is out of descriptors."""

    def open(self, payload: FilePayload) -> PayloadReader:
        """Raises FileNotFoundError when the file is gone (the object was replaced: look it up again), PayloadDamaged
        when it has another length than the record says."""

    def exists(self, payload: FilePayload) -> bool:
        """Whether the file is there; a stat, no more. False when its drive does not answer."""

    def sync(self, payloads: Sequence[FilePayload]) -> None:
        """Put sealed files and their directory entries on stable storage, as `seal` does with `durable`. Blocking.
        Raises FileNotFoundError, StorageFull, StorageBusy, StoreUnusable, PayloadDamaged."""

    def delete(self, payloads: list[FilePayload]) -> list[FilePayload]:
        """Unlink; those that were deleted or already absent are returned, those held by a reader are not.
        The first of the list is the one that readers of a multi-file payload hold: it is unlinked last. Blocking."""

    def close(self) -> None: ...


class StoredFile(Protocol):
    """A sealed payload file found in a directory. `size` may be more than the payload's length."""

    @property
    def id(self) -> bytes: ...
    @property
    def path(self) -> Path: ...
    @property
    def size(self) -> int: ...
    @property
    def mtime_ns(self) -> int: ...


class PayloadUpkeep(PayloadStore, Protocol):
    """What the orphan sweep and the consistency check need beside the port. All of it blocks."""

    @property
    def directories(self) -> Mapping[int, Path]:
        """Number and path of every payload directory."""

    def files(self, directory: int) -> Iterator[StoredFile]:
        """Every sealed file of a directory, in no order. One that is being published has no record yet."""

    def quarantine(self, path: Path) -> Path:
        """Move a file out of the way; where it is then. Nothing is deleted or overwritten."""

    def remove_unsealed(self) -> int:
        """Unlink what dead writers left; how many files."""
