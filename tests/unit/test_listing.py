"""Listing against a model: the sorted set of keys and common prefixes, cut at the marker and at the limit."""

from bisect import bisect_right
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.storage import keys
from s3verbs.storage.listing import list_buckets, list_objects, list_uploads
from s3verbs.storage.memory import MemoryMetadataStore
from s3verbs.storage.metadata import ReadTransaction, Table, WriteTransaction
from s3verbs.storage.model import Bucket, InlinePayload, Listing, Part, Upload, UploadListing, Version
from s3verbs.storage.records import encode_bucket, encode_upload, encode_version

BUCKET = b"\x00bucke\x7f\xff"
NEIGHBOURS = (b"\x00bucke\x7f\xfe", b"\x00bucke\x80\x00")
"""The bucket ids just below and just above."""

LONG = "p/" + "L" * 446 + "/é"
"""448 + 1 characters whose 450th byte is in the middle of a character."""

pieces = st.sampled_from(["a", "b", "/", "//", "-", "\x00", "ÿ", "字", "🙂", "aa"])
short_keys = st.lists(pieces, min_size=1, max_size=6).map("".join)
long_keys = st.builds(
    lambda head, tail: head + tail,
    st.sampled_from([LONG, "k" * 450, "k" * 449, "字" * 150, "a/" * 225]),
    st.lists(pieces, max_size=5).map("".join),
)
object_keys = st.one_of(short_keys, long_keys)
delimiters = st.sampled_from(["", "/", "//", "a", "-", "字", "b/"])
texts = st.one_of(st.just(""), object_keys, long_keys.map(lambda key: key[:-1]))


def record(key: str) -> bytes:
    part = Part(1, InlinePayload(bytes(16), 1), "0" * 32, 1)
    return encode_version(Version(key=key, modified_ns=1, size=1, etag="0" * 32, parts=(part,)))


def with_objects(names: set[str]) -> MemoryMetadataStore:
    store = MemoryMetadataStore()

    def change(transaction: WriteTransaction) -> None:
        for name in names:
            transaction.put(Table.OBJECTS, keys.object_key(BUCKET, name), record(name))
        for neighbour in NEIGHBOURS:
            transaction.put(Table.OBJECTS, keys.object_key(neighbour, "a/neighbour"), record("a/neighbour"))

    store.write_now(change)
    return store


def entries(names: set[str], prefix: str, delimiter: str) -> list[str]:
    found = set()
    for name in names:
        if name.startswith(prefix):
            cut = name.find(delimiter, len(prefix)) if delimiter else -1
            found.add(name if cut < 0 else name[: cut + len(delimiter)])
    return sorted(found, key=str.encode)


def page(store: MemoryMetadataStore, prefix: str, delimiter: str, after: str, limit: int) -> Listing:
    with store.read() as transaction:
        return list_objects(transaction, BUCKET, prefix=prefix, delimiter=delimiter, start_after=after, limit=limit)


def merged(listing: Listing | UploadListing) -> list[str]:
    names = listing.versions if isinstance(listing, Listing) else listing.uploads
    return sorted([*(entry.key for entry in names), *listing.common_prefixes], key=str.encode)


@settings(max_examples=200, deadline=None)
@given(st.sets(object_keys, max_size=25), texts, delimiters, texts, st.integers(0, 6))
def test_a_page_holds_the_first_entries_after_the_marker(
    names: set[str], prefix: str, delimiter: str, after: str, limit: int
) -> None:
    listing = page(with_objects(names), prefix, delimiter, after, limit)
    all_entries = entries(names, prefix, delimiter)
    start = bisect_right(all_entries, after.encode(), key=str.encode)
    wanted = all_entries[start : start + limit]
    assert merged(listing) == wanted
    assert [version.key for version in listing.versions] == sorted(
        (version.key for version in listing.versions), key=str.encode
    )
    assert list(listing.common_prefixes) == sorted(set(listing.common_prefixes), key=str.encode)
    assert all(version.key in names for version in listing.versions)
    assert listing.truncated == (limit > 0 and start + limit < len(all_entries))
    assert listing.next_marker == (wanted[-1] if listing.truncated else "")


@settings(max_examples=100, deadline=None)
@given(st.sets(object_keys, max_size=25), texts, delimiters, st.integers(1, 5))
def test_pages_together_hold_every_entry_once(names: set[str], prefix: str, delimiter: str, limit: int) -> None:
    store = with_objects(names)
    seen: list[str] = []
    after = ""
    while True:
        listing = page(store, prefix, delimiter, after, limit)
        seen += merged(listing)
        if not listing.truncated:
            break
        after = listing.next_marker
    assert seen == entries(names, prefix, delimiter)


