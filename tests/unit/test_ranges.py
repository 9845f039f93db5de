"""The Range header."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.ranges import ByteRange, parse_range


@pytest.mark.parametrize(
    ("value", "start", "length"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=0-9", 0, 10),
        ("bytes=3-5", 3, 3),
        ("bytes=9-", 9, 1),
        ("bytes=0-", 0, 10),
        ("bytes=5-99", 5, 5),
        ("bytes=5-" + "9" * 10_000, 5, 5),
        ("bytes=-1", 9, 1),
        ("bytes=-10", 0, 10),
        ("bytes=-11", 0, 10),
        ("bytes=-" + "9" * 10_000, 0, 10),
        ("bytes=0003-0005", 3, 3),
        ("Bytes=1-2", 1, 2),
        ("bytes= 1-2 ", 1, 2),
    ],
)
def test_a_range_inside_ten_bytes(value: str, start: int, length: int) -> None:
    assert parse_range(value, 10) == ByteRange(start, length)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=a-b",
        "bytes=1",
        "bytes=5-4",
        "bytes=" + "9" * 5000 + "-1",
        "bytes=1-2,4-5",
        "bytes=1-2,",
        "bytes=--1",
        "bytes=1--2",
        "bytes=1-2-3",
        "bytes=+1-2",
        "bytes=1_0-2_0",
        "bytes=0x1-0x2",
        "bytes=1.5-2",
        "bytes=१-२",
        "bytes=1 -2",
        "items=0-1",
        "0-1",
    ],
)
def test_what_is_no_single_byte_range_is_ignored(value: str | None) -> None:
    assert parse_range(value, 10) is None


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("bytes=10-", 10),
        ("bytes=10-20", 10),
        ("bytes=" + "9" * 10_000 + "-", 10),
        ("bytes=-0", 10),
        ("bytes=-000", 10),
        ("bytes=0-", 0),
        ("bytes=0-0", 0),
        ("bytes=-5", 0),
    ],
)
def test_a_start_outside_the_object_is_not_satisfiable(value: str, size: int) -> None:
    with pytest.raises(S3Error) as error:
        parse_range(value, size)
    assert (error.value.code, error.value.status) == ("InvalidRange", 416)
    assert error.value.details == {"RangeRequested": value, "ActualObjectSize": str(size)}
    assert error.value.headers == {"Content-Range": f"bytes */{size}"}


@settings(max_examples=200, deadline=None)
@given(first=st.integers(0, 30), last=st.integers(0, 30), size=st.integers(0, 20))
def test_a_range_gives_what_slicing_gives(first: int, last: int, size: int) -> None:
    data = bytes(range(size))
    for value, expected in (
        (f"bytes={first}-{last}", data[first : last + 1]),
        (f"bytes={first}-", data[first:]),
        (f"bytes=-{last}", data[-last:] if last else b""),
    ):
        try:
            found = parse_range(value, size)
        except S3Error:
            assert expected == b""
            continue
        if found is None:
            assert last < first
        else:
            assert data[found.start : found.start + found.length] == expected
            assert found.length == len(expected) > 0
            assert found.last == found.start + len(expected) - 1


@settings(max_examples=200, deadline=None)
@given(value=st.one_of(st.text(max_size=20), st.text("bytes=-,0123456789 ", max_size=20).map("bytes=".__add__)))
def test_any_text_is_a_range_inside_the_object_or_none_or_not_satisfiable(value: str) -> None:
    try:
        found = parse_range(value, 100)
    except S3Error as error:
        code = error.code
        assert code == "InvalidRange"
    else:
        assert found is None or (0 <= found.start < 100 and 0 < found.length <= 100 - found.start)
