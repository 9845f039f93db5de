"""The consistency check finds each kind of damage, and its repair sets aside what is damaged without deleting it."""

import base64
import json
import os
from collections.abc import Awaitable, Callable

import pytest

from s3verbs.storage import keys
from s3verbs.storage.metadata import Table, WriteTransaction
from s3verbs.storage.model import FilePayload
from s3verbs.storage.publishing import find_version
from s3verbs.storage.records import PayloadOwner, encode_owner, encode_payloads, encode_version
from tests.storage_fixtures import StoreUnderTest, store_fixture  # noqa: F401

FILE = os.urandom(20_000)


async def filled(store: StoreUnderTest) -> None:
    await store.put("file", FILE)
    await store.put("inline", b"small")
    await store.put("k" * 700, b"long key")
    upload = await store.create_upload("file")
    await store.put_part(upload, 1, FILE)
    await store.put_part(upload, 2, b"tail")


def bucket_id(store: StoreUnderTest) -> bytes:
    return store.objects.bucket("bucket").id


def place(store: StoreUnderTest, key: str) -> bytes:
    return keys.object_key(bucket_id(store), key)


def payload(store: StoreUnderTest, key: str) -> FilePayload:
    found = store.objects.lookup("bucket", key).parts[0].payload
    assert isinstance(found, FilePayload)
    return found


def change(store: StoreUnderTest, work: Callable[[WriteTransaction], object]) -> None:
    store.metadata.write_now(work)


def upload_id(store: StoreUnderTest) -> bytes:
    return bytes.fromhex(store.objects.list_uploads("bucket").uploads[0].id)


# -- ways to damage a store: what the check must find, and the keys that are left after repair --


async def missing_file(store: StoreUnderTest) -> None:
    store.damage(payload(store, "file"), None)


async def short_file(store: StoreUnderTest) -> None:
    store.damage(payload(store, "file"), b"short")


async def flipped_bit(store: StoreUnderTest) -> None:
    store.damage(payload(store, "file"), bytes([FILE[0] ^ 1]) + FILE[1:])


async def missing_inline_row(store: StoreUnderTest) -> None:
    inline = store.objects.lookup("bucket", "inline").parts[0].payload.id
    change(store, lambda transaction: transaction.delete(Table.INLINE, inline))


async def short_inline_row(store: StoreUnderTest) -> None:
    inline = store.objects.lookup("bucket", "inline").parts[0].payload.id
    change(store, lambda transaction: transaction.put(Table.INLINE, inline, b"sm"))


async def inline_row_of_nobody(store: StoreUnderTest) -> None:
    change(store, lambda transaction: transaction.put(Table.INLINE, bytes(16), b"nobody's"))


async def file_of_nobody(store: StoreUnderTest) -> None:
    store.file(b"nobody's")


async def payload_row_of_nobody(store: StoreUnderTest) -> None:
    owner = encode_owner(PayloadOwner(Table.OBJECTS, place(store, "inline")))
    change(store, lambda transaction: transaction.put(Table.PAYLOADS, bytes(16), owner))


async def no_payload_row(store: StoreUnderTest) -> None:
    change(store, lambda transaction: transaction.delete(Table.PAYLOADS, payload(store, "file").id))


async def payload_row_of_another(store: StoreUnderTest) -> None:
    owner = encode_owner(PayloadOwner(Table.OBJECTS, place(store, "inline")))
    change(store, lambda transaction: transaction.put(Table.PAYLOADS, payload(store, "file").id, owner))


async def undecodable_version(store: StoreUnderTest) -> None:
    change(store, lambda transaction: transaction.put(Table.OBJECTS, place(store, "file"), b"\x01rubbish"))


async def version_under_another_key(store: StoreUnderTest) -> None:
    def move(transaction: WriteTransaction) -> None:
        record = transaction.get(Table.OBJECTS, place(store, "file"))
        assert record is not None
        transaction.delete(Table.OBJECTS, place(store, "file"))
        transaction.put(Table.OBJECTS, place(store, "elsewhere"), record)

    change(store, move)


async def version_copied(store: StoreUnderTest) -> None:
    def copy(transaction: WriteTransaction) -> None:
        version = find_version(transaction, bucket_id(store), "file")
        assert version is not None
        copied = type(version)(**{name: getattr(version, name) for name in version.__slots__} | {"key": "copy"})
        transaction.put(Table.OBJECTS, place(store, "copy"), encode_version(copied))

    change(store, copy)


async def object_of_no_bucket(store: StoreUnderTest) -> None:
    await store.objects.create_bucket("gone", owner="me")
    await store.put("file", FILE, bucket="gone")
    await store.create_upload("key", bucket="gone")
    change(store, lambda transaction: transaction.delete(Table.BUCKETS, b"gone"))


async def part_of_no_upload(store: StoreUnderTest) -> None:
    at = keys.upload_key(bucket_id(store), "file", upload_id(store))
    change(store, lambda transaction: transaction.delete(Table.UPLOADS, at))


async def part_without_file(store: StoreUnderTest) -> None:
    parts, _ = store.objects.parts("bucket", "file", upload_id(store).hex())
    store.damage(parts[0].payload, None)


async def reclaim_of_a_file_in_use(store: StoreUnderTest) -> None:
    files = [payload(store, "file")]
    change(store, lambda transaction: transaction.put(Table.RECLAIM, files[0].id, encode_payloads(files)))


