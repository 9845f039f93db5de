"""Reclaim: unlink the payload files that no record refers to any more, after the commit that dropped them.

Files come from two sides. *Released* ones have a RECLAIM row, written by the commit that dropped them: they are
unlinked first and the row is removed in a later change, so a crash in between leaves a row whose files are gone, which
the next `run` takes away. *Discarded* ones were never published: a write failed, and nothing but this process knows of
them. They are unlinked only when PAYLOADS has no row of theirs, whatever the failure looked like; a crash leaves them
to the orphan sweep.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence

from s3verbs.storage import keys
from s3verbs.storage.errors import StorageError
from s3verbs.storage.metadata import MetadataStore, Table, WriteTransaction
from s3verbs.storage.model import FilePayload
from s3verbs.storage.payload import PayloadStore
from s3verbs.storage.publishing import Released
from s3verbs.storage.records import decode_payloads

_log = logging.getLogger(__name__)

BATCH_FILES = 1024
"""About as many files are unlinked between two looks at the queue."""

GATHER_SECONDS = 0.02
"""A pause before each background pass, so that the rows of many commits are removed in one."""


class Reclaimer:
    """The queue of one process. All methods are for its event loop; files are unlinked on an executor thread."""

    def __init__(self, metadata: MetadataStore, payloads: PayloadStore) -> None:
        self._metadata = metadata
        self._payloads = payloads
        self._released: deque[Released] = deque()
        self._discarded: deque[FilePayload] = deque()
        self._held: list[Released] = []
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    def released(self, rows: Iterable[Released]) -> None:
        """Files whose RECLAIM rows are committed: unlink them in the background."""
        self._released.extend(rows)
        self._wake()

    def discard(self, files: Iterable[FilePayload]) -> None:
        """Sealed files that were not published: unlink them in the background."""
        self._discarded.extend(files)
        self._wake()

    def reader_closed(self) -> None:
        """A reader let go of a multi-file payload: files that were held may be free."""
        if self._held:
            self._released.extend(self._held)
            self._held.clear()
            self._wake()

    async def run(self) -> int:
        """Unlink all that waits in RECLAIM, by whichever process, and is not held. How many files went."""
        self._held.clear()
        start = b""
        gone = await self._pass()
        while True:
            rows: list[Released] = []
            with self._metadata.read() as transaction:
                for place, record in transaction.scan(Table.RECLAIM, start):
                    rows.append(tuple(decode_payloads(record)))
                    start = place + b"\0"
                    if len(rows) == BATCH_FILES:
                        break
            if not rows:
                return gone
            self._released.extend(rows)
            gone += await self._pass()

    async def unlink(self, files: Sequence[FilePayload]) -> int:
        """Unlink sealed files that were not published, before returning. How many went."""
        return len(await self._unlink_unpublished(list(files)))

    async def close(self) -> None:
        """Finish what is queued; what fails stays in RECLAIM."""
        self._closed = True
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._pass()

    def _wake(self) -> None:
        if self._closed or (self._task is not None and not self._task.done()):
            return
        if self._released or self._discarded:
            self._task = asyncio.get_running_loop().create_task(self._background())

    async def _background(self) -> None:
        while self._released or self._discarded:
            if not self._closed:
                await asyncio.sleep(GATHER_SECONDS)
            await self._pass()

    async def _pass(self) -> int:
        """Work the queues off once."""
        gone = 0
        async with self._turn:
            while self._discarded:
                batch = [self._discarded.popleft() for _ in range(min(len(self._discarded), BATCH_FILES))]
                try:
                    gone += len(await self._unlink_unpublished(batch))
                except (OSError, StorageError):
                    _log.exception("unpublished payload files were not unlinked; the orphan sweep will take them")
            while self._released:
                rows, count = [], 0
                while self._released and count < BATCH_FILES:
                    rows.append(self._released.popleft())
                    count += len(rows[-1])
                try:
                    gone += await self._reclaim(rows)
                except (OSError, StorageError):
                    _log.exception("payload files were not reclaimed; the next reclaim tries again")
        return gone

    async def _reclaim(self, rows: list[Released]) -> int:
        done, held, gone = await asyncio.to_thread(self._unlink, rows)
        self._held.extend(held)
        if done:

            def remove(transaction: WriteTransaction) -> None:
                for row in done:
                    transaction.delete(Table.RECLAIM, keys.payload_key(row[0].id))

            await self._metadata.write(remove, frees_space=True)
        return gone

    def _unlink(self, rows: list[Released]) -> tuple[list[Released], list[Released], int]:
        done: list[Released] = []
        held: list[Released] = []
        gone = 0
        for row in rows:
            try:
                deleted = len(self._payloads.delete(list(row)))
            except (OSError, StorageError):
                _log.exception("payload file %s was not unlinked; the next reclaim tries again", row[0].id.hex())
                continue
            gone += deleted
            (done if deleted == len(row) else held).append(row)
        return done, held, gone

    async def _unlink_unpublished(self, files: list[FilePayload]) -> list[FilePayload]:
        with self._metadata.read() as transaction:
            files = [file for file in files if transaction.get(Table.PAYLOADS, keys.payload_key(file.id)) is None]

        def unlink() -> list[FilePayload]:
            return [gone for file in files for gone in self._payloads.delete([file])]

        return await asyncio.to_thread(unlink)
