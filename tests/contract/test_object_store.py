"""What every object store does with buckets and objects, over memory and over LMDB with payload files."""

import asyncio
import os

import pytest

from s3verbs.storage.errors import (
    BucketExists,
    BucketNotEmpty,
    BucketNotFound,
    ConditionFailed,
    ObjectNotFound,
    PayloadDamaged,
)
from s3verbs.storage.metadata import Table
from s3verbs.storage.model import Attributes, Checksum, Durability, Payload, WriteCondition
from tests.storage_fixtures import StoreUnderTest, read, store_fixture  # noqa: F401

KIB, MIB = 1 << 10, 1 << 20
KEYS = [
    "a",
    "a/",
    "a/b",
    "//x//",
    "k" * 450,
    "k" * 451,
    "k" * 1024,
    "字" * 300,
    "nul\x00",
    "\x7f\U0010ffff",
    "..",
    "@=+ %2F",
]


# -- buckets --


async def test_a_bucket_is_found_listed_and_deleted(store: StoreUnderTest) -> None:
    made = await store.objects.create_bucket("other", owner="me", durability=Durability.RELAXED, region="here")
    assert store.objects.bucket("other") == made
    assert store.objects.buckets() == ([store.objects.bucket("bucket"), made], False)
    assert store.objects.buckets(limit=1) == ([store.objects.bucket("bucket")], True)
    await store.objects.delete_bucket("other")
    with pytest.raises(BucketNotFound):
        store.objects.bucket("other")


async def test_a_bucket_is_made_once(store: StoreUnderTest) -> None:
    with pytest.raises(BucketExists):
        await store.objects.create_bucket("bucket", owner="another")
    assert store.objects.bucket("bucket").owner == "tester"


async def test_a_bucket_made_again_is_not_the_one_that_was_decided_about(store: StoreUnderTest) -> None:
    """Another process deletes the bucket, and another account takes its name, while a request is under way."""
    before = store.objects.bucket("bucket")
    await store.objects.delete_bucket("bucket")
    await store.objects.create_bucket("bucket", owner="another")
    await store.put("theirs", b"x")
    for size in (100, 20 * KIB):
        with pytest.raises(BucketNotFound):
            await store.put("key", bytes(size), bucket=before)
    with pytest.raises(BucketNotFound):
        await store.objects.delete(before, "theirs")
    with pytest.raises(BucketNotFound):
        await store.objects.delete_many(before, ["theirs"])
    with pytest.raises(BucketNotFound):
        await store.objects.delete_bucket(before)
    with pytest.raises(BucketNotFound):
        await store.create_upload("key", bucket=before)
    await store.objects.close()
    assert store.files() == set()
    assert [version.key for version in store.objects.list_objects("bucket").versions] == ["theirs"]


async def test_a_bucket_with_objects_is_not_deleted(store: StoreUnderTest) -> None:
    await store.put("key", b"x")
    with pytest.raises(BucketNotEmpty):
        await store.objects.delete_bucket("bucket")
    assert await store.get("key") == b"x"


async def test_a_bucket_made_again_holds_nothing(store: StoreUnderTest) -> None:
    upload = await store.create_upload("key")
    await store.put_part(upload, 1, os.urandom(20 * KIB))
    await store.objects.delete_bucket("bucket")
    await store.objects.create_bucket("bucket", owner="tester")
    assert store.objects.list_uploads("bucket").uploads == ()
    await store.objects.reclaim()
    assert store.files() == set()
    assert store.rows(Table.PARTS) == {}


