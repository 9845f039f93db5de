"""The metadata store over LMDB: one environment on local disk, shared by every worker process of a host.

Commits are synchronous (data, then the meta page), so what `write` has returned survives a power cut. A process that
is killed at any moment loses nothing that was acknowledged, and its lock is taken over by the next writer.
"""

import errno
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TypeVar, cast

import lmdb

from s3verbs.storage.disk_reserve import DiskReserve
from s3verbs.storage.errors import StorageError, StorageFull, StoreUnusable
from s3verbs.storage.lmdb_environment import NO_ROOM, LmdbEnvironment, error_number, storage_error
from s3verbs.storage.lmdb_transaction import LmdbReadTransaction, LmdbWriteTransaction
from s3verbs.storage.metadata import WriteTransaction
from s3verbs.storage.writer import Change, GroupCommitter
from s3verbs.storage.writer_turn import WriterTurn

T = TypeVar("T")

READER_CHECK_INTERVAL_S = 60.0


class LmdbMetadataStore:
    """Open it in each process for itself, after any fork, and once per process."""

    def __init__(
        self,
        path: Path,
        *,
        map_bytes: int,
        reserve_bytes: int = 64 << 20,
        read_only: bool = False,
        max_readers: int = 2048,
    ) -> None:
        """`path` is a directory, made when it is missing unless `read_only`.

        `map_bytes` is the first size of the map; it doubles when it is full. `max_readers` counts the snapshots that
        all processes may have open at once; the first process to open the store decides it.
        Raises StoreUnusable, StorageFull.
        """
        self._environment = LmdbEnvironment(path, map_bytes=map_bytes, read_only=read_only, max_readers=max_readers)
        self._reserve = DiskReserve(path, 0 if read_only else reserve_bytes, reusable=self._environment.reusable_bytes)
        self._reserve.refill()
        self._turn = None if read_only else WriterTurn.open(path)
        self._committer = GroupCommitter(self._commit, self._turn.taken if self._turn else nullcontext)
        self._writing = threading.Lock()
        self._readers_checked_at = time.monotonic()
        self.commits = 0
        """Commits that reached the disk, by this process."""

    def read(self) -> LmdbReadTransaction:
        return LmdbReadTransaction(self._environment)

    async def write(self, change: Callable[[WriteTransaction], T], *, frees_space: bool = False) -> T:
        """See MetadataStore. A change that `frees_space` (a delete, a reclaim) may use the reserve of a full disk;
        the others raise StorageFull before they touch it."""
        return cast(T, await self._committer.run(change, frees_space=frees_space))

    def write_now(self, change: Callable[[WriteTransaction], T], *, frees_space: bool = False) -> T:
        """Not inside a snapshot of the same thread."""
        only = Change(change, frees_space)
        self._commit((only,))
        if only.error is not None:
            raise only.error
        return cast(T, only.result)

    def close(self) -> None:
        self._committer.close()
        self._environment.close()
        if self._turn is not None:
            self._turn.close()
            self._turn = None

    # -- committing: on the writer thread, or the caller's of write_now --

    def _commit(self, changes: Sequence[Change]) -> None:
        """Run and commit; every change is settled on return."""
        with self._writing:
            groups = [self._admit(list(changes))]
            while groups:
                group = groups.pop()
                try:
                    groups += self._attempt(group)
                except StorageError as failure:
                    _fail(group, failure)
                except lmdb.Error as failure:
                    _fail(group, storage_error(failure))
            self._tend()

    def _admit(self, changes: list[Change]) -> list[Change]:
        """Those that may run; the others have failed."""
        if self._environment.read_only:
            _fail(changes, StoreUnusable("the metadata store is open for reading only"))
            return []
        try:
            low = self._reserve.low()
        except StorageError as failure:
            _fail(changes, failure)
            return []
        except OSError as failure:
            _fail(changes, StorageError(f"the metadata disk does not answer: {failure}"))
            return []
        if low:
            return _refuse(changes, StorageFull("the metadata disk is almost full; only deletes are taken"))
        return changes

    def _attempt(self, group: list[Change]) -> list[list[Change]]:
        """One transaction for all of a group. The groups that have yet to run, each in its own, the last one first."""
        if not group:
            return []
        environment = self._environment
        generation = environment.generation
        try:
            spoiler = self._run(group)
        except lmdb.MapFullError:
            # Pages that a dead process holds may be all that is missing.
            if not environment.clear_stale_readers():
                environment.grow(generation)
            return [group]
        except lmdb.MapResizedError:
            environment.adopt(generation)
            return [group]
        except lmdb.TxnFullError as failure:
            half = len(group) // 2
            if not half:
                raise StorageError("a change is too large for one transaction") from failure
            return [group[half:], group[:half]]
        except lmdb.Error as failure:
            if not self._means_full(failure):
                raise
            return [self._make_room(group, failure)]
        if spoiler is None:
            return []
        return [[change for change in group if change is not spoiler]]

    def _run(self, changes: list[Change]) -> Change | None:
        """Run the changes and commit. When one raised after it had written, nothing is committed and it is returned.

        The usual failure, a condition that does not hold, is raised before anything was written and costs nothing.
        A nested transaction for each change would undo the rare other kind alone, but LMDB allocates 2 MiB for each
        nested transaction; running the others again costs only when it happens.
        """
        environment = self._environment
        transaction = environment.begin_write()
        try:
            view = LmdbWriteTransaction(transaction, environment.tables)
            for change in changes:
                writes = view.writes
                change.error = None
                try:
                    change.result = change.function(view)
                except BaseException as error:  # noqa: BLE001  It is the caller's, and goes there.
                    change.error = error
                if view.failure is not None:
                    raise view.failure
                if change.error is not None and view.writes != writes:
                    return change
            if view.writes:
                transaction.commit()
                self.commits += 1
            return None
        finally:
            transaction.abort()
            environment.end()

    def _means_full(self, failure: lmdb.Error) -> bool:
        number = error_number(failure)
        return number in NO_ROOM or (number == errno.EIO and self._reserve.disk_is_full())

    def _make_room(self, group: list[Change], failure: lmdb.Error) -> list[Change]:
        """Changes that take space fail first, then the reserve goes, then those that free space fail too."""
        full = StorageFull(f"no room on the metadata disk: {failure}")
        freeing = _refuse(group, full)
        if self._environment.clear_stale_readers():
            return freeing
        if len(freeing) < len(group) or self._reserve.release():
            return freeing
        raise full from failure

    def _tend(self) -> None:
        self._reserve.refill()
        now = time.monotonic()
        if now - self._readers_checked_at >= READER_CHECK_INTERVAL_S:
            self._readers_checked_at = now
            with suppress(lmdb.Error):
                self._environment.clear_stale_readers()


def _fail(changes: list[Change], failure: StorageError) -> None:
    for change in changes:
        change.error = failure


def _refuse(changes: list[Change], failure: StorageFull) -> list[Change]:
    """Fail those that take space; the others."""
    _fail([change for change in changes if not change.frees_space], failure)
    return [change for change in changes if change.frees_space]
