"""What every MetadataStore does."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from s3verbs.storage import keys
from s3verbs.storage.metadata import MetadataStore, Table, WriteTransaction

BUCKET = bytes(8)


class Refused(Exception):
    """What a change of these tests raises."""


def put(store: MetadataStore, *entries: tuple[bytes, bytes], table: Table = Table.OBJECTS) -> None:
    def change(transaction: WriteTransaction) -> None:
        for key, value in entries:
            transaction.put(table, key, value)

    store.write_now(change)


def everything(store: MetadataStore, table: Table = Table.OBJECTS) -> list[tuple[bytes, bytes]]:
    with store.read() as snapshot:
        return list(snapshot.scan(table))


async def test_a_change_is_there_when_its_await_returns(metadata: MetadataStore) -> None:
    result = await metadata.write(lambda transaction: (transaction.put(Table.OBJECTS, b"a", b"1"), "done")[1])
    assert result == "done"
    with metadata.read() as snapshot:
        assert snapshot.get(Table.OBJECTS, b"a") == b"1"
        assert snapshot.get(Table.OBJECTS, b"b") is None


async def test_a_snapshot_does_not_see_later_changes(metadata: MetadataStore) -> None:
    put(metadata, (b"a", b"old"))
    before = metadata.read()
    with before as snapshot:
        await asyncio.to_thread(put, metadata, (b"a", b"new"), (b"b", b"new"))
        assert list(snapshot.scan(Table.OBJECTS)) == [(b"a", b"old")]
        assert snapshot.get(Table.OBJECTS, b"b") is None
    assert everything(metadata) == [(b"a", b"new"), (b"b", b"new")]


def test_a_table_does_not_see_the_entries_of_another(metadata: MetadataStore) -> None:
    for table in Table:
        put(metadata, (b"same key", table.value.encode()), table=table)
    for table in Table:
        assert everything(metadata, table) == [(b"same key", table.value.encode())]


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (b"", None, b"abcd"),
        (b"b", None, b"bcd"),
        (b"b", b"d", b"bc"),
        (b"bb", b"c\0", b"c"),
        (b"", b"a", b""),
        (b"d", b"b", b""),
        (b"e", None, b""),
    ],
)
def test_a_scan_includes_its_start_and_excludes_its_stop(
    metadata: MetadataStore, start: bytes, stop: bytes | None, expected: bytes
) -> None:
    put(metadata, *((bytes((letter,)), b"v") for letter in b"dbca"))
    with metadata.read() as snapshot:
        assert b"".join(key for key, _ in snapshot.scan(Table.OBJECTS, start, stop)) == expected
    found = metadata.write_now(lambda transaction: list(transaction.scan(Table.OBJECTS, start, stop)))
    assert b"".join(key for key, _ in found) == expected


def test_an_empty_table_has_no_entries(metadata: MetadataStore) -> None:
    assert everything(metadata) == []
    assert metadata.write_now(lambda transaction: list(transaction.scan(Table.OBJECTS, b"a"))) == []


@pytest.mark.parametrize("key", [b"", b"k" * 512, b"k" * 5000])
def test_a_key_that_no_entry_can_have_is_not_found(metadata: MetadataStore, key: bytes) -> None:
    put(metadata, (b"k", b"v"))
    with metadata.read() as snapshot:
        assert snapshot.get(Table.OBJECTS, key) is None
    assert metadata.write_now(lambda transaction: transaction.get(Table.OBJECTS, key)) is None
    assert metadata.write_now(lambda transaction: transaction.delete(Table.OBJECTS, key)) is False


def test_a_change_sees_its_own_writes(metadata: MetadataStore) -> None:
    def change(transaction: WriteTransaction) -> tuple[bytes | None, bool, bool, list[tuple[bytes, bytes]]]:
        transaction.put(Table.OBJECTS, b"a", b"1")
        transaction.put(Table.OBJECTS, b"a", b"2")
        transaction.put(Table.OBJECTS, b"b", b"3")
        return (
            transaction.get(Table.OBJECTS, b"a"),
            transaction.delete(Table.OBJECTS, b"b"),
            transaction.delete(Table.OBJECTS, b"b"),
            list(transaction.scan(Table.OBJECTS)),
        )

    assert metadata.write_now(change) == (b"2", True, False, [(b"a", b"2")])


def test_a_scan_goes_on_while_its_table_changes(metadata: MetadataStore) -> None:
    put(metadata, *((b"%04d" % number, b"v" * 100) for number in range(0, 1000, 2)))

    def change(transaction: WriteTransaction) -> list[bytes]:
        seen = []
        for key, _ in transaction.scan(Table.OBJECTS):
            seen.append(key)
            number = int(key)
            if number % 3 == 0:
                transaction.delete(Table.OBJECTS, key)
            elif number % 2 == 0:
                transaction.put(Table.OBJECTS, b"%04d" % (number + 1), b"w" * 300)
            if number % 10 == 0:
                transaction.delete(Table.OBJECTS, b"%04d" % (number + 2))
        return seen

    seen = metadata.write_now(change)
    expected, deleted = [], set()
    table = dict.fromkeys(range(0, 1000, 2), True)
    for number in range(1003):
        if number not in table or number in deleted:
            continue
        expected.append(b"%04d" % number)
        if number % 3 == 0:
            deleted.add(number)
        elif number % 2 == 0:
            table[number + 1] = True
        if number % 10 == 0:
            deleted.add(number + 2)
    assert seen == expected
    assert [key for key, _ in everything(metadata)] == [b"%04d" % n for n in sorted(table) if n not in deleted]


async def test_a_change_that_raises_changes_nothing(metadata: MetadataStore) -> None:
    put(metadata, (b"a", b"old"))

    def early(_: WriteTransaction) -> None:
        raise Refused("before")

    def late(transaction: WriteTransaction) -> None:
        transaction.put(Table.OBJECTS, b"a", b"new")
        transaction.put(Table.INLINE, b"b", b"new")
        raise Refused("after")

    with pytest.raises(Refused, match="before"):
        await metadata.write(early)
    with pytest.raises(Refused, match="after"):
        await metadata.write(late)
    with pytest.raises(Refused, match="after"):
        metadata.write_now(late)
    assert everything(metadata) == [(b"a", b"old")]
    assert everything(metadata, Table.INLINE) == []


async def test_changes_of_one_group_do_not_harm_each_other(metadata: MetadataStore) -> None:
    def change(number: int) -> None:
        def run(transaction: WriteTransaction) -> int:
            if number % 4 == 1:
                raise Refused(number)
            transaction.put(Table.OBJECTS, b"%02d" % number, b"v")
            if number % 4 == 3:
                raise Refused(number)
            return number

        return run

    results = await asyncio.gather(*(metadata.write(change(number)) for number in range(40)), return_exceptions=True)
    for number, result in enumerate(results):
        if number % 2:
            assert isinstance(result, Refused)
            assert result.args == (number,)
        else:
            assert result == number
    assert [key for key, _ in everything(metadata)] == [b"%02d" % number for number in range(0, 40, 2)]


async def test_changes_are_decided_one_after_another(metadata: MetadataStore) -> None:
    def first_one_wins(name: bytes) -> bool:
        def run(transaction: WriteTransaction) -> bool:
            if transaction.get(Table.OBJECTS, b"winner") is not None:
                return False
            transaction.put(Table.OBJECTS, b"winner", name)
            return True

        return run

    results = await asyncio.gather(*(metadata.write(first_one_wins(b"%d" % number)) for number in range(64)))
    assert sum(results) == 1
    assert everything(metadata) == [(b"winner", b"%d" % results.index(True))]


async def test_a_cancelled_await_does_not_undo_its_change(metadata: MetadataStore) -> None:
    task = asyncio.create_task(metadata.write(lambda transaction: transaction.put(Table.OBJECTS, b"a", b"1")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await metadata.write(lambda transaction: transaction.put(Table.OBJECTS, b"b", b"2"))
    assert everything(metadata) == [(b"a", b"1"), (b"b", b"2")]


async def test_a_change_that_frees_space_is_a_change_like_any(metadata: MetadataStore) -> None:
    put(metadata, (b"a", b"1"))
    assert await metadata.write(lambda transaction: transaction.delete(Table.OBJECTS, b"a"), frees_space=True)
    assert not metadata.write_now(lambda transaction: transaction.delete(Table.OBJECTS, b"a"), frees_space=True)


def test_values_of_any_size_are_kept_whole(metadata: MetadataStore) -> None:
    values = [(b"%02d" % size, bytes([size]) * (1 << size) + b"tail") for size in range(21)]
    put(metadata, (b"empty", b""), *values)
    assert everything(metadata) == [*values, (b"empty", b"")]


def test_long_object_keys_are_found_and_listed_in_order(metadata: MetadataStore) -> None:
    stem = "k" * 440
    names = [stem + "x" * count for count in range(0, 500, 7)] + [stem + "x" * 20 + str(n) for n in range(20)] + ["l"]
    put(metadata, *((keys.object_key(BUCKET, name), name.encode()) for name in names))
    with metadata.read() as snapshot:
        for name in names:
            assert snapshot.get(Table.OBJECTS, keys.object_key(BUCKET, name)) == name.encode()
        listed: list[bytes] = []
        group: list[bytes] = []
        for key, value in snapshot.scan(Table.OBJECTS, *keys.object_range(BUCKET, stem)):
            (group if keys.is_long_object(key) else listed).append(value)
    assert listed + sorted(group) == sorted(name.encode() for name in names if name.startswith(stem))


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.booleans(), st.binary(min_size=1, max_size=3), st.binary(max_size=2500)),
        max_size=40,
    )
)
def test_a_table_is_a_sorted_dict(metadata: MetadataStore, steps: list[tuple[bool, bytes, bytes]]) -> None:
    def clear(transaction: WriteTransaction) -> None:
        for key, _ in transaction.scan(Table.OBJECTS):
            transaction.delete(Table.OBJECTS, key)

    def apply(transaction: WriteTransaction) -> None:
        for insert, key, value in steps:
            if insert:
                transaction.put(Table.OBJECTS, key, value)
            else:
                transaction.delete(Table.OBJECTS, key)

    expected: dict[bytes, bytes] = {}
    for insert, key, value in steps:
        if insert:
            expected[key] = value
        else:
            expected.pop(key, None)
    metadata.write_now(clear)
    metadata.write_now(apply)
    assert everything(metadata) == sorted(expected.items())


async def test_close_finishes_what_was_handed_over(metadata: MetadataStore) -> None:
    writes = [
        asyncio.create_task(metadata.write(lambda transaction, n=n: transaction.put(Table.OBJECTS, b"%d" % n, b"v")))
        for n in range(9)
    ]
    await asyncio.sleep(0)
    await asyncio.gather(asyncio.to_thread(metadata.close), *writes)
    metadata.close()
