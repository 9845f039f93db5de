"""The orphan sweep: payload files that no record knows of, left by processes that died between seal and commit."""

import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from s3verbs.storage import keys
from s3verbs.storage.metadata import MetadataStore, Table, WriteTransaction
from s3verbs.storage.model import FilePayload
from s3verbs.storage.payload import PayloadUpkeep, StoredFile
from s3verbs.storage.records import decode_payloads

_log = logging.getLogger(__name__)

MINIMUM_AGE_NS = 3600 * 1_000_000_000
"""Younger files may be on their way from seal to commit."""

FILES_PER_SECOND = 5_000
BATCH = 250


@dataclass(slots=True)
class Swept:
    """What one sweep did. `finished` is False when it was stopped, or another process was sweeping."""

    examined: int = 0
    unlinked: int = 0
    freed_bytes: int = 0
    unsealed: int = 0
    finished: bool = False


def sweep_orphans(
    metadata: MetadataStore,
    payloads: PayloadUpkeep,
    *,
    now_ns: int,
    lock: Path | None = None,
    minimum_age_ns: int = MINIMUM_AGE_NS,
    files_per_second: int = FILES_PER_SECOND,
    stop: threading.Event | None = None,
) -> Swept:
    """Unlink the payload files last written more than `minimum_age_ns` before `now_ns` that are in neither PAYLOADS
    nor RECLAIM, and the files that dead writers left unsealed.

    For an executor thread: it blocks, sleeps between batches, and ends soon after `stop` is set. `lock` is a file
    whose lock makes sure that one process sweeps at a time.
    """
    swept = Swept()
    stop = stop or threading.Event()
    with _locked(lock) as ours:
        if not ours:
            return swept
        swept.unsealed = payloads.remove_unsealed()
        for directory in payloads.directories:
            files = payloads.files(directory)
            while batch := list(islice(files, BATCH)):
                swept.examined += len(batch)
                aged = [file for file in batch if file.mtime_ns < now_ns - minimum_age_ns]
                for orphan in _orphans(metadata, aged):
                    if metadata.write_now(partial(_unlink, payloads, orphan.id, directory), frees_space=True):
                        swept.unlinked += 1
                        swept.freed_bytes += orphan.size
                        _log.info("orphan payload file %s of %d bytes is unlinked", orphan.path, orphan.size)
                if stop.wait(len(batch) / files_per_second):
                    return swept
    swept.finished = True
    return swept


def _unlink(payloads: PayloadUpkeep, payload_id: bytes, directory: int, transaction: WriteTransaction) -> bool:
    """Unlink a file unless it has been published since. Inside a write transaction, as a publish looks in one whether
    its file is there: one that was suspended for long comes either before, and has a row, or after, and fails."""
    if transaction.get(Table.PAYLOADS, keys.payload_key(payload_id)) is not None:
        return False
    return bool(payloads.delete([FilePayload(payload_id, directory, 0, 0)]))


def _orphans(metadata: MetadataStore, files: list[StoredFile]) -> list[StoredFile]:
    if not files:
        return []
    with metadata.read() as transaction:
        unknown = [file for file in files if transaction.get(Table.PAYLOADS, keys.payload_key(file.id)) is None]
        if not unknown:
            return []
        waiting = {payload.id for _, record in transaction.scan(Table.RECLAIM) for payload in decode_payloads(record)}
    return [file for file in unknown if file.id not in waiting]


@contextmanager
def _locked(lock: Path | None) -> Iterator[bool]:
    if lock is None:
        yield True
        return
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)
