"""Epochs: which relaxed payloads a power cut may have taken.

A relaxed payload is in the page cache of the running kernel until that kernel writes it back, so it survives the death
of a process but not that of the kernel. The first relaxed payload that is recorded under a kernel notes the kernel's
boot id in the store (`mark`). The last process that closes the store writes the page cache back and removes the note
(`clear`). A note of another boot id at open says that a kernel died in between: the epoch is advanced (`begin`), and
payloads of earlier epochs are verified before they are read. An epoch only ever ends in that way.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from s3verbs.storage.errors import InvalidPart, PayloadDamaged
from s3verbs.storage.metadata import ReadTransaction, Table, WriteTransaction
from s3verbs.storage.model import FilePayload, Part
from s3verbs.storage.payload import PayloadStore

EPOCH = b"epoch"
RELAXED_BOOT = b"relaxed-boot"

_EPOCH = Struct(">QQ")


@dataclass(frozen=True, slots=True)
class Epoch:
    """The store's epoch, and the boot id of this kernel. With an empty `boot_id` nothing is noted."""

    number: int = 0
    boot_id: bytes = b""

    def mark(self, transaction: WriteTransaction) -> None:
        """Note that a relaxed payload may be in this kernel's page cache only."""
        if self.boot_id and transaction.get(Table.STORE, RELAXED_BOOT) != self.boot_id:
            transaction.put(Table.STORE, RELAXED_BOOT, self.boot_id)


class NotDurable(Exception):
    """A change would make these parts an object of a strict bucket, and their files were never synced. When they are,
    their payload ids go into `synced` and the change is run again."""

    def __init__(self, parts: Sequence[Part], synced: set[bytes]) -> None:
        super().__init__(f"{len(parts)} payload files are not on stable storage")
        self.parts = parts
        self.synced = synced


def earliest(parts: Sequence[Part]) -> int:
    """The epoch of a version of these parts: 0 when all are durable."""
    return min([part.epoch for part in parts if part.epoch], default=0)


def make_durable(payloads: PayloadStore, parts: Sequence[Part], epoch: int) -> None:
    """Put the files of `parts` on stable storage; those of an epoch before `epoch` are verified, as a power cut may
    have taken bytes of them. Blocking. Raises InvalidPart for one that was lost, and what PayloadStore.sync raises."""
    files = [part.payload for part in parts if isinstance(part.payload, FilePayload)]
    for part in parts:
        if part.epoch < epoch and isinstance(part.payload, FilePayload):
            try:
                with closing(payloads.open(part.payload)) as reader:
                    reader.verify()
            except (FileNotFoundError, PayloadDamaged) as error:
                raise InvalidPart(f"part {part.number} was lost in an unclean stop", part.number) from error
    try:
        payloads.sync(files)
    except FileNotFoundError as error:
        raise PayloadDamaged(f"a payload file is missing: {error}") from error


def kernel_boot_id() -> bytes:
    return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()


def current(transaction: ReadTransaction, *, boot_id: bytes) -> Epoch:
    """The epoch that `begin` would give, for a process that only reads."""
    record = transaction.get(Table.STORE, EPOCH)
    if record is None:
        return Epoch(1, boot_id)
    number, _ = _EPOCH.unpack(record)
    noted = transaction.get(Table.STORE, RELAXED_BOOT)
    return Epoch(number if noted in (None, boot_id) else number + 1, boot_id)


def begin(transaction: WriteTransaction, *, boot_id: bytes, now_ns: int) -> Epoch:
    """The epoch for a process that opens the store; a new one after a kernel died with relaxed payloads."""
    epoch = current(transaction, boot_id=boot_id)
    record = transaction.get(Table.STORE, EPOCH)
    if record is None or _EPOCH.unpack(record)[0] != epoch.number:
        transaction.put(Table.STORE, EPOCH, _EPOCH.pack(epoch.number, now_ns))
        transaction.delete(Table.STORE, RELAXED_BOOT)
    return epoch


def marked(transaction: ReadTransaction) -> bool:
    return transaction.get(Table.STORE, RELAXED_BOOT) is not None


def clear(transaction: WriteTransaction) -> None:
    """Remove the note. Only when no other process has the store open and the page cache was written back."""
    transaction.delete(Table.STORE, RELAXED_BOOT)
