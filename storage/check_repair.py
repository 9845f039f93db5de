"""What `check --repair` does: removed records are written to a JSON-lines file first, payload files are moved.

Each line is one record: `{"table": "objects", "key": "<hex>", "value": "<base64>"}`.
"""

import base64
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from s3verbs.storage.metadata import MetadataStore, Table, WriteTransaction
from s3verbs.storage.payload import PayloadUpkeep

BATCH = 256


@dataclass(slots=True)
class Remedy:
    """Records to remove, then records to write, and files (directory, payload id) to set aside."""

    drops: list[tuple[Table, bytes]] = field(default_factory=list)
    puts: list[tuple[Table, bytes, bytes]] = field(default_factory=list)
    files: list[tuple[int, bytes]] = field(default_factory=list)


def apply_remedies(
    metadata: MetadataStore, payloads: PayloadUpkeep, quarantine: Path, remedies: Sequence[Remedy]
) -> Path | None:
    """Apply them; the file with the removed records, None when there was none to write.

    The copy is on stable storage before a record goes. Files that the records named go last: a crash in between
    leaves orphans, which the next check sets aside. Blocking. Raises StorageFull, OSError.
    """
    written: Path | None = None
    for start in range(0, len(remedies), BATCH):
        batch = remedies[start : start + BATCH]
        drops = list(dict.fromkeys(drop for remedy in batch for drop in remedy.drops))
        if drops:
            written = written or quarantine / f"records-{time.time_ns()}.jsonl"
            _write_records(metadata, drops, written)

        def change(transaction: WriteTransaction, batch: Sequence[Remedy] = batch) -> None:
            for remedy in batch:
                for table, key in remedy.drops:
                    transaction.delete(table, key)
                for table, key, value in remedy.puts:
                    transaction.put(table, key, value)

        metadata.write_now(change, frees_space=True)
    _set_aside(payloads, {place for remedy in remedies for place in remedy.files})
    return written


def _write_records(metadata: MetadataStore, drops: Sequence[tuple[Table, bytes]], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with metadata.read() as transaction, path.open("a", encoding="ascii") as file:
        for table, key in drops:
            value = transaction.get(table, key)
            if value is not None:
                line = {"table": table.value, "key": key.hex(), "value": base64.b64encode(value).decode()}
                file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _set_aside(payloads: PayloadUpkeep, places: set[tuple[int, bytes]]) -> None:
    for directory in payloads.directories:
        wanted = {payload_id for number, payload_id in places if number == directory}
        if not wanted:
            continue
        # Collected first: moving a file out of a directory that is being read may hide others.
        for path in [file.path for file in payloads.files(directory) if file.id in wanted]:
            payloads.quarantine(path)
