"""What every object store does with multipart uploads, over memory and over LMDB with payload files."""

import asyncio
import os
from collections.abc import Sequence

import pytest

from s3verbs.storage.errors import (
    BucketNotFound,
    ConditionFailed,
    InvalidPart,
    ObjectNotFound,
    PartTooSmall,
    UploadNotFound,
)
from s3verbs.storage.metadata import Table
from s3verbs.storage.model import Checksum, CompletedPart, Durability, Part, Upload, Version, WriteCondition
from tests.storage_fixtures import StoreUnderTest, describe, read, store_fixture  # noqa: F401

KIB = 1 << 10
LEAST = 1 * KIB
LONG_KEY = "k" * 900


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s3verbs.storage.uploads.MIN_PART_SIZE", LEAST)


async def three_parts(store: StoreUnderTest, key: str = "key") -> tuple[Upload, list[Part], bytes]:
    """Two files and an inline tail."""
    upload = await store.create_upload(key)
    pieces = [os.urandom(20 * KIB), os.urandom(17 * KIB), os.urandom(100)]
    parts = [await store.put_part(upload, number, piece) for number, piece in enumerate(pieces, 1)]
    return upload, parts, b"".join(pieces)


@pytest.mark.parametrize("key", ["key", LONG_KEY])
async def test_a_completed_upload_is_its_parts_in_order(store: StoreUnderTest, key: str) -> None:
    upload, parts, data = await three_parts(store, key)
    version = await store.complete(upload, parts)
    await store.reopen()
    assert store.objects.lookup("bucket", key) == version
    assert (version.multipart, version.size, version.etag) == (True, len(data), describe(upload, parts)[0])
    assert version.parts == tuple(
        Part(part.number, type(part.payload)(part.payload.id, part.payload.length), part.etag, part.modified_ns)
        if part.number == 3
        else part
        for part in parts
    )
    assert await store.get(key) == data
    reader = await store.objects.open("bucket", key, version)
    for start, length in ((0, 1), (20 * KIB - 1, 2), (37 * KIB - 5, 50), (len(data) - 1, 10), (len(data), 1), (5, 0)):
        assert read(reader, start, length) == data[start : start + length]
    reader.close()
    assert store.objects.list_uploads("bucket").uploads == ()
    assert (store.rows(Table.PARTS), store.rows(Table.UPLOADS)) == ({}, {})


async def test_parts_may_have_gaps_and_unlisted_ones_go(store: StoreUnderTest) -> None:
    upload = await store.create_upload("key")
    parts = {number: await store.put_part(upload, number, store.file(b"%5d" % number * 300)) for number in (3, 7, 9000)}
    await store.put_part(upload, 8, b"inline")
    version = await store.complete(upload, [parts[3], parts[9000]])
    assert [part.number for part in version.parts] == [3, 9000]
    await store.objects.reclaim()
    assert store.files() == {parts[3].payload.id, parts[9000].payload.id}
    assert store.rows(Table.INLINE) == {}
    assert await store.get("key") == b"    3" * 300 + b" 9000" * 300


async def test_one_small_part_is_enough(store: StoreUnderTest) -> None:
    for data in (b"", b"small", os.urandom(20 * KIB)):
        upload = await store.create_upload("key")
        version = await store.complete(upload, [await store.put_part(upload, 1, data)])
        assert version.multipart
        assert await store.get("key") == data


async def test_completing_replaces_the_object_and_its_payloads(store: StoreUnderTest) -> None:
    upload, parts, _ = await three_parts(store)
    await store.complete(upload, parts)
    upload, parts, data = await three_parts(store)
    await store.complete(upload, parts)
    await store.objects.reclaim()
    assert await store.get("key") == data
    assert len(store.files()) == 2
    await store.put("key", b"plain")
    await store.objects.reclaim()
    assert store.files() == set()


async def test_an_upload_ends_once(store: StoreUnderTest) -> None:
    upload, parts, data = await three_parts(store)
    await store.complete(upload, parts)
    for late in (
        store.complete(upload, parts),
        store.objects.abort_upload("bucket", "key", upload.id),
        store.put_part(upload, 4, store.file(b"late")),
    ):
        with pytest.raises(UploadNotFound):
            await late
    for reading in (store.objects.upload, store.objects.parts):
        with pytest.raises(UploadNotFound):
            reading("bucket", "key", upload.id)
    await store.objects.reclaim()
    assert await store.get("key") == data
    assert len(store.files()) == 2


