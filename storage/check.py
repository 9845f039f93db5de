"""The consistency check: do the records, the payload rows and the payload files of a store agree, both ways?

The store must have no other user: open it with `exclusive`. What waits in RECLAIM is no finding, with or without its
files. An orphan file is one, although the sweep takes it away in time. Repair moves files and writes records to
`quarantine`; it deletes no byte.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from s3verbs.storage import keys
from s3verbs.storage.check_repair import Remedy, apply_remedies
from s3verbs.storage.errors import PayloadDamaged, StoreUnusable
from s3verbs.storage.metadata import MetadataStore, ReadTransaction, Table
from s3verbs.storage.model import FilePayload, InlinePayload, Payload, Upload
from s3verbs.storage.payload import PayloadUpkeep
from s3verbs.storage.publishing import file_payloads, version_payloads
from s3verbs.storage.records import (
    PayloadOwner,
    decode_bucket,
    decode_owner,
    decode_part,
    decode_payloads,
    decode_upload,
    decode_version,
    encode_owner,
    encode_payloads,
)

R = TypeVar("R")

REMEMBERED_OWNERS = 64

ORPHAN = "orphan-file"
"""The kind of finding that an unclean stop leaves behind and the sweep takes away."""

DROP = "write the record to quarantine and remove it; move its payload files there"
MOVE = "move the file to quarantine"


class CheckedStore(Protocol):
    """What the check needs of a store; `opening.Store` is one."""

    @property
    def metadata(self) -> MetadataStore: ...
    @property
    def payloads(self) -> PayloadUpkeep: ...
    @property
    def quarantine(self) -> Path:
        """The directory that removed records are written to."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be. `remedy` is what repair does about it."""

    kind: str
    where: str
    remedy: str