ALL = {"file", "inline", "k" * 700}
DAMAGES: list[tuple[Callable[[StoreUnderTest], Awaitable[None]], set[str], set[str]]] = [
    (missing_file, {"missing-payload"}, ALL - {"file"}),
    (short_file, {"damaged-payload"}, ALL - {"file"}),
    (flipped_bit, {"damaged-payload"}, ALL - {"file"}),
    (missing_inline_row, {"missing-payload"}, ALL - {"inline"}),
    (short_inline_row, {"damaged-payload"}, ALL - {"inline"}),
    (inline_row_of_nobody, {"row-without-owner"}, ALL),
    (file_of_nobody, {"orphan-file"}, ALL),
    (payload_row_of_nobody, {"row-without-owner"}, ALL),
    (no_payload_row, {"wrong-payload-row"}, ALL),
    (payload_row_of_another, {"wrong-payload-row"}, ALL),
    (undecodable_version, {"undecodable-record", "row-without-owner", "orphan-file"}, ALL - {"file"}),
    (version_under_another_key, {"misplaced-record"}, ALL - {"file"}),
    (version_copied, {"shared-payload"}, ALL),
    (object_of_no_bucket, {"record-without-bucket"}, ALL),
    (part_of_no_upload, {"part-without-upload"}, ALL),
    (part_without_file, {"missing-payload"}, ALL),
    (reclaim_of_a_file_in_use, {"reclaim-of-owned"}, ALL),
]


async def test_a_sound_store_has_no_findings(store: StoreUnderTest) -> None:
    await filled(store)
    report = store.check()
    assert report.clean
    counted = {"buckets": 1, "objects": 3, "uploads": 1, "parts": 2, "files": 2, "inline": 3, "verified_files": 2}
    assert {name: report.counts[name] for name in counted} == counted
    assert report.counts["payload_bytes"] == 2 * len(FILE) + len(b"small" + b"long key" + b"tail")


@pytest.mark.parametrize(("damage", "kinds", "left"), DAMAGES, ids=[damage.__name__ for damage, _, _ in DAMAGES])
async def test_damage_is_found_and_set_aside(
    store: StoreUnderTest,
    damage: Callable[[StoreUnderTest], Awaitable[None]],
    kinds: set[str],
    left: set[str],
) -> None:
    await filled(store)
    await damage(store)
    before = {table: store.rows(table) for table in Table}
    files = store.files()
    report = store.check()
    assert {finding.kind for finding in report.findings} == kinds
    assert {table: store.rows(table) for table in Table} == before, "a check changes nothing"
    repaired = store.check(repair=True)
    assert repaired.findings == report.findings
    assert repaired.repaired
    assert store.check().findings == []
    assert {version.key for version in store.objects.list_objects("bucket").versions} == left
    if "file" in left:
        assert await store.get("file") == FILE
    assert set_aside(store) == files - store.files(), "no file is deleted"
    dropped = {(table, key) for table in Table for key in before[table].keys() - store.rows(table).keys()}
    written = {}
    if repaired.records is not None:
        for line in repaired.records.read_text().splitlines():
            record = json.loads(line)
            written[Table(record["table"]), bytes.fromhex(record["key"])] = base64.b64decode(record["value"])
    for table, key in dropped:
        assert written[table, key] == before[table][key], "no record is lost"


def set_aside(store: StoreUnderTest) -> set[bytes]:
    found = {payload_id for _, payload_id in getattr(getattr(store, "disk", None), "quarantine", {})}
    for path in store.payloads.directories.values():
        if path.is_dir():
            found |= {bytes.fromhex(file.name) for file in (path / "quarantine").iterdir() if len(file.name) == 32}
    return found


async def test_without_reading_payloads_lengths_are_compared(store: StoreUnderTest) -> None:
    await filled(store)
    await flipped_bit(store)
    assert store.check(read_payloads=False).clean
    await short_file(store)
    assert [finding.kind for finding in store.check(read_payloads=False).findings] == ["damaged-payload"]
    store.check(repair=True)


async def test_a_damaged_bucket_record_costs_no_object(store: StoreUnderTest) -> None:
    await filled(store)
    record = store.rows(Table.BUCKETS)[b"bucket"]
    change(store, lambda transaction: transaction.put(Table.BUCKETS, b"bucket", b"\x01"))
    report = store.check(repair=True)
    assert {finding.kind for finding in report.findings} == {"undecodable-record", "record-without-bucket"}
    assert all(finding.remedy.startswith("nothing") for finding in report.findings)
    change(store, lambda transaction: transaction.put(Table.BUCKETS, b"bucket", record))
    assert store.check().clean
    assert await store.get("file") == FILE


async def test_what_waits_for_reclaim_is_no_finding(store: StoreUnderTest) -> None:
    await filled(store)
    reader = await store.objects.open("bucket", "file", store.objects.lookup("bucket", "file"))
    files = [payload(store, "file")]
    await store.objects.delete("bucket", "file")
    report = store.check()
    assert (report.clean, report.counts["waiting_files"]) == (True, 1)
    reader.close()
    await store.objects.reclaim()
    change(store, lambda transaction: transaction.put(Table.RECLAIM, files[0].id, encode_payloads(files)))
    assert store.check().clean
    await store.objects.reclaim()