async def test_only_one_of_many_completions_wins(store: StoreUnderTest) -> None:
    upload, parts, data = await three_parts(store)
    outcomes = await asyncio.gather(
        *(store.complete(upload, parts) for _ in range(8)),
        *(store.objects.abort_upload("bucket", "key", upload.id) for _ in range(8)),
        return_exceptions=True,
    )
    assert isinstance(outcomes[0], Version)
    assert all(isinstance(outcome, UploadNotFound) for outcome in outcomes[1:])
    assert await store.get("key") == data


async def test_an_aborted_upload_leaves_nothing(store: StoreUnderTest) -> None:
    upload, parts, _ = await three_parts(store)
    await store.objects.abort_upload("bucket", "key", upload.id)
    with pytest.raises(UploadNotFound):
        await store.complete(upload, parts)
    await store.objects.reclaim()
    assert (store.files(), store.rows(Table.INLINE), store.rows(Table.PARTS)) == (set(), {}, {})


@pytest.mark.parametrize("upload_id", ["", "x", "0" * 31, "0" * 32, "G" * 32, "0" * 31 + "\n", "é" * 32])
async def test_an_id_that_was_never_given_is_no_upload(store: StoreUnderTest, upload_id: str) -> None:
    with pytest.raises(UploadNotFound):
        store.objects.upload("bucket", "key", upload_id)
    with pytest.raises(UploadNotFound):
        await store.objects.abort_upload("bucket", "key", upload_id)


async def test_an_upload_belongs_to_its_key_and_bucket(store: StoreUnderTest) -> None:
    upload, _, _ = await three_parts(store)
    await store.objects.create_bucket("other", owner="me")
    for bucket, key, error in (
        ("bucket", "other key", UploadNotFound),
        ("other", "key", UploadNotFound),
        ("none", "key", BucketNotFound),
    ):
        with pytest.raises(error):
            store.objects.parts(bucket, key, upload.id)
    payload = store.file(b"lost")
    with pytest.raises(UploadNotFound):
        await store.put_part(upload, 1, payload, bucket="other")
    await store.objects.reclaim()
    assert payload.id not in store.files()


async def test_a_part_replaces_the_one_of_its_number(store: StoreUnderTest) -> None:
    upload = await store.create_upload("key")
    await store.put_part(upload, 1, os.urandom(20 * KIB))
    await store.put_part(upload, 1, b"inline")
    await store.objects.reclaim()
    assert store.files() == set()
    last = await store.put_part(upload, 1, os.urandom(20 * KIB))
    assert store.objects.parts("bucket", "key", upload.id) == ([last], False)
    assert (store.files(), store.rows(Table.INLINE)) == ({last.payload.id}, {})


async def test_parts_come_in_pages(store: StoreUnderTest) -> None:
    upload = await store.create_upload("key")
    for number in (10_000, 1, 2, 300):
        await store.put_part(upload, number, b"x")

    def page(after: int, limit: int) -> tuple[list[int], bool]:
        parts, more = store.objects.parts("bucket", "key", upload.id, after=after, limit=limit)
        return [part.number for part in parts], more

    assert page(0, 1000) == ([1, 2, 300, 10_000], False)
    assert page(0, 2) == ([1, 2], True)
    assert page(2, 2) == ([300, 10_000], False)
    assert page(10_000, 2) == ([], False)
    assert page(0, 0) == ([], False)


# -- what complete refuses --


async def refused(store: StoreUnderTest, error: type[Exception], *args: object, **more: object) -> Exception:
    """Complete fails and changes nothing: not the object, not the upload."""
    upload, listed = args
    assert isinstance(upload, Upload)
    assert isinstance(listed, Sequence)
    before = {table: store.rows(table) for table in Table}
    more.setdefault("describe", describe)
    with pytest.raises(error) as caught:
        await store.objects.complete_upload("bucket", upload.key, upload.id, listed, **more)  # type: ignore[arg-type]
    assert {table: store.rows(table) for table in Table} == before
    return caught.value


def listed(parts: Sequence[Part]) -> list[CompletedPart]:
    return [CompletedPart(part.number, part.etag) for part in parts]


