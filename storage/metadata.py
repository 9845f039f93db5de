"""The metadata port: named tables of ordered byte keys, read in snapshots, changed by one writer at a time.

What the tables hold is in `docs/storage-format.md`; `storage.keys` builds keys, `storage.records` values.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Protocol, TypeVar

T = TypeVar("T")


class Table(StrEnum):
    """Every table of the store."""

    BUCKETS = "buckets"  # bucket name -> Bucket
    OBJECTS = "objects"  # bucket id + object key -> Version (inline payloads without their bytes)
    INLINE = "inline"  # payload id -> bytes of an inline payload
    UPLOADS = "uploads"  # bucket id + object key + upload id -> Upload
    PARTS = "parts"  # upload id + part number -> Part
    PAYLOADS = "payloads"  # payload id -> who refers to a payload file (for the orphan sweep)
    RECLAIM = "reclaim"  # payload id -> payload files waiting to be unlinked
    ACCESS_KEYS = "access_keys"  # access key id -> access key
    STORE = "store"  # singletons: format, epoch, payload directories


class ReadTransaction(Protocol):
    """A consistent snapshot. Cheap; must be closed before any await."""

    def get(self, table: Table, key: bytes) -> bytes | None:
        """The value, or None."""

    def scan(self, table: Table, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Entries with start <= key < stop in byte order; `stop` None means to the end of the table."""


class WriteTransaction(ReadTransaction, Protocol):
    """The one write transaction of the moment. It sees its own changes."""

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        """Insert or replace."""

    def delete(self, table: Table, key: bytes) -> bool:
        """Remove; False when it was not there."""


class MetadataStore(Protocol):
    """Shared by every worker process of a host."""

    def read(self) -> AbstractContextManager[ReadTransaction]:
        """A snapshot of all that was committed, by any process, before the call."""

    async def write(self, change: Callable[[WriteTransaction], T], *, frees_space: bool = False) -> T:
        """Run `change` on the writer thread and return its result once it is committed to stable storage.

        Concurrent changes share one commit (group commit). A change that raises changes nothing and its exception
        comes out here; the others of its group are unharmed. A change may be run more than once (after the map
        grew, or after another change of its group raised), so it must have no effect outside the transaction.
        Cancelling the await does not undo a change that has been handed over. A change that `frees_space` (a delete,
        a reclaim) may use room that is kept for such changes on a full disk.

        Raises StorageFull when the disk or the map has no room.
        """

    def write_now(self, change: Callable[[WriteTransaction], T], *, frees_space: bool = False) -> T:
        """The same on the calling thread, for commands and start-up: blocking."""

    def close(self) -> None:
        """Finish queued changes and release the store."""
