"""Records survive a round trip, and what is no record of this format is refused."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.storage import records
from s3verbs.storage.errors import StoreUnusable
from s3verbs.storage.metadata import Table
from s3verbs.storage.model import (
    NULL_VERSION,
    Attributes,
    Bucket,
    Checksum,
    Durability,
    FilePayload,
    InlinePayload,
    Part,
    Upload,
    Version,
)

ASCII = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)
KEY = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
ANY_TEXT = st.text(max_size=20)
U64 = st.integers(0, 2**64 - 1)
IDS = st.binary(min_size=16, max_size=16)
ETAG = st.one_of(st.from_regex(r"[0-9a-f]{32}", fullmatch=True), ASCII, st.just("ABCDEF" + "0" * 26))
CHECKSUM = st.none() | st.builds(
    Checksum,
    st.sampled_from(["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"]),
    st.sampled_from(["FULL_OBJECT", "COMPOSITE"]),
    ASCII,
)
FILE = st.builds(FilePayload, IDS, st.integers(0, 65535), U64, U64)
PAYLOAD = FILE | st.builds(InlinePayload, IDS, st.integers(0, 16384))
PART = st.builds(Part, st.integers(0, 10000), PAYLOAD, ETAG, U64, CHECKSUM, st.integers(0, 2**32 - 1))
MAP = st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=4)
ATTRIBUTES = st.builds(Attributes, MAP | st.just({"x-amz-storage-class": "GLACIER"}), MAP, MAP)
VERSION = st.builds(
    Version,
    key=KEY,
    modified_ns=U64,
    size=U64,
    etag=ETAG,
    parts=st.lists(PART, max_size=4).map(tuple),
    multipart=st.booleans(),
    version_id=st.just(NULL_VERSION) | ASCII.filter(bool),
    attributes=ATTRIBUTES,
    checksum=CHECKSUM,
    epoch=U64,
)
BUCKET = st.builds(
    Bucket, ASCII, st.binary(min_size=8, max_size=8), U64, ANY_TEXT, st.sampled_from(Durability), ASCII, MAP
)
UPLOAD = st.builds(Upload, KEY, ASCII, U64, ANY_TEXT, ATTRIBUTES, ASCII, ASCII)

Decoder = Callable[[bytes], object]
SAMPLES: list[tuple[Decoder, bytes]] = [
    (
        records.decode_version,
        records.encode_version(
            Version(
                "k", 1, 2, "e", (Part(1, FilePayload(bytes(16), 0, 2, 3), "e", 1),), attributes=Attributes({"a": "b"})
            )
        ),
    ),
    (
        records.decode_version,
        records.encode_version(Version("k", 1, 2, "e-1", (Part(1, InlinePayload(bytes(16), 2), "x", 1),))),
    ),
    (records.decode_listed, records.encode_version(Version("k", 1, 2, "e", ()))),
    (records.decode_part, records.encode_part(Part(1, FilePayload(bytes(16), 0, 2, 3), "e", 1))),
    (records.decode_bucket, records.encode_bucket(Bucket("b", bytes(8), 1, "me"))),
    (records.decode_upload, records.encode_upload(Upload("k", "id", 1, "me"))),
    (records.decode_payloads, records.encode_payloads([FilePayload(bytes(16), 0, 2, 3)])),
    (records.decode_owner, records.encode_owner(records.PayloadOwner(Table.OBJECTS, b"key"))),
]


@settings(deadline=None, max_examples=200)
@given(VERSION)
def test_a_version_survives_its_record(version: Version) -> None:
    assert records.decode_version(records.encode_version(version)) == version


@settings(deadline=None, max_examples=200)
@given(KEY, U64, U64, ETAG, CHECKSUM, PAYLOAD, ATTRIBUTES)
def test_a_plain_object_survives_its_record_and_takes_no_part_entry(
    key: str,
    modified_ns: int,
    size: int,
    etag: str,
    checksum: Checksum | None,
    payload: FilePayload,
    attributes: Attributes,
) -> None:
    part = Part(1, payload, etag, modified_ns, checksum)
    plain = Version(key, modified_ns, size, etag, (part,), attributes=attributes, checksum=checksum)
    record = records.encode_version(plain)
    assert records.decode_version(record) == plain
    two = Version(key, modified_ns, size, etag, (part, part), attributes=attributes, checksum=checksum)
    assert len(record) < len(records.encode_version(two)) - 62


@settings(deadline=None, max_examples=200)
@given(VERSION)
def test_a_listed_version_shows_what_listings_show(version: Version) -> None:
    listed = records.decode_listed(records.encode_version(version))
    assert listed.parts == ()
    for name in ("key", "modified_ns", "size", "etag", "multipart", "version_id", "checksum", "epoch"):
        assert getattr(listed, name) == getattr(version, name)
    storage_class = version.attributes.headers.get("x-amz-storage-class")
    assert listed.attributes.headers.get("x-amz-storage-class") == storage_class


@settings(deadline=None)
@given(PART)
def test_a_part_survives_its_record(part: Part) -> None:
    assert records.decode_part(records.encode_part(part)) == part


@settings(deadline=None)
@given(BUCKET)
def test_a_bucket_survives_its_record(bucket: Bucket) -> None:
    assert records.decode_bucket(records.encode_bucket(bucket)) == bucket


@settings(deadline=None)
@given(UPLOAD)
def test_an_upload_survives_its_record(upload: Upload) -> None:
    assert records.decode_upload(records.encode_upload(upload)) == upload


@settings(deadline=None)
@given(st.lists(FILE, max_size=5))
def test_payload_lists_keep_their_order(payloads: list[FilePayload]) -> None:
    assert records.decode_payloads(records.encode_payloads(payloads)) == payloads


@settings(deadline=None)
@given(st.sampled_from(Table), st.binary(max_size=511))
def test_a_payload_owner_survives_its_record(table: Table, key: bytes) -> None:
    owner = records.PayloadOwner(table, key)
    assert records.decode_owner(records.encode_owner(owner)) == owner


def test_ten_thousand_parts_survive_their_record() -> None:
    checksum = Checksum("CRC64NVME", "FULL_OBJECT", "AAAAAAAAAAA=")
    parts = tuple(
        Part(number, FilePayload(number.to_bytes(16), 1, 5 << 20, number), f"{number:032x}", number, checksum)
        for number in range(1, 10_001)
    )
    version = Version("k", 1, 10_000 * (5 << 20), f"{7:032x}-10000", parts, multipart=True)
    record = records.encode_version(version)
    assert len(record) < 1 << 20
    assert records.decode_version(record) == version


def test_inline_bytes_are_not_in_the_record() -> None:
    data = b"these bytes live in another table"
    part = Part(1, InlinePayload(bytes(16), len(data), data), "e", 1)
    record = records.encode_version(Version("k", 1, len(data), "e", (part,)))
    assert data not in record
    assert records.decode_version(record).parts[0].payload == InlinePayload(bytes(16), len(data))


def test_equal_attributes_and_buckets_are_decoded_once() -> None:
    attributes = Attributes({"content-type": "text/plain"})
    first = records.decode_version(records.encode_version(Version("a", 1, 2, "e", (), attributes=attributes)))
    second = records.decode_version(records.encode_version(Version("b", 1, 2, "e", (), attributes=attributes)))
    assert first.attributes is second.attributes
    record = records.encode_bucket(Bucket("b", bytes(8), 1, "me"))
    assert records.decode_bucket(record) is records.decode_bucket(bytes(record))


@pytest.mark.parametrize(("decode", "record"), SAMPLES)
def test_another_format_is_refused(decode: Decoder, record: bytes) -> None:
    with pytest.raises(StoreUnusable, match="format 2"):
        decode(b"\x02" + record[1:])


@pytest.mark.parametrize(("decode", "record"), SAMPLES[:-1])
def test_a_record_that_is_cut_off_is_refused(decode: Decoder, record: bytes) -> None:
    for size in range(len(record)):
        if decode is records.decode_payloads and size == 1:
            continue  # the record of an empty list
        if decode is records.decode_listed and size >= 36:
            continue  # a listing does not look at the end
        with pytest.raises(StoreUnusable, match="damaged"):
            decode(record[:size])


@pytest.mark.parametrize(
    "version",
    [
        Version("k", 1, 2, "e", (), checksum=Checksum("MD4", "FULL_OBJECT", "x")),
        Version("k", 1, 2, "e" * 256, ()),
        Version("k" * 65536, 1, 2, "e", ()),
        Version("k", -1, 2, "e", ()),
        Version("k", 1, 2, "é", ()),
        Version("k", 1, 2, "e", (Part(65536, InlinePayload(bytes(16), 1), "e", 1),)),
    ],
)
def test_a_version_that_has_no_record_is_refused(version: Version) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  UnicodeEncodeError is one too.
        records.encode_version(version)


@settings(max_examples=100, deadline=None)
@given(st.lists(PART, max_size=6))
def test_a_run_of_part_records_is_each_of_them(parts: list[Part]) -> None:
    encoded = [records.encode_part(part) for part in parts]
    assert records.decode_part_run(encoded) == [records.decode_part(record) for record in encoded]


def test_a_run_with_a_damaged_part_is_refused() -> None:
    whole = records.encode_part(Part(1, FilePayload(bytes(16), 0, 2, 3), "e", 1))
    for damaged in (b"", whole[:-1], whole[:30], whole + b"x", b"\x02" + whole[1:]):
        with pytest.raises(StoreUnusable):
            records.decode_part_run([whole, damaged, whole])