@dataclass(slots=True)
class Report:
    """Counts by name (`objects`, `files`, `payload_bytes`, ...) and what was found. `records` is the file that repair
    wrote removed records to."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    repaired: bool = False
    records: Path | None = None

    @property
    def clean(self) -> bool:
        return not self.findings


def check_store(store: CheckedStore, *, read_payloads: bool, repair: bool) -> Report:
    """Compare everything with everything; with `read_payloads` also every byte with its checksums. Blocking.

    Raises StorageError when the metadata cannot be read, StorageFull when there is no room to repair.
    """
    report = Report()
    with store.metadata.read() as transaction:
        check = _Check(transaction, store.payloads, report, read_payloads=read_payloads)
        check.run()
    if repair and report.findings:
        report.records = apply_remedies(store.metadata, store.payloads, store.quarantine, check.remedies)
        report.repaired = True
    return report


class _Check:
    def __init__(
        self, transaction: ReadTransaction, payloads: PayloadUpkeep, report: Report, *, read_payloads: bool
    ) -> None:
        self._transaction = transaction
        self._payloads = payloads
        self._report = report
        self._read_payloads = read_payloads
        self.remedies: list[Remedy] = []
        self._bucket_ids: set[bytes] = set()
        self._buckets_known = True
        self._uploads: set[bytes] = set()
        self._inline: set[bytes] = set()
        self._reowned: set[bytes] = set()
        self._dropped_files: set[tuple[int, bytes]] = set()
        self._waiting: set[tuple[int, bytes]] = set()
        self._owners: dict[bytes, dict[bytes, int]] = {}

    def run(self) -> None:
        self._check_buckets()
        self._check_objects()
        self._check_uploads()
        self._check_parts()
        self._check_payload_rows()
        self._check_inline_rows()
        self._check_reclaim()
        self._check_files()

    def _found(self, kind: str, where: str, what: str, remedy: Remedy) -> None:
        self._report.findings.append(Finding(kind, where, what))
        self.remedies.append(remedy)
        self._dropped_files.update(remedy.files)

    def _records(self, table: Table, decode: Callable[[bytes], R]) -> Iterator[tuple[bytes, bytes, R]]:
        for place, record in self._transaction.scan(table):
            self._report.counts[table.value] += 1
            try:
                value = decode(record)
            except StoreUnusable as error:
                what = f"{table.value} {place.hex()}: {error}"
                if table is Table.BUCKETS:
                    self._buckets_known = False
                    self._found("undecodable-record", what, "nothing: restore the bucket's record", Remedy())
                else:
                    self._found("undecodable-record", what, DROP, Remedy(drops=[(table, place)]))
            else:
                yield place, record, value

    # -- records --

    def _check_buckets(self) -> None:
        for place, _, bucket in self._records(Table.BUCKETS, decode_bucket):
            self._bucket_ids.add(bucket.id)
            if keys.bucket_key(bucket.name) != place:
                self._found("misplaced-record", f"bucket {bucket.name}", "nothing: the record is kept", Remedy())

    def _check_objects(self) -> None:
        for place, _, version in self._records(Table.OBJECTS, decode_version):
            bucket_id = place[: keys.BUCKET_ID_BYTES]
            where = f"object {version.key!r} of bucket id {bucket_id.hex()}"
            payloads = version_payloads(version)
            owner = PayloadOwner(Table.OBJECTS, place)
            if keys.object_key(bucket_id, version.key) != place:
                self._drop("misplaced-record", where, owner, payloads)
            elif version.size != sum(payload.length for payload in payloads):
                self._drop("wrong-size", where, owner, payloads)
            else:
                self._check_owner(owner, where, payloads)

    def _check_uploads(self) -> None:
        for place, _, upload in self._records(Table.UPLOADS, decode_upload):
            raw = keys.upload_id_bytes(upload.id)
            if raw is None or not self._is_upload_place(place, upload, raw):
                where = f"upload {upload.id} of {upload.key!r}"
                self._found("misplaced-record", where, DROP, Remedy(drops=[(Table.UPLOADS, place)]))
                continue
            if place[: keys.BUCKET_ID_BYTES] not in self._bucket_ids:
                self._homeless(f"upload {upload.id} of {upload.key!r}", Remedy(drops=[(Table.UPLOADS, place)]))
                if self._buckets_known:
                    continue
            self._uploads.add(raw)

    def _is_upload_place(self, place: bytes, upload: Upload, raw: bytes) -> bool:
        return keys.upload_key(place[: keys.BUCKET_ID_BYTES], upload.key, raw) == place

    def _check_parts(self) -> None:
        for place, _, part in self._records(Table.PARTS, decode_part):
            where = f"part {keys.part_number(place)} of upload {place[: keys.ID_BYTES].hex()}"
            owner = PayloadOwner(Table.PARTS, place)
            if place[: keys.ID_BYTES] not in self._uploads:
                self._drop("part-without-upload", where, owner, [part.payload])
            elif part.number != keys.part_number(place):
                self._drop("misplaced-record", where, owner, [part.payload])
            else:
                self._check_owner(owner, where, [part.payload])

    def _check_owner(self, owner: PayloadOwner, where: str, payloads: list[Payload]) -> None:
        """Check the payloads of a record; the first bad one costs the record."""
        for payload in payloads:
            problem = self._inline_problem(payload) if isinstance(payload, InlinePayload) else None
            if isinstance(payload, FilePayload):
                problem = self._row_problem(payload, owner, where) or self._file_problem(payload)
            if problem is not None:
                kind, what = problem
                self._drop(kind, f"{where}: {what}", owner, payloads, but=payload if kind == "shared-payload" else None)
                return
        if owner.table is Table.OBJECTS and owner.key[: keys.BUCKET_ID_BYTES] not in self._bucket_ids:
            self._homeless(where, self._removal(owner, payloads))

    def _inline_problem(self, payload: InlinePayload) -> tuple[str, str] | None:
        data = self._transaction.get(Table.INLINE, payload.id)
        if data is None:
            return "missing-payload", f"inline payload {payload.id.hex()} has no row"
        if payload.id in self._inline:
            return "shared-payload", f"inline payload {payload.id.hex()} has another owner"
        self._inline.add(payload.id)
        self._report.counts["payload_bytes"] += payload.length
        if len(data) != payload.length:
            return "damaged-payload", f"inline payload {payload.id.hex()} has {len(data)} bytes, not {payload.length}"
        return None

    def _row_problem(self, payload: FilePayload, owner: PayloadOwner, where: str) -> tuple[str, str] | None:
        row = self._transaction.get(Table.PAYLOADS, payload.id)
        wanted = encode_owner(owner)
        if row == wanted:
            return None
        if row is not None and payload.id in self._referred(row):
            return "shared-payload", f"payload file {payload.id.hex()} has another owner"
        self._reowned.add(payload.id)
        remedy = Remedy(puts=[(Table.PAYLOADS, payload.id, wanted)])
        self._found("wrong-payload-row", f"{where}: row of {payload.id.hex()}", "write the row again", remedy)
        return None

    def _file_problem(self, payload: FilePayload) -> tuple[str, str] | None:
        self._report.counts["payload_bytes"] += payload.length
        try:
            with closing(self._payloads.open(payload)) as reader:
                if self._read_payloads:
                    reader.verify()
                    self._report.counts["verified_files"] += 1
        except FileNotFoundError:
            return "missing-payload", f"payload file {payload.id.hex()} is missing"
        except PayloadDamaged as error:
            return "damaged-payload", str(error)
        return None

    # -- rows and files --

    def _check_payload_rows(self) -> None:
        for place, record, owner in self._records(Table.PAYLOADS, decode_owner):
            if place in self._reowned or place in self._referred(record):
                continue
            where = f"row of payload file {place.hex()}, owned by {owner.table.value} {owner.key.hex()}"
            self._found("row-without-owner", where, "remove the row", Remedy(drops=[(Table.PAYLOADS, place)]))

    def _check_inline_rows(self) -> None:
        for place, data in self._transaction.scan(Table.INLINE):
            self._report.counts[Table.INLINE.value] += 1
            if place not in self._inline:
                where = f"inline payload {place.hex()} of {len(data)} bytes"
                what = "write the payload to quarantine and remove it"
                self._found("row-without-owner", where, what, Remedy(drops=[(Table.INLINE, place)]))

    def _check_reclaim(self) -> None:
        for place, _, files in self._records(Table.RECLAIM, decode_payloads):
            self._report.counts["waiting_files"] += len(files)
            self._waiting.update((file.directory, file.id) for file in files)
            kept = [file for file in files if not self._is_owned(file)]
            if len(kept) < len(files) or not files or files[0].id != place:
                remedy = Remedy(drops=[(Table.RECLAIM, place)])
                if kept:
                    remedy.puts.append((Table.RECLAIM, kept[0].id, encode_payloads(kept)))
                what = "write the record to quarantine, and again without the files that are in use"
                self._found("reclaim-of-owned", f"reclaim row {place.hex()}", what, remedy)

    def _is_owned(self, file: FilePayload) -> bool:
        row = self._transaction.get(Table.PAYLOADS, file.id)
        return file.id in self._reowned or (row is not None and file.id in self._referred(row))

    def _check_files(self) -> None:
        for directory in self._payloads.directories:
            for file in self._payloads.files(directory):
                self._report.counts["files"] += 1
                place = (directory, file.id)
                if place in self._waiting or place in self._dropped_files or file.id in self._reowned:
                    continue
                row = self._transaction.get(Table.PAYLOADS, file.id)
                if row is None or self._referred(row).get(file.id) != directory:
                    remedy = Remedy(files=[place])
                    self._found(ORPHAN, f"{file.path}, {file.size} bytes", MOVE, remedy)

    # -- pieces --

    def _referred(self, row: bytes) -> dict[bytes, int]:
        """The payload files, with their directories, that the owner named by a PAYLOADS row refers to."""
        known = self._owners.get(row)
        if known is not None:
            return known
        payloads: list[Payload] = []
        try:
            owner = decode_owner(row)
            record = self._transaction.get(owner.table, owner.key)
            if record is not None and owner.table is Table.OBJECTS:
                payloads = version_payloads(decode_version(record))
            elif record is not None and owner.table is Table.PARTS:
                payloads = [decode_part(record).payload]
        except StoreUnusable:
            payloads = []  # reported where the record itself is read
        known = {payload.id: payload.directory for payload in file_payloads(payloads)}
        self._owners[row] = known
        if len(self._owners) > REMEMBERED_OWNERS:
            del self._owners[next(iter(self._owners))]
        return known

    def _homeless(self, where: str, remedy: Remedy) -> None:
        if self._buckets_known:
            self._found("record-without-bucket", where, DROP, remedy)
        else:
            self._found("record-without-bucket", where, "nothing: a bucket's record is damaged", Remedy())

    def _drop(
        self, kind: str, where: str, owner: PayloadOwner, payloads: list[Payload], but: Payload | None = None
    ) -> None:
        mine = [payload for payload in payloads if payload is not but]
        self._found(kind, where, DROP, self._removal(owner, mine))

    def _removal(self, owner: PayloadOwner, payloads: list[Payload]) -> Remedy:
        """Remove a record with the rows that are its own; its files go to quarantine."""
        remedy = Remedy(drops=[(owner.table, owner.key)])
        for payload in payloads:
            if isinstance(payload, InlinePayload):
                if self._transaction.get(Table.INLINE, payload.id) is not None:
                    self._inline.add(payload.id)
                    remedy.drops.append((Table.INLINE, payload.id))
                continue
            row = self._transaction.get(Table.PAYLOADS, payload.id)
            if row is not None and row != encode_owner(owner) and payload.id in self._referred(row):
                continue  # another record's
            if row is not None or payload.id in self._reowned:
                self._reowned.add(payload.id)
                remedy.drops.append((Table.PAYLOADS, payload.id))
            remedy.files.append((payload.directory, payload.id))
        return remedy
