"""Epochs: which relaxed payloads a power cut may have taken.

A relaxed payload is in the page cache of the running kernel until that kernel writes it back, so it survives the death
of a process but not that of the kernel. The first relaxed payload that is published under a kernel notes the kernel's
boot id in the store (`mark`). The last process that closes the store writes the page cache back and removes the note
(`clear`). A note of another boot id at open says that a kernel died in between: the epoch is advanced (`begin`), and
versions of earlier epochs are verified before they are read. An epoch only ever ends in that way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from s3verbs.storage.metadata import ReadTransaction, Table, WriteTransaction
from s3verbs.storage.model import Bucket, Durability, FilePayload, Part

EPOCH = b"epoch"
RELAXED_BOOT = b"relaxed-boot"

_EPOCH = Struct(">QQ")


@dataclass(frozen=True, slots=True)
class Epoch:
    """The store's epoch, when it began, and the boot id of this kernel. With an empty `boot_id` nothing is noted."""

    number: int = 0
    started_ns: int = 0
    boot_id: bytes = b""

    def of(self, transaction: WriteTransaction, bucket: Bucket, parts: Sequence[Part]) -> int:
        """The epoch of a version of these parts; 0 for one that is durable. Marks the store when it is not.

        A part older than the epoch was written in an earlier one, which may have taken it.
        """
        if bucket.durability is not Durability.RELAXED:
            return 0
        files = [part for part in parts if isinstance(part.payload, FilePayload)]
        if not files:
            return 0  # inline payloads are committed with the metadata
        self.mark(transaction)
        if all(part.modified_ns >= self.started_ns for part in files):
            return self.number
        return self.number - 1 or self.number

    def mark(self, transaction: WriteTransaction) -> None:
        """Note that a relaxed payload may be in this kernel's page cache only."""
        if self.boot_id and transaction.get(Table.STORE, RELAXED_BOOT) != self.boot_id:
            transaction.put(Table.STORE, RELAXED_BOOT, self.boot_id)


def kernel_boot_id() -> bytes:
    return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()


def current(transaction: ReadTransaction, *, boot_id: bytes, now_ns: int) -> Epoch:
    """The epoch that `begin` would give, for a process that only reads."""
    record = transaction.get(Table.STORE, EPOCH)
    if record is None:
        return Epoch(1, now_ns, boot_id)
    number, started_ns = _EPOCH.unpack(record)
    noted = transaction.get(Table.STORE, RELAXED_BOOT)
    if noted is None or noted == boot_id:
        return Epoch(number, started_ns, boot_id)
    return Epoch(number + 1, max(now_ns, started_ns), boot_id)


def begin(transaction: WriteTransaction, *, boot_id: bytes, now_ns: int) -> Epoch:
    """The epoch for a process that opens the store; a new one after a kernel died with relaxed payloads."""
    epoch = current(transaction, boot_id=boot_id, now_ns=now_ns)
    record = _EPOCH.pack(epoch.number, epoch.started_ns)
    if transaction.get(Table.STORE, EPOCH) != record:
        transaction.put(Table.STORE, EPOCH, record)
        transaction.delete(Table.STORE, RELAXED_BOOT)
    return epoch


def marked(transaction: ReadTransaction) -> bool:
    return transaction.get(Table.STORE, RELAXED_BOOT) is not None


def clear(transaction: WriteTransaction) -> None:
    """Remove the note. Only when no other process has the store open and the page cache was written back."""
    transaction.delete(Table.STORE, RELAXED_BOOT)