async def test_a_bucket_with_very_many_parts_is_deleted_in_steps(
    store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s3verbs.storage.buckets.ABORTED_ROWS", 3)
    for key in ("a", "b", "k" * 600):
        upload = await store.create_upload(key)
        for number in range(1, 4):
            await store.put_part(upload, number, store.file(b"part"))
    await store.objects.delete_bucket("bucket")
    await store.objects.reclaim()
    assert (store.files(), store.rows(Table.UPLOADS), store.rows(Table.PARTS)) == (set(), {}, {})


async def test_durability_can_be_changed(store: StoreUnderTest) -> None:
    bucket = await store.objects.update_bucket("bucket", durability=Durability.RELAXED)
    assert store.objects.bucket("bucket") == bucket
    assert bucket.durability is Durability.RELAXED
    with pytest.raises(BucketNotFound):
        await store.objects.update_bucket("none", durability=Durability.STRICT)


async def test_every_method_knows_a_missing_bucket(store: StoreUnderTest) -> None:
    objects = store.objects
    upload = await store.create_upload("key")
    payload = store.file(b"lost")
    calls = [
        store.put("key", payload, bucket="none"),
        objects.delete("none", "key"),
        objects.delete_many("none", ["key"]),
        objects.delete_bucket("none"),
        store.create_upload("key", bucket="none"),
        objects.abort_upload("none", "key", upload.id),
        store.complete(upload, [], bucket="none"),
    ]
    for call in calls:
        with pytest.raises(BucketNotFound):
            await call
    for reading in (
        lambda: objects.lookup("none", "key"),
        lambda: objects.list_objects("none"),
        lambda: objects.list_uploads("none"),
        lambda: objects.upload("none", "key", upload.id),
        lambda: objects.parts("none", "key", upload.id),
    ):
        with pytest.raises(BucketNotFound):
            reading()


# -- put and get --


@pytest.mark.parametrize("size", [0, 1, 16 * KIB, 16 * KIB + 1, MIB, 3 * MIB + 7])
async def test_what_is_published_is_read_after_a_restart(store: StoreUnderTest, size: int) -> None:
    data = os.urandom(size)
    attributes = Attributes({"content-type": "text/x"}, {"a": "b"}, {"tag": "value"})
    checksum = Checksum("CRC32", "FULL_OBJECT", "AAAAAA==")
    made = await store.put("key", data, attributes=attributes, checksum=checksum)
    assert store.objects.lookup("bucket", "key") == made
    assert (made.size, made.attributes, made.checksum, made.multipart) == (size, attributes, checksum, False)
    await store.reopen()
    assert store.objects.lookup("bucket", "key") == made
    assert await store.get("key") == data
    reader = await store.objects.open("bucket", "key", made)
    assert read(reader, size // 2, 10) == data[size // 2 : size // 2 + 10]
    assert read(reader, size, 10) == b""
    reader.close()
    reader.close()


async def test_any_key_keeps_its_own_object(store: StoreUnderTest) -> None:
    for key in KEYS:
        await store.put(key, key.encode())
    for key in KEYS:
        assert await store.get(key) == key.encode()
    assert [version.key for version in store.objects.list_objects("bucket").versions] == sorted(KEYS, key=str.encode)


@pytest.mark.parametrize("old", [b"inline", b"f" * (20 * KIB)])
@pytest.mark.parametrize("new", [b"inline two", b"g" * (21 * KIB)])
async def test_a_replaced_payload_goes(store: StoreUnderTest, old: bytes, new: bytes) -> None:
    await store.put("key", old)
    await store.put("key", new)
    assert await store.get("key") == new
    await store.objects.reclaim()
    large = len(new) > 16 * KIB
    assert (len(store.files()), len(store.rows(Table.INLINE))) == ((1, 0) if large else (0, 1))


async def test_a_replaced_payload_goes_without_being_asked(store: StoreUnderTest) -> None:
    await store.put("key", os.urandom(20 * KIB))
    await store.put("key", os.urandom(20 * KIB))
    async with asyncio.timeout(20):
        while len(store.files()) > 1 or store.rows(Table.RECLAIM):
            await asyncio.sleep(0.01)


async def test_an_inline_payload_has_a_limit(store: StoreUnderTest) -> None:
    with pytest.raises(ValueError, match="16384"):
        store.objects.inline_payload(bytes(16 * KIB + 1))


async def test_a_payload_that_nobody_publishes_can_be_given_back(store: StoreUnderTest) -> None:
    payload = store.file(b"abc")
    kept = store.file(b"def")
    await store.put("key", kept)
    assert await store.objects.reclaim([payload, kept]) == 1
    assert store.files() == {kept.id}


# -- conditions --


@pytest.mark.parametrize(
    ("there", "condition", "error"),
    [
        (True, WriteCondition(if_none_match="*"), ConditionFailed),
        (True, WriteCondition(if_none_match="old"), ConditionFailed),
        (True, WriteCondition(if_none_match="else"), None),
        (True, WriteCondition(if_match="*"), None),
        (True, WriteCondition(if_match="old"), None),
        (True, WriteCondition(if_match="else"), ConditionFailed),
        (True, WriteCondition(if_match="old", if_none_match="*"), ConditionFailed),
        (False, WriteCondition(if_none_match="*"), None),
        (False, WriteCondition(if_none_match="old"), None),
        (False, WriteCondition(if_match="*"), ObjectNotFound),
        (False, WriteCondition(if_match="old"), ObjectNotFound),
    ],
)
async def test_a_conditional_write_is_done_or_changes_nothing(
    store: StoreUnderTest, there: bool, condition: WriteCondition, error: type[Exception] | None
) -> None:
    if there:
        await store.put("key", b"before", etag="old")
    payload = store.file(b"after")
    if error is None:
        await store.put("key", payload, condition=condition)
        assert await store.get("key") == b"after"
        return
    with pytest.raises(error):
        await store.put("key", payload, condition=condition)
    if there:
        assert await store.get("key") == b"before"
    else:
        with pytest.raises(ObjectNotFound):
            store.objects.lookup("bucket", "key")
    await store.objects.reclaim()
    assert store.files() == set()


async def test_of_64_writers_that_must_be_first_one_is(store: StoreUnderTest) -> None:
    payloads: list[Payload] = [store.file(b"%d" % number) for number in range(64)]
    outcomes = await asyncio.gather(
        *(store.put("key", payload, condition=WriteCondition(if_none_match="*")) for payload in payloads),
        return_exceptions=True,
    )
    won = [number for number, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)]
    assert len(won) == 1
    assert all(isinstance(outcome, ConditionFailed) for n, outcome in enumerate(outcomes) if n not in won)
    assert await store.get("key") == b"%d" % won[0]
    await store.objects.reclaim()
    assert store.files() == {payloads[won[0]].id}


async def test_of_64_writers_that_must_replace_the_same_object_one_does(store: StoreUnderTest) -> None:
    await store.put("key", b"before", etag="old")
    outcomes = await asyncio.gather(
        *(store.put("key", b"%d" % n, etag=f"new {n}", condition=WriteCondition(if_match="old")) for n in range(64)),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, ConditionFailed) for outcome in outcomes) == 63