@settings(max_examples=100, deadline=None)
@given(
    st.sets(object_keys, min_size=1, max_size=20),
    st.lists(st.tuples(object_keys, st.booleans()), max_size=20),
    delimiters,
    st.integers(1, 4),
)
def test_keys_that_stay_are_listed_once_while_others_come_and_go(
    stay: set[str], changes: list[tuple[str, bool]], delimiter: str, limit: int
) -> None:
    store = with_objects(stay)
    seen: list[str] = []
    after = ""
    pending = list(changes)
    while True:
        listing = page(store, "", delimiter, after, limit)
        seen += merged(listing)
        if not listing.truncated:
            break
        after = listing.next_marker
        for name, add in pending[:2]:
            if name in stay:
                continue
            place = keys.object_key(BUCKET, name)
            if add:
                store.write_now(lambda t, p=place, n=name: t.put(Table.OBJECTS, p, record(n)))
            else:
                store.write_now(lambda t, p=place: t.delete(Table.OBJECTS, p))
        pending = pending[2:]
    assert len(seen) == len(set(seen))
    assert set(entries(stay, "", delimiter)) <= set(seen)


def test_markers_below_a_common_prefix_pass_all_of_it() -> None:
    store = with_objects({"a/1", "a/2", "a/3", "b"})
    for after in ("a/", "a/1", "a/2x"):
        assert merged(page(store, "", "/", after, 10)) == ["b"]
    assert merged(page(store, "", "/", "a", 10)) == ["a/", "b"]
    assert merged(page(store, "a/", "/", "a/1", 10)) == ["a/2", "a/3"]


def test_an_object_beside_its_folder_and_what_is_in_it() -> None:
    store = with_objects({"foo", "foo/", "foo/bar", "foo-"})
    assert [version.key for version in page(store, "", "", "", 10).versions] == ["foo", "foo-", "foo/", "foo/bar"]
    listing = page(store, "", "/", "", 10)
    assert ([version.key for version in listing.versions], listing.common_prefixes) == (["foo", "foo-"], ("foo/",))
    assert merged(page(store, "foo/", "/", "", 10)) == ["foo/", "foo/bar"]


class CountingTransaction:
    def __init__(self, transaction: ReadTransaction) -> None:
        self._transaction = transaction
        self.read = 0

    def get(self, table: Table, key: bytes) -> bytes | None:
        return self._transaction.get(table, key)

    def scan(self, table: Table, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        for entry in self._transaction.scan(table, start, stop):
            self.read += 1
            yield entry


def test_what_lies_below_a_common_prefix_is_not_read() -> None:
    store = with_objects({f"d{folder}/{number:04}" for folder in range(10) for number in range(500)})
    with store.read() as transaction:
        counting = CountingTransaction(transaction)
        listing = list_objects(counting, BUCKET, prefix="", delimiter="/", start_after="", limit=1000)
        assert len(listing.common_prefixes) == 10
        assert counting.read <= 2 * 10
        counting.read = 0
        listing = list_objects(counting, BUCKET, prefix="", delimiter="/", start_after="d7/", limit=1000)
        assert listing.common_prefixes == ("d8/", "d9/")
        assert counting.read <= 2 * 3


# -- uploads --


def with_uploads(names: list[str]) -> tuple[MemoryMetadataStore, list[tuple[str, str]]]:
    store = MemoryMetadataStore()
    made: list[tuple[str, str]] = []
    for number, name in enumerate(names):
        upload_id = keys.time_ordered_id(number + 1, bytes(8))
        upload = Upload(name, upload_id.hex(), number + 1, "me")
        place = keys.upload_key(BUCKET, name, upload_id)
        store.write_now(lambda t, p=place, u=upload: t.put(Table.UPLOADS, p, encode_upload(u)))
        made.append((name, upload.id))
    return store, sorted(made, key=lambda entry: (entry[0].encode(), entry[1]))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(object_keys, max_size=12),
    texts,
    delimiters,
    texts,
    st.sampled_from(["", "0", "zz", f"{3:016x}" + "0" * 16, f"{5:016x}" + "0" * 16]),
    st.integers(0, 5),
)
def test_a_page_of_uploads_follows_both_markers(
    names: list[str], prefix: str, delimiter: str, key_marker: str, id_marker: str, limit: int
) -> None:
    store, made = with_uploads(names)
    wanted: list[tuple[str, str]] = []
    for name, upload_id in made:
        if not name.startswith(prefix):
            continue
        cut = name.find(delimiter, len(prefix)) if delimiter else -1
        entry = (name, upload_id) if cut < 0 else (name[: cut + len(delimiter)], "")
        later = entry[0] > key_marker or (entry[0] == key_marker and id_marker and entry[1] > id_marker)
        if entry not in wanted and (not key_marker or later):
            wanted.append(entry)
    with store.read() as transaction:
        listing = list_uploads(
            transaction,
            BUCKET,
            prefix=prefix,
            delimiter=delimiter,
            key_marker=key_marker,
            upload_id_marker=id_marker,
            limit=limit,
        )
    assert [(upload.key, upload.id) for upload in listing.uploads] == [e for e in wanted[:limit] if e[1]]
    assert list(listing.common_prefixes) == [name for name, upload_id in wanted[:limit] if not upload_id]
    assert listing.truncated == (0 < limit < len(wanted))
    if listing.truncated:
        assert (listing.next_key_marker, listing.next_upload_id_marker) == wanted[limit - 1]


