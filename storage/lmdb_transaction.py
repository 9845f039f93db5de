"""Read and write transactions over LMDB. Values and keys given out are copies that outlive the transaction."""

from collections.abc import Iterator, Mapping
from typing import Any

import lmdb

from s3verbs.storage.lmdb_environment import LmdbEnvironment, storage_error
from s3verbs.storage.metadata import Table


class LmdbReadTransaction:
    """A snapshot from `with` until its end; use it once, on one thread.

    Do not open one inside another on the same thread: when the map grows at that moment the inner one fails.
    """

    __slots__ = ("_environment", "_tables", "_transaction")

    def __init__(self, environment: LmdbEnvironment) -> None:
        self._environment = environment
        self._tables = environment.tables

    def __enter__(self) -> "LmdbReadTransaction":
        self._transaction = self._environment.begin_read()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._transaction.abort()
        finally:
            self._environment.end()

    def get(self, table: Table, key: bytes) -> bytes | None:
        """The value, or None; None too for a key that LMDB cannot hold. Raises StorageError."""
        try:
            return self._transaction.get(key, None, self._tables[table])
        except lmdb.BadValsizeError:
            return None
        except lmdb.Error as failure:
            raise storage_error(failure) from failure

    def scan(self, table: Table, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Entries with start <= key < stop. Raises StorageError."""
        try:
            cursor = self._transaction.cursor(self._tables[table])
            if not (cursor.set_range(start) if start else cursor.first()):
                return
            if stop is None:
                yield from cursor
                return
            for entry in cursor:
                if entry[0] >= stop:
                    return
                yield entry
        except lmdb.Error as failure:
            raise storage_error(failure) from failure


class LmdbWriteTransaction:
    """The view that a change gets of the write transaction that it shares with the others of its group.

    `writes` counts what was changed. `failure` is the first error of LMDB itself: the transaction is lost then,
    whatever the change makes of the exception.
    """

    __slots__ = ("_tables", "_transaction", "failure", "writes")

    def __init__(self, transaction: "lmdb.Transaction[bytes]", tables: Mapping[Table, Any]) -> None:
        self._transaction = transaction
        self._tables = tables
        self.writes = 0
        self.failure: lmdb.Error | None = None

    def get(self, table: Table, key: bytes) -> bytes | None:
        try:
            return self._transaction.get(key, None, self._tables[table])
        except lmdb.BadValsizeError:
            return None
        except lmdb.Error as failure:
            raise self._failed(failure) from None

    def scan(self, table: Table, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """The table may be changed during the scan, also at the entry it is at: it goes on after that entry's key."""
        try:
            cursor = self._transaction.cursor(self._tables[table])
            found = cursor.set_range(start) if start else cursor.first()
            while found:
                key, value = cursor.item()
                if stop is not None and key >= stop:
                    return
                writes = self.writes
                yield key, value
                if writes == self.writes:
                    found = cursor.next()
                else:
                    found = cursor.set_range(key)
                    if found and cursor.key() == key:
                        found = cursor.next()
        except lmdb.Error as failure:
            raise self._failed(failure) from None

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        """Raises ValueError for a key of no bytes or of more than 511."""
        try:
            self._transaction.put(key, value, db=self._tables[table])
        except lmdb.BadValsizeError as failure:
            raise ValueError(f"a key of {len(key)} bytes does not fit {table.value}") from failure
        except lmdb.Error as failure:
            raise self._failed(failure) from None
        self.writes += 1

    def delete(self, table: Table, key: bytes) -> bool:
        try:
            found = self._transaction.delete(key, db=self._tables[table])
        except lmdb.BadValsizeError:
            return False
        except lmdb.Error as failure:
            raise self._failed(failure) from None
        if found:
            self.writes += 1
        return found

    def _failed(self, failure: lmdb.Error) -> lmdb.Error:
        if self.failure is None:
            self.failure = failure
        return failure
