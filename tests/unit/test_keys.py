"""Order and uniqueness of encoded keys, and that no bound leaves out an entry."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.storage import keys

BUCKET = b"\x00\x01\x02\x03\x04\x05\x06\x07"
ID = bytes(range(16))

# Few distinct characters, so that prefixes, NUL and the largest code point meet often.
CHARACTERS = st.sampled_from("\0\x01a/b\x7fé\U0010ffff")
SHORT = st.text(CHARACTERS, max_size=12)
STEM = "k" * 449
LONG = st.builds(lambda head, tail: STEM + head + tail, st.sampled_from(["", "a", "\0", "é"]), SHORT)
KEY = st.one_of(SHORT, LONG, st.text(max_size=300)).filter(lambda key: len(key.encode("utf-8", "replace")) <= 1024)
IDS = st.binary(min_size=16, max_size=16)


def valid(key: str) -> bool:
    return not any(0xD800 <= ord(character) <= 0xDFFF for character in key)


def raw(key: str) -> bytes:
    return key.encode()


def inside(encoded: bytes, bounds: keys.Range) -> bool:
    start, stop = bounds
    return start <= encoded and (stop is None or encoded < stop)


@settings(deadline=None, max_examples=200)
@given(st.lists(KEY.filter(valid), unique=True, max_size=30))
def test_encoded_object_keys_are_in_the_order_of_their_bytes_and_long_ones_in_groups(names: list[str]) -> None:
    encoded = sorted((keys.object_key(BUCKET, name), name) for name in names)
    assert len({item for item, _ in encoded}) == len(names)
    assert all(len(item) <= keys.MAX_ENCODED_BYTES for item, _ in encoded)
    listed: list[str] = []
    group: list[tuple[bytes, str]] = []
    for item, name in encoded:
        if group and not inside(item, keys.object_group(group[0][0])):
            listed += sorted((member for _, member in group), key=raw)
            group = []
        if keys.is_long_object(item):
            group.append((item, name))
        else:
            assert keys.object_name(item) == name
            listed.append(name)
    listed += sorted((member for _, member in group), key=raw)
    assert listed == sorted(names, key=raw)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(KEY.filter(valid), IDS), unique=True, max_size=30))
def test_encoded_upload_keys_are_in_the_order_of_key_then_id_and_long_ones_in_groups(
    uploads: list[tuple[str, bytes]],
) -> None:
    encoded = sorted((keys.upload_key(BUCKET, name, upload_id), (name, upload_id)) for name, upload_id in uploads)
    assert len({item for item, _ in encoded}) == len(uploads)
    assert all(len(item) <= keys.MAX_ENCODED_BYTES for item, _ in encoded)

    def order(upload: tuple[str, bytes]) -> tuple[bytes, bytes]:
        return raw(upload[0]), upload[1]

    listed: list[tuple[str, bytes]] = []
    group: list[tuple[bytes, tuple[str, bytes]]] = []
    for item, upload in encoded:
        if group and not inside(item, keys.upload_group(group[0][0])):
            listed += sorted((member for _, member in group), key=order)
            group = []
        if keys.is_long_upload(item):
            group.append((item, upload))
        else:
            listed.append(upload)
    listed += sorted((member for _, member in group), key=order)
    assert listed == sorted(uploads, key=order)


@settings(deadline=None, max_examples=200)
@given(KEY.filter(valid), KEY.filter(valid))
def test_object_bounds_hold_every_key_that_belongs(key: str, other: str) -> None:
    encoded = keys.object_key(BUCKET, key)
    if key.startswith(other):
        assert inside(encoded, keys.object_range(BUCKET, other))
    elif not keys.is_long_object(encoded):
        assert not inside(encoded, keys.object_range(BUCKET, other))
    if raw(key) > raw(other):
        assert encoded >= keys.objects_after(BUCKET, other)
        if not key.startswith(other):
            past = keys.objects_past(BUCKET, other)
            assert past is not None
            assert encoded >= past
    elif not keys.is_long_object(encoded):
        assert encoded < keys.objects_after(BUCKET, other)


@settings(deadline=None, max_examples=200)
@given(KEY.filter(valid), KEY.filter(valid), IDS, IDS)
def test_upload_bounds_hold_every_upload_that_belongs(key: str, other: str, first: bytes, second: bytes) -> None:
    encoded = keys.upload_key(BUCKET, key, first)
    long = keys.is_long_upload(encoded)
    if key.startswith(other):
        assert inside(encoded, keys.upload_range(BUCKET, other))
    elif not long:
        assert not inside(encoded, keys.upload_range(BUCKET, other))
    after_id, after_key = keys.uploads_after(BUCKET, other, second), keys.uploads_after(BUCKET, other)
    if (raw(key), first) > (raw(other), second):
        assert encoded >= after_id
    elif not long:
        assert encoded < after_id
    if raw(key) > raw(other):
        assert encoded >= after_key
        if not key.startswith(other):
            past = keys.uploads_past(BUCKET, other)
            assert past is not None
            assert encoded >= past
    elif not long:
        assert encoded < after_key


@settings(deadline=None)
@given(IDS, st.integers(0, 65535), st.integers(0, 65535), IDS)
def test_parts_are_in_the_order_of_their_numbers_within_their_upload(
    upload_id: bytes, number: int, other: int, stranger: bytes
) -> None:
    encoded = keys.part_key(upload_id, number)
    assert keys.part_number(encoded) == number
    assert (encoded < keys.part_key(upload_id, other)) == (number < other)
    assert inside(encoded, keys.part_range(upload_id, other)) == (number > other)
    assert inside(encoded, keys.part_range(upload_id, -1 if number else -5)) == (number > 0)
    if stranger != upload_id:
        assert not inside(encoded, keys.part_range(stranger))


@settings(deadline=None)
@given(st.binary(max_size=6), st.binary(max_size=8))
def test_the_upper_bound_of_a_prefix_is_the_lowest_string_above_all_that_start_with_it(
    prefix: bytes, other: bytes
) -> None:
    bound = keys.upper_bound(prefix)
    if bound is None:
        assert not prefix.strip(b"\xff")
        return
    assert (prefix <= other < bound) == other.startswith(prefix)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_an_upload_id_is_read_only_from_the_text_that_it_is_given_as(text: str) -> None:
    read = keys.upload_id_bytes(text)
    assert read is None or keys.upload_id_text(read) == text
    assert keys.upload_id_bytes(keys.upload_id_text(ID)) == ID


@pytest.mark.parametrize(
    "text", ["", "0" * 31, "0" * 33, "A" * 32, " " * 32, "00 " * 10 + "00", "é" * 32, "\u0660" * 32]
)
def test_text_that_is_no_upload_id_gives_none(text: str) -> None:
    assert keys.upload_id_bytes(text) is None


def test_a_key_sorts_before_those_that_it_is_a_prefix_of() -> None:
    names = ["foo", "foo\0bar", "foo/", "foo/bar", "foo0"]
    assert sorted(names, key=lambda name: keys.object_key(BUCKET, name)) == names
    assert sorted(names, key=lambda name: keys.upload_key(BUCKET, name, b"\xff" * 16)) == names


def test_a_key_of_exactly_the_prefix_length_is_short_and_comes_before_its_group() -> None:
    short, long = "k" * keys.PREFIX_BYTES, "k" * (keys.PREFIX_BYTES + 1)
    assert not keys.is_long_object(keys.object_key(BUCKET, short))
    assert keys.is_long_object(keys.object_key(BUCKET, long))
    assert not inside(keys.object_key(BUCKET, short), keys.object_group(keys.object_key(BUCKET, long)))


def test_ids_are_in_the_order_of_the_time_they_were_made() -> None:
    early, late = keys.time_ordered_id(1, b"\xff" * 8), keys.time_ordered_id(2, b"\x00" * 8)
    assert early < late
    assert len(early) == keys.ID_BYTES
    with pytest.raises(ValueError, match="8 bytes"):
        keys.time_ordered_id(1, b"\x00")


def test_ids_of_a_wrong_length_are_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        keys.upload_key(BUCKET, "k", b"short")
    with pytest.raises(ValueError, match="16 bytes"):
        keys.payload_key(b"short")


def test_the_last_bucket_has_no_upper_bound() -> None:
    assert keys.object_range(b"\xff" * 8) == (b"\xff" * 8, None)
    assert keys.upload_range(b"\xff" * 8) == (b"\xff" * 8, None)