@settings(max_examples=60, deadline=None)
@given(st.lists(object_keys, max_size=12), delimiters, st.integers(1, 4))
def test_pages_of_uploads_together_hold_every_upload_once(names: list[str], delimiter: str, limit: int) -> None:
    store, made = with_uploads(names)
    seen: list[tuple[str, str]] = []
    prefixes: list[str] = []
    marker = ("", "")
    while True:
        with store.read() as transaction:
            listing = list_uploads(
                transaction,
                BUCKET,
                prefix="",
                delimiter=delimiter,
                key_marker=marker[0],
                upload_id_marker=marker[1],
                limit=limit,
            )
        seen += [(upload.key, upload.id) for upload in listing.uploads]
        prefixes += listing.common_prefixes
        if not listing.truncated:
            break
        marker = (listing.next_key_marker, listing.next_upload_id_marker)
    assert seen == [entry for entry in made if not delimiter or delimiter not in entry[0]]
    assert prefixes == sorted(set(prefixes), key=str.encode)


# -- long keys --

HEADS = ["h" * 449, "h" * 450, "h/" * 224 + "hh", "字" * 150, "\x00" * 230, "\x00" * 224 + "/", "h" * 448 + "é"]
TAILS = ["", "a", "b", "/", "//", "é", "🙂", "\x00", "z" * 30]


def long_names(chance: Random) -> list[str]:
    """Keys around and above 450 bytes, raw or escaped, in few groups, with delimiters before, at and after the cut."""
    heads = chance.sample(HEADS, 2)
    names = set()
    for _ in range(chance.randint(1, 60)):
        names.add(chance.choice(heads) + "".join(chance.choices(TAILS, k=chance.randint(0, 5))))
    return sorted(names, key=str.encode)


@pytest.mark.parametrize("seed", range(60))
def test_long_keys_are_listed_as_a_sorted_list_would_be(seed: int) -> None:
    chance = Random(seed)
    names = long_names(chance)
    objects, (uploads, _) = with_objects(set(names)), with_uploads(names)
    for _ in range(12):
        name = chance.choice(names)
        prefix = name[: chance.choice([0, len(name) - 1, len(name), 450, 449])]
        delimiter = chance.choice(["", "/", "//", "a", "é", "\x00"])
        after = chance.choice(["", chance.choice(names), name[: len(name) - 1], name + "a"])
        limit = chance.randint(1, 7)
        wanted = entries(set(names), prefix, delimiter)
        wanted = wanted[bisect_right(wanted, after.encode(), key=str.encode) :]
        seen_objects: list[str] = []
        seen_uploads: list[str] = []
        at, more = after, True
        while more:
            listing = page(objects, prefix, delimiter, at, limit)
            seen_objects += merged(listing)
            at, more = listing.next_marker, listing.truncated
        key_marker, id_marker, more = after, "", True
        while more:
            with uploads.read() as transaction:
                found = list_uploads(
                    transaction,
                    BUCKET,
                    prefix=prefix,
                    delimiter=delimiter,
                    key_marker=key_marker,
                    upload_id_marker=id_marker,
                    limit=limit,
                )
            seen_uploads += merged(found)
            key_marker, id_marker, more = found.next_key_marker, found.next_upload_id_marker, found.truncated
        assert seen_objects == wanted
        assert seen_uploads == wanted


# -- buckets --


@pytest.mark.parametrize(
    ("prefix", "after", "limit", "wanted", "more"),
    [
        ("", "", 10, ["a", "ab", "abc", "b"], False),
        ("ab", "", 10, ["ab", "abc"], False),
        ("", "ab", 1, ["abc"], True),
        ("ab", "abc", 10, [], False),
        ("b", "a", 10, ["b"], False),
        ("", "", 0, [], False),
        ("", "", 4, ["a", "ab", "abc", "b"], False),
    ],
)
def test_buckets_come_in_pages(prefix: str, after: str, limit: int, wanted: list[str], more: bool) -> None:
    store = MemoryMetadataStore()
    for name in ("b", "abc", "a", "ab"):
        bucket = Bucket(name, bytes(8), 1, "me")
        store.write_now(lambda t, b=bucket: t.put(Table.BUCKETS, b.name.encode(), encode_bucket(b)))
    with store.read() as transaction:
        buckets, truncated = list_buckets(transaction, prefix=prefix, start_after=after, limit=limit)
    assert ([bucket.name for bucket in buckets], truncated) == (wanted, more)
