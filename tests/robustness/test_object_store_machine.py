"""A whole object store against plain dicts, with a crash at any step of any write, and the consistency check after."""

import asyncio
import tempfile
from collections.abc import Coroutine
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import md5
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from s3verbs.storage.errors import (
    BucketExists,
    BucketNotEmpty,
    BucketNotFound,
    ConditionFailed,
    InvalidPart,
    ObjectNotFound,
    PartTooSmall,
    StorageError,
    UploadNotFound,
)
from s3verbs.storage.faults import STEPS, Crash
from s3verbs.storage.metadata import Table
from s3verbs.storage.model import CompletedPart, Part, Payload, WriteCondition
from s3verbs.storage.objects import ObjectReader
from tests.storage_fixtures import DiskStoreUnderTest, MemoryStoreUnderTest, StoreUnderTest, describe, read

LEAST = 4

buckets = st.sampled_from(["one", "two"])
object_keys = st.sampled_from(
    ["a", "a/b", "a/b/c", "a-", "b/", "b/c", "é/é", "k" * 449 + "/1", "k" * 449 + "/2", "k" * 450]
)
contents = st.one_of(st.binary(min_size=LEAST, max_size=12), st.binary(max_size=12))
texts = st.sampled_from(["", "a", "a/", "b/c", "k" * 450, "k" * 449 + "/", "é"])
etags = st.sampled_from(["*", md5(b"").hexdigest(), md5(b"\0").hexdigest(), "other"])
conditions = st.one_of(
    st.none(),
    st.builds(WriteCondition, if_match=st.one_of(st.none(), etags), if_none_match=st.one_of(st.none(), etags)),
)


@dataclass
class BucketModel:
    objects: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    uploads: dict[str, tuple[str, dict[int, tuple[str, bytes]]]] = field(default_factory=dict)


Model = dict[str, BucketModel]


def expect(model: Model, bucket: str) -> BucketModel:
    if bucket not in model:
        raise BucketNotFound(bucket)
    return model[bucket]


def check_condition(found: tuple[str, bytes] | None, condition: WriteCondition | None) -> None:
    if condition is None:
        return
    if condition.if_match is not None:
        if found is None:
            raise ObjectNotFound
        if condition.if_match not in ("*", found[0]):
            raise ConditionFailed
    if condition.if_none_match is not None and found is not None and condition.if_none_match in ("*", found[0]):
        raise ConditionFailed


