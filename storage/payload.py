"""The payload port: immutable byte strings, written once, sealed, read at any offset, deleted."""

from typing import Protocol

from s3verbs.storage.model import FilePayload


class PayloadWriter(Protocol):
    """A payload file being written; it has no name until it is sealed, so a crash leaves nothing behind.

    `write` and `seal` block: call them on an executor thread, one call at a time.
    """

    def write(self, chunk: memoryview) -> None:
        """Append. The chunk may be reused on return. Every chunk but the last must be a multiple of BLOCK_SIZE
        for the direct path; other sizes are accepted and staged. Raises StorageFull."""

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

    def hold(self) -> bool:
        """Take a shared lock that keeps a multi-file payload from being reclaimed until close.
        False when the file has been unlinked already: look the object up again."""

    def close(self) -> None:
        """Release the descriptor."""


class PayloadStore(Protocol):
    """All payload directories of a store."""

    def create(self, size_hint: int = 0) -> PayloadWriter:
        """A new payload in the directory that has the most room. Raises StorageFull when none has."""

    def open(self, payload: FilePayload) -> PayloadReader:
        """Raises FileNotFoundError when the file is gone (the object was replaced: look it up again)."""

    def delete(self, payloads: list[FilePayload]) -> list[FilePayload]:
        """Unlink; those that were deleted or already absent are returned, those held by a reader are not.
        The first of the list is the one that readers of a multi-file payload hold: it is unlinked last. Blocking."""

    def close(self) -> None: ...