# -- a caller that goes away --


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("condition", [None, WriteCondition(if_match="never")])
async def test_a_cancelled_publish_leaves_its_object_or_nothing(
    store: StoreUnderTest, turns: int, condition: WriteCondition | None
) -> None:
    await store.put("key", b"before", etag="old")
    payload = store.file(b"after")
    writing = asyncio.create_task(store.put("key", payload, condition=condition))
    await asyncio.sleep(0)
    for _ in range(turns):
        await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises((asyncio.CancelledError, ConditionFailed)):
        await writing
    await store.reopen()
    assert await store.get("key") == (b"after" if condition is None else b"before")
    await store.objects.reclaim()
    assert store.files() == ({payload.id} if condition is None else set())


# -- delete --


async def test_delete_says_whether_there_was_an_object(store: StoreUnderTest) -> None:
    await store.put("key", os.urandom(20 * KIB))
    assert await store.objects.delete("bucket", "key")
    assert not await store.objects.delete("bucket", "key")
    with pytest.raises(ObjectNotFound):
        store.objects.lookup("bucket", "key")
    await store.objects.reclaim()
    assert (store.files(), store.rows(Table.PAYLOADS)) == (set(), {})


async def test_a_conditional_delete_spares_another_object(store: StoreUnderTest) -> None:
    await store.put("key", b"x", etag="one")
    with pytest.raises(ConditionFailed):
        await store.objects.delete("bucket", "key", WriteCondition(if_match="two"))
    assert await store.objects.delete("bucket", "key", WriteCondition(if_match="one"))
    assert not await store.objects.delete("bucket", "key", WriteCondition(if_match="one"))


async def test_a_thousand_keys_are_deleted_in_one_commit(store: StoreUnderTest) -> None:
    names = [f"key {number}" for number in range(1000)]
    await asyncio.gather(*(store.put(name, b"x", etag="one") for name in names))
    conditions = [None, WriteCondition(if_match="two"), WriteCondition(if_match="one")]
    outcomes = await store.objects.delete_many("bucket", [*names, "absent", names[0]], conditions)
    assert isinstance(outcomes[1], ConditionFailed)
    assert outcomes[:1] + outcomes[2:] == [None] * 1001
    assert [version.key for version in store.objects.list_objects("bucket").versions] == ["key 1"]
    assert len(store.rows(Table.INLINE)) == 1