async def test_parts_that_were_not_uploaded_are_refused(store: StoreUnderTest) -> None:
    upload, parts, _ = await three_parts(store)
    lines = listed(parts)
    for wrong, number in (
        ([*lines, CompletedPart(4, "0" * 32)], 4),
        ([lines[0], CompletedPart(2, lines[0].etag)], 2),
        ([lines[1], lines[0]], 1),
        ([lines[0], lines[0]], 1),
        ([CompletedPart(0, "")], 0),
        ([CompletedPart(70_000, "")], 70_000),
        ([], 0),
    ):
        error = await refused(store, InvalidPart, upload, wrong)
        assert isinstance(error, InvalidPart)
        assert error.number == number
    quoted = [CompletedPart(line.number, f'"{line.etag}"') for line in lines]
    await store.objects.complete_upload("bucket", "key", upload.id, quoted, describe=describe)


async def test_a_small_part_may_only_be_the_last(store: StoreUnderTest) -> None:
    upload = await store.create_upload("key")
    parts = [
        await store.put_part(upload, 1, bytes(LEAST)),
        await store.put_part(upload, 2, bytes(LEAST - 1)),
        await store.put_part(upload, 3, b""),
    ]
    error = await refused(store, PartTooSmall, upload, listed(parts))
    assert isinstance(error, PartTooSmall)
    assert (error.number, error.size, error.etag) == (2, LEAST - 1, parts[1].etag)
    await store.complete(upload, parts[:2])


async def test_a_part_checksum_must_be_the_one_stored(store: StoreUnderTest) -> None:
    upload = await store.create_upload("key")
    stored = Checksum("CRC32", "FULL_OBJECT", "AAAAAA==")
    part = Part(1, store.file(b"x"), "0" * 32, store.clock(), stored)
    await store.objects.put_part("bucket", "key", upload.id, part)
    for given in (Checksum("CRC32", "FULL_OBJECT", "BBBBBB=="), Checksum("CRC32C", "FULL_OBJECT", "AAAAAA==")):
        await refused(store, InvalidPart, upload, [CompletedPart(1, part.etag, given)])
    version = await store.complete(upload, [part])
    assert version.parts[0].checksum == stored


async def test_conditions_hold_for_completion_too(store: StoreUnderTest) -> None:
    upload, parts, data = await three_parts(store)
    await refused(store, ObjectNotFound, upload, listed(parts), condition=WriteCondition(if_match="*"))
    await store.put("key", b"there", etag="one")
    await refused(store, ConditionFailed, upload, listed(parts), condition=WriteCondition(if_none_match="*"))
    await refused(store, ConditionFailed, upload, listed(parts), condition=WriteCondition(if_match="two"))
    await store.complete(upload, parts, condition=WriteCondition(if_match="one"))
    assert await store.get("key") == data


async def test_what_describe_raises_changes_nothing(store: StoreUnderTest) -> None:
    class WrongDigestError(Exception):
        pass

    def raises(_upload: Upload, _parts: Sequence[Part]) -> tuple[str, Checksum | None]:
        raise WrongDigestError

    upload, parts, _ = await three_parts(store)
    await refused(store, WrongDigestError, upload, listed(parts), describe=raises)
    whole = Checksum("CRC64NVME", "FULL_OBJECT", "AAAAAAAAAAA=")
    version = await store.complete(upload, parts, describe=lambda _upload, given: (f"tag-{len(given)}", whole))
    assert (version.etag, version.checksum) == ("tag-3", whole)


# -- readers and reclaim --


async def test_a_reader_of_many_files_reads_on_while_it_is_deleted(store: StoreUnderTest) -> None:
    upload, parts, data = await three_parts(store)
    version = await store.complete(upload, parts)
    reader = await store.objects.open("bucket", "key", version)
    assert read(reader, 0, 10) == data[:10]
    await store.objects.delete("bucket", "key")
    assert await store.objects.reclaim() == 0
    assert len(store.files()) == 2
    assert read(reader) == data
    with pytest.raises(ObjectNotFound):
        await store.objects.open("bucket", "key", version)
    reader.close()
    async with asyncio.timeout(20):
        while store.files() or store.rows(Table.RECLAIM):
            await asyncio.sleep(0.01)


async def test_a_reader_of_very_many_parts_keeps_few_files_open(store: StoreUnderTest) -> None:
    upload = await store.create_upload("key")
    pieces = [b"%4d" % number * 300 for number in range(40)]
    parts = [await store.put_part(upload, number + 1, store.file(piece)) for number, piece in enumerate(pieces)]
    reader = await store.objects.open("bucket", "key", await store.complete(upload, parts))
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    most = 0
    got = b""
    for segment in reader.segments(0, 1 << 20):
        got += os.pread(segment.fd, segment.length, segment.offset)
        most = max(most, len(os.listdir("/proc/self/fd")) - before)  # noqa: PTH208
    assert got == b"".join(pieces)
    assert most <= 5
    reader.close()