class ObjectStoreMachine(RuleBasedStateMachine):
    """Each write is done on a copy of the model; after a crash the store must be as before it or as after it."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda _loop, _context: None)  # tasks of a crashed store end in Crash
        self.crashed = False
        self.ended = ("one", "a", "0" * 32)
        self.folder = tempfile.TemporaryDirectory()
        self.patched = patch("s3verbs.storage.uploads.MIN_PART_SIZE", LEAST)
        self.patched.start()
        self.model: Model = {}
        self.readers: list[tuple[ObjectReader, bytes]] = []
        self.store = self.make(Path(self.folder.name))

    def make(self, folder: Path) -> StoreUnderTest:
        return MemoryStoreUnderTest(folder)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    # -- doing a write on both sides --

    def do(self, work: Coroutine[Any, Any, Any], after: Model | StorageError) -> Any:
        """`after` is the model when the write succeeds, or how it fails."""
        try:
            result = self.run(work)
        except Crash:
            self.restart()
            seen = self.observe()
            assert seen == self.model or seen == after
            self.model = seen
            return None
        except StorageError as error:
            self.expect_error(error, after)
            return None
        assert not isinstance(after, StorageError), f"{result!r} instead of {after!r}"
        self.model = after
        return result

    def expect_error(self, error: StorageError, after: Model | StorageError) -> None:
        assert isinstance(after, StorageError), f"{error!r} where it should have worked"
        assert type(error) is type(after)

    def restart(self) -> None:
        self.crashed = True
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.run(asyncio.sleep(0))
        self.readers.clear()
        assert isinstance(self.store, MemoryStoreUnderTest)
        for file in self.store.disk.files.values():
            file.holders.clear()
        self.store.start()

    def observe(self) -> Model:
        seen: Model = {}
        objects = self.store.objects
        for bucket in objects.buckets()[0]:
            found = seen[bucket.name] = BucketModel()
            for version in objects.list_objects(bucket.name).versions:
                found.objects[version.key] = (version.etag, self.run(self.store.get(version.key, bucket=bucket.name)))
            for upload in objects.list_uploads(bucket.name).uploads:
                parts, _ = objects.parts(bucket.name, upload.key, upload.id)
                found.uploads[upload.id] = (
                    upload.key,
                    {part.number: (part.etag, self.bytes_of(part)) for part in parts},
                )
        return seen

    def bytes_of(self, part: Part) -> bytes:
        with self.store.metadata.read() as transaction:
            inline = transaction.get(Table.INLINE, part.payload.id)
        if inline is not None:
            return inline
        reader = self.store.payloads.open(part.payload)  # type: ignore[arg-type]
        try:
            into = bytearray(part.size)
            assert reader.read_into(0, memoryview(into)) == part.size
            return bytes(into)
        finally:
            reader.close()

    def payload(self, data: bytes, *, file: bool) -> Payload | None:
        try:
            return self.store.file(data) if file else self.store.objects.inline_payload(data)
        except Crash:
            self.restart()
            assert self.observe() == self.model
            return None

    def changed(self, bucket: str) -> tuple[Model, BucketModel]:
        after = deepcopy(self.model)
        return after, expect(after, bucket)

    # -- buckets --

    @initialize()
    def begin(self) -> None:
        self.create_bucket("one")
        self.create_bucket("two")

    @rule(bucket=buckets)
    def create_bucket(self, bucket: str) -> None:
        after: Model | StorageError = {**deepcopy(self.model), bucket: BucketModel()}
        if bucket in self.model:
            after = BucketExists()
        self.do(self.store.objects.create_bucket(bucket, owner="me"), after)

    @rule(bucket=st.just("two"))
    def delete_bucket(self, bucket: str) -> None:
        after: Model | StorageError
        if bucket not in self.model:
            after = BucketNotFound()
        elif self.model[bucket].objects:
            after = BucketNotEmpty()
        else:
            after = deepcopy(self.model)
            del after[bucket]
        self.do(self.store.objects.delete_bucket(bucket), after)

    # -- objects --

    @rule(bucket=buckets, key=object_keys, data=contents, file=st.booleans(), condition=conditions)
    def put(self, bucket: str, key: str, data: bytes, file: bool, condition: WriteCondition | None) -> None:
        payload = self.payload(data, file=file)
        if payload is None:
            return
        after: Model | StorageError
        try:
            after, found = self.changed(bucket)
            check_condition(found.objects.get(key), condition)
            found.objects[key] = (md5(data).hexdigest(), data)
        except StorageError as error:
            after = error
        put = self.store.put(key, payload, bucket=bucket, etag=md5(data).hexdigest(), condition=condition)
        self.do(put, after)

    @rule(bucket=buckets, key=object_keys, start=st.integers(0, 14), length=st.integers(0, 14))
    def get(self, bucket: str, key: str, start: int, length: int) -> None:
        try:
            wanted = expect(self.model, bucket).objects.get(key)
            if wanted is None:
                raise ObjectNotFound
        except StorageError as error:
            with pytest.raises(type(error)):
                self.store.objects.lookup(bucket, key)
            return
        version = self.store.objects.lookup(bucket, key)
        assert (version.etag, version.size) == (wanted[0], len(wanted[1]))
        try:
            reader = self.run(self.store.objects.open(bucket, key, version))
            assert read(reader, start, length) == wanted[1][start : start + length]
            self.readers.append((reader, wanted[1]))
        except Crash:
            self.restart()

    @precondition(lambda self: self.readers)
    @rule(close=st.booleans())
    def read_on(self, close: bool) -> None:
        """An open reader gives what it was opened on, whatever happened to the object."""
        reader, data = self.readers.pop(0)
        try:
            assert read(reader) == data
        except Crash:
            self.restart()
            return
        if close:
            self.run(self.on_loop(reader.close))
        else:
            self.readers.append((reader, data))

    async def on_loop(self, call: Any) -> None:
        call()

    @rule(bucket=buckets, key=object_keys, condition=conditions)
    def delete(self, bucket: str, key: str, condition: WriteCondition | None) -> None:
        after: Model | StorageError
        try:
            after, found = self.changed(bucket)
            if key in found.objects:
                check_condition(found.objects[key], condition)
                del found.objects[key]
        except StorageError as error:
            after = error
        self.do(self.store.objects.delete(bucket, key, condition), after)

    @rule(bucket=buckets, wanted=st.lists(st.tuples(object_keys, conditions), max_size=6))
    def delete_many(self, bucket: str, wanted: list[tuple[str, WriteCondition | None]]) -> None:
        after: Model | StorageError
        outcomes: list[type[Exception] | None] = []
        try:
            after, found = self.changed(bucket)
            for key, condition in wanted:
                outcomes.append(None)
                if key in found.objects:
                    try:
                        check_condition(found.objects[key], condition)
                        del found.objects[key]
                    except StorageError as error:
                        outcomes[-1] = type(error)
        except BucketNotFound as error:
            after = error
        names, given = [key for key, _ in wanted], [condition for _, condition in wanted]
        result = self.do(self.store.objects.delete_many(bucket, names, given), after)
        if result is not None:
            assert [None if outcome is None else type(outcome) for outcome in result] == outcomes

    @rule(bucket=buckets, prefix=texts, delimiter=st.sampled_from(["", "/", "b"]), after=texts, limit=st.integers(0, 5))
    def list_objects(self, bucket: str, prefix: str, delimiter: str, after: str, limit: int) -> None:
        if bucket not in self.model:
            return
        names = set()
        for key in self.model[bucket].objects:
            if key.startswith(prefix):
                cut = key.find(delimiter, len(prefix)) if delimiter else -1
                names.add(key if cut < 0 else key[: cut + len(delimiter)])
        wanted = sorted(name for name in names if name > after)
        listing = self.store.objects.list_objects(
            bucket, prefix=prefix, delimiter=delimiter, start_after=after, limit=limit
        )
        got = sorted([*(version.key for version in listing.versions), *listing.common_prefixes])
        assert got == wanted[:limit]
        assert listing.truncated == (0 < limit < len(wanted))
        for version in listing.versions:
            assert (version.etag, version.size) == (
                self.model[bucket].objects[version.key][0],
                len(self.model[bucket].objects[version.key][1]),
            )

    # -- uploads --

    @rule(bucket=buckets, key=object_keys, parts=st.lists(st.tuples(contents, st.booleans()), max_size=3))
    def create_upload(self, bucket: str, key: str, parts: list[tuple[bytes, bool]]) -> None:
        if bucket not in self.model:
            return
        known = set(self.model[bucket].uploads)
        try:
            upload = self.run(self.store.create_upload(key, bucket=bucket))
        except Crash:
            self.restart()
            seen = self.observe()
            made = set(seen[bucket].uploads) - known
            assert len(made) <= 1
            for upload_id in made:
                self.model[bucket].uploads[upload_id] = (key, {})
            assert seen == self.model
            return
        self.model[bucket].uploads[upload.id] = (key, {})
        for number, (data, file) in enumerate(parts, 1):
            self.upload_part(bucket, key, upload.id, number, data, file=file)

    def has_upload(self) -> bool:
        return any(bucket.uploads for bucket in self.model.values())

    def some_upload(self, draw: int) -> tuple[str, str, str]:
        """Bucket, key and id of an upload in progress; one time in six, of the last that ended."""
        found = [
            (bucket, key, upload_id)
            for bucket, model in sorted(self.model.items())
            for upload_id, (key, _) in sorted(model.uploads.items())
        ]
        return found[draw % len(found)] if draw else self.ended

    def changed_upload(self, bucket: str, upload_id: str) -> tuple[Model, BucketModel]:
        after, found = self.changed(bucket)
        if upload_id not in found.uploads:
            raise UploadNotFound
        return after, found

    @precondition(has_upload)
    @rule(draw=st.integers(0, 5), number=st.integers(1, 4), data=contents, file=st.booleans())
    def put_part(self, draw: int, number: int, data: bytes, file: bool) -> None:
        self.upload_part(*self.some_upload(draw), number, data, file=file)

    def upload_part(self, bucket: str, key: str, upload_id: str, number: int, data: bytes, *, file: bool) -> None:
        payload = self.payload(data, file=file)
        if payload is None:
            return
        part = Part(number, payload, md5(data).hexdigest(), self.store.clock())
        after: Model | StorageError
        try:
            after, found = self.changed_upload(bucket, upload_id)
            found.uploads[upload_id][1][number] = (part.etag, data)
        except StorageError as error:
            after = error
        self.do(self.store.objects.put_part(bucket, key, upload_id, part), after)

    @precondition(has_upload)
    @rule(
        draw=st.integers(0, 5),
        numbers=st.one_of(st.none(), st.none(), st.just([1]), st.lists(st.integers(1, 4), max_size=4)),
        condition=st.one_of(st.none(), conditions),
    )
    def complete_upload(self, draw: int, numbers: list[int] | None, condition: WriteCondition | None) -> None:
        bucket, key, upload_id = self.some_upload(draw)
        after: Model | StorageError
        listed: list[CompletedPart] = []
        parts: dict[int, tuple[str, bytes]] = {}
        if bucket in self.model and upload_id in self.model[bucket].uploads:
            parts = self.model[bucket].uploads[upload_id][1]
        numbers = sorted(parts) if numbers is None else numbers
        listed = [CompletedPart(number, parts.get(number, ("none", b""))[0]) for number in numbers]
        try:
            after, found = self.changed_upload(bucket, upload_id)
            if not numbers or any(number not in parts for number in numbers) or numbers != sorted(set(numbers)):
                raise InvalidPart("", 0)
            if any(len(parts[number][1]) < LEAST for number in numbers[:-1]):
                raise PartTooSmall("", 0, 0, "")
            check_condition(found.objects.get(key), condition)
            digest = md5(b"".join(bytes.fromhex(parts[number][0]) for number in numbers)).hexdigest()
            data = b"".join(parts[number][1] for number in numbers)
            found.objects[key] = (f"{digest}-{len(numbers)}", data)
            del found.uploads[upload_id]
            self.ended = (bucket, key, upload_id)
        except StorageError as error:
            after = error
        completing = self.store.objects.complete_upload(
            bucket, key, upload_id, listed, describe=describe, condition=condition
        )
        self.do(completing, after)

    @precondition(has_upload)
    @rule(draw=st.integers(0, 5))
    def abort_upload(self, draw: int) -> None:
        bucket, key, upload_id = self.some_upload(draw)
        after: Model | StorageError
        try:
            after, found = self.changed_upload(bucket, upload_id)
            del found.uploads[upload_id]
            self.ended = (bucket, key, upload_id)
        except StorageError as error:
            after = error
        self.do(self.store.objects.abort_upload(bucket, key, upload_id), after)

    # -- the process --

    @rule()
    def reclaim(self) -> None:
        self.do(self.store.objects.reclaim(), deepcopy(self.model))

    @rule()
    def reopen(self) -> None:
        for reader, _ in self.readers:
            self.run(self.on_loop(reader.close))
        self.readers.clear()
        self.do(self.store.reopen(), deepcopy(self.model))
        assert self.observe() == self.model

    @invariant()
    def notice_a_crash_in_the_background(self) -> None:
        if isinstance(self.store, MemoryStoreUnderTest) and self.store.faults.dead:
            self.restart()
            assert self.observe() == self.model

    @rule(step=st.sampled_from(STEPS), after=st.integers(0, 3))
    def crash_at(self, step: str, after: int) -> None:
        """The process will die when it comes to the step, in whatever it does then."""
        assert isinstance(self.store, MemoryStoreUnderTest)
        self.store.faults.crash(step, after=after)

    def teardown(self) -> None:
        try:
            if isinstance(self.store, MemoryStoreUnderTest):
                self.store.faults.clear()
                self.notice_a_crash_in_the_background()
            for reader, _ in self.readers:
                self.run(self.on_loop(reader.close))
            assert self.observe() == self.model
            self.run(self.store.objects.reclaim())
            self.run(self.store.objects.close())
            if self.crashed:
                self.store.sweep()
            report = self.store.check()
            assert report.findings == []
            assert report.counts["waiting_files"] == 0
            self.run(self.store.close())
        finally:
            self.patched.stop()
            self.loop.close()
            self.folder.cleanup()


class DiskMachine(ObjectStoreMachine):
    def make(self, folder: Path) -> StoreUnderTest:
        return DiskStoreUnderTest(folder)

    @precondition(lambda _: False)
    @rule()
    def crash_at(self) -> None:  # type: ignore[override]
        """A real process cannot crash and go on; see the test that kills one."""


def test_the_store_does_as_the_model_and_survives_crashes() -> None:
    run_state_machine_as_test(
        ObjectStoreMachine,
        settings=settings(
            max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_the_store_on_disk_does_as_the_model() -> None:
    run_state_machine_as_test(
        DiskMachine,
        settings=settings(
            max_examples=8, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