# -- open --


@pytest.mark.parametrize("size", [100, 20 * KIB])
async def test_open_gives_the_object_that_replaced_the_one_looked_up(store: StoreUnderTest, size: int) -> None:
    await store.put("key", bytes(size))
    version = store.objects.lookup("bucket", "key")
    newer = await store.put("key", b"1" * size)
    await store.objects.reclaim()
    reader = await store.objects.open("bucket", "key", version)
    assert reader.version == newer
    assert read(reader) == b"1" * size
    reader.close()


@pytest.mark.parametrize("size", [100, 20 * KIB])
async def test_open_of_an_object_deleted_since_lookup_finds_none(store: StoreUnderTest, size: int) -> None:
    version = await store.put("key", bytes(size))
    await store.objects.delete("bucket", "key")
    await store.objects.reclaim()
    with pytest.raises(ObjectNotFound):
        await store.objects.open("bucket", "key", version)


async def test_a_reader_of_one_file_reads_on_when_it_is_deleted(store: StoreUnderTest) -> None:
    data = os.urandom(2 * MIB)
    reader = await store.objects.open("bucket", "key", await store.put("key", data))
    await store.objects.delete("bucket", "key")
    await store.objects.reclaim()
    assert store.files() == set()
    assert read(reader) == data
    reader.close()


async def test_a_strict_object_without_its_bytes_is_damaged(store: StoreUnderTest) -> None:
    version = await store.put("key", os.urandom(20 * KIB))
    payload = version.parts[0].payload
    store.damage(payload, b"short")
    with pytest.raises(PayloadDamaged):
        await store.objects.open("bucket", "key", version)
    store.damage(payload, None)
    with pytest.raises(PayloadDamaged):
        await store.objects.open("bucket", "key", version)
    assert store.objects.lookup("bucket", "key") == version
    assert [finding.kind for finding in store.check().findings] == ["missing-payload"]
    assert store.check(repair=True).repaired


# -- relaxed objects --


async def relaxed(store: StoreUnderTest) -> None:
    await store.objects.update_bucket("bucket", durability=Durability.RELAXED)


async def test_a_relaxed_object_is_verified_once_after_the_kernel_died(store: StoreUnderTest) -> None:
    await relaxed(store)
    data = os.urandom(20 * KIB)
    await store.put("file", store.file(data, durable=False))
    await store.put("inline", b"small")
    assert store.objects.lookup("bucket", "file").epoch == 1
    assert store.objects.lookup("bucket", "inline").epoch == 0
    await store.die(boot_id=b"another boot")
    assert await store.get("file") == data
    assert await store.get("inline") == b"small"
    store.damage(store.objects.lookup("bucket", "file").parts[0].payload, bytes(20 * KIB))
    assert await store.get("file") == bytes(20 * KIB), "verified before the first read only"
    await store.objects.delete("bucket", "file")


@pytest.mark.parametrize("left", [bytes(20 * KIB), b"short", b"", None])
async def test_a_relaxed_object_that_the_kernel_took_along_is_absent(store: StoreUnderTest, left: bytes | None) -> None:
    await relaxed(store)
    version = await store.put("key", store.file(os.urandom(20 * KIB), durable=False))
    store.damage(version.parts[0].payload, left)
    await store.die(boot_id=b"another boot")
    with pytest.raises(ObjectNotFound):
        await store.get("key")
    assert store.objects.damaged_relaxed == 1
    assert store.objects.list_objects("bucket").versions == ()
    await store.put("key", b"again")
    assert await store.get("key") == b"again"


async def test_only_a_kernel_that_died_ends_an_epoch(store: StoreUnderTest) -> None:
    await relaxed(store)
    await store.put("key", store.file(bytes(20 * KIB), durable=False))
    await store.die(boot_id=b"boot")
    await store.put("after a killed process", store.file(bytes(20 * KIB), durable=False))
    assert store.objects.lookup("bucket", "after a killed process").epoch == 1
    await store.reopen(boot_id=b"another boot")
    await store.put("after a clean stop", store.file(bytes(20 * KIB), durable=False))
    assert store.objects.lookup("bucket", "after a clean stop").epoch == 1
    await store.die(boot_id=b"a third boot")
    await store.put("after a death", store.file(bytes(20 * KIB), durable=False))
    assert store.objects.lookup("bucket", "after a death").epoch == 2