async def test_the_last_segments_stay_readable(store: StoreUnderTest) -> None:
    upload = await store.create_upload("key")
    pieces = [b"%4d" % number * 300 for number in range(12)]
    parts = [await store.put_part(upload, number + 1, store.file(piece)) for number, piece in enumerate(pieces)]
    reader = await store.objects.open("bucket", "key", await store.complete(upload, parts))
    taken = []
    for segment in reader.segments(0, 1 << 20):
        taken.append(segment)
        for earlier, number in zip(taken[-3:], range(max(0, len(taken) - 3), len(taken)), strict=True):
            assert os.pread(earlier.fd, earlier.length, earlier.offset) == pieces[number]
    reader.close()


async def test_a_relaxed_upload_that_outlived_a_kernel_is_verified(store: StoreUnderTest) -> None:
    await store.objects.update_bucket("bucket", durability=Durability.RELAXED)
    await store.put("mark", store.file(b"x" * 100, durable=False))
    upload = await store.create_upload("key")
    parts = [await store.put_part(upload, number, store.file(bytes(2 * KIB), durable=False)) for number in (1, 2)]
    store.damage(parts[0].payload, b"\1" * 2 * KIB)
    await store.die(boot_id=b"another boot")
    version = await store.complete(upload, parts)
    with pytest.raises(ObjectNotFound):
        await store.objects.open("bucket", "key", version)
    assert store.objects.damaged_relaxed == 1


async def test_many_readers_and_writers_of_one_key_see_whole_objects(store: StoreUnderTest) -> None:
    contents = {bytes([number]) * 40_000 for number in range(12)}
    await store.put("key", min(contents))
    seen = set()

    async def write(data: bytes) -> None:
        for turn in range(4):
            if turn % 2:
                await store.put("key", data)
                continue
            upload = await store.create_upload("key")
            pieces = (data[:20_000], data[20_000:39_000], data[39_000:])
            await store.complete(
                upload, [await store.put_part(upload, number, piece) for number, piece in enumerate(pieces, 1)]
            )

    async def look() -> None:
        # However slow the writers are here, the readers outlast them.
        while not writers.done():
            reader = await store.objects.open("bucket", "key", store.objects.lookup("bucket", "key"))
            await asyncio.sleep(0.002)
            found = read(reader)
            reader.close()
            assert found in contents
            seen.add(found)

    writers = asyncio.gather(*(write(data) for data in contents))
    await asyncio.gather(writers, *(look() for _ in range(8)))
    assert len(seen) > 1
    await store.objects.reclaim()
    assert len(store.files()) <= 2


# -- listing and upkeep --


async def test_uploads_are_listed_by_key_then_by_initiation(store: StoreUnderTest) -> None:
    made = [await store.create_upload(key) for key in ("b", "a", LONG_KEY, "b", "a/x", "b", LONG_KEY + "0")]
    listing = store.objects.list_uploads("bucket")
    assert list(listing.uploads) == sorted(made, key=lambda upload: (upload.key, upload.initiated_ns))
    first = store.objects.list_uploads("bucket", limit=3)
    assert (first.next_key_marker, first.next_upload_id_marker) == ("b", made[0].id)
    rest = store.objects.list_uploads("bucket", key_marker="b", upload_id_marker=made[0].id)
    assert first.uploads + rest.uploads == listing.uploads
    assert [upload.key for upload in store.objects.list_uploads("bucket", key_marker="b").uploads] == [
        LONG_KEY,
        LONG_KEY + "0",
    ]
    folders = store.objects.list_uploads("bucket", delimiter="/")
    assert folders.common_prefixes == ("a/",)
    assert store.objects.upload("bucket", "a", made[1].id) == made[1]


async def test_stale_uploads_are_aborted(store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s3verbs.storage.uploads.STALE_BATCH", 2)
    await store.objects.create_bucket("other", owner="me")
    for key in ("a", "b", LONG_KEY):
        upload = await store.create_upload(key)
        await store.put_part(upload, 1, os.urandom(20 * KIB))
    await store.create_upload("a", bucket="other")
    store.clock.now_ns += 1_000_000_000
    young = await store.create_upload("b")
    assert await store.objects.abort_stale_uploads(1_000_000_000) == 4
    assert store.objects.list_uploads("bucket").uploads == (young,)
    await store.objects.reclaim()
    assert store.files() == set()
    assert await store.objects.abort_stale_uploads(1_000_000_000) == 0
