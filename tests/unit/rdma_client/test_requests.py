"""Arguments become headers, or ValueError: never a header that the caller did not mean."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from s3verbs.rdma.client.requests import checksum_headers, get_headers, put_headers, range_header, split_range

LOADED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure."""

NO_CONDITIONS = {"if_match": None, "if_none_match": None}


@LOADED
@given(st.text(max_size=20), st.text(max_size=20))
def test_metadata_is_a_header_of_one_line_or_refused(name: str, value: str) -> None:
    try:
        found = put_headers(metadata={name: value}, content_type=None, headers=None, **NO_CONDITIONS)
    except ValueError:
        return
    assert found == {f"x-amz-meta-{name.lower()}": value}
    line = f"x-amz-meta-{name}: {value}"
    assert line.isascii()
    assert line.isprintable()


@pytest.mark.parametrize(
    "name",
    [
        *("Authorization", "host", "Content-Length", "Range", "x-amz-date", "X-Amz-Rdma-Token", "x-amz-rdma-agent"),
        *("x-rdma-info", "If-Match", "Transfer-Encoding", "Expect", "x-amz-content-sha256", "x-amz-security-token"),
    ],
)
def test_headers_that_are_the_clients_own_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="own"):
        put_headers(metadata=None, content_type=None, headers={name: "x"}, **NO_CONDITIONS)
    with pytest.raises(ValueError, match="own"):
        get_headers(selected=None, verify=False, headers={name: "x"}, **NO_CONDITIONS)


@LOADED
@given(st.integers(0, 1 << 50), st.none() | st.integers(1, 1 << 50))
def test_ranges_come_back_as_they_were_given(start: int, size: int | None) -> None:
    selected = (start, None if size is None else start + size)
    assert split_range(selected) == selected
    assert split_range(range_header(selected)) == selected


@pytest.mark.parametrize("wrong", [(5, 5), (5, 4), (-1, 4), "bytes=1-2,4-5", "bytes=", "items=1-2", "1-2", "bytes=-"])
def test_ranges_that_select_nothing_or_several_are_refused(wrong: tuple[int, int] | str) -> None:
    with pytest.raises(ValueError, match="range"):
        range_header(wrong)


def test_a_suffix_has_no_known_start() -> None:
    assert split_range("bytes=-5") is None
    assert split_range(None) == (0, None)


def test_checksums_of_the_caller() -> None:
    assert checksum_headers({"sha256": "abc="}) == {"x-amz-checksum-sha256": "abc="}
    with pytest.raises(ValueError, match="ASCII"):
        checksum_headers({"sha256": "a\r\nb"})
