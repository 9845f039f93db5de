import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.request import Scope, Target
from s3verbs.gateway.operations.paging import (
    continuation_marker,
    continuation_token,
    encoding_type,
    number_marker,
    page_limit,
)

markers = st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=40)


def target(**query: str) -> Target:
    pairs = tuple((name.replace("_", "-"), value) for name, value in query.items())
    return Target("/b", "/b", pairs, "b", "", Scope.BUCKET)


@given(markers)
def test_a_token_gives_its_marker_back_and_is_safe_in_xml_and_urls(marker: str) -> None:
    token = continuation_token("objects", marker)
    assert continuation_marker("objects", token) == marker
    assert token
    assert set(token) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=")


@given(markers)
def test_a_token_of_one_listing_is_refused_by_another(marker: str) -> None:
    with pytest.raises(S3Error, match="The continuation token provided is incorrect"):
        continuation_marker("buckets", continuation_token("objects", marker))


@given(st.text(max_size=60))
def test_a_made_up_token_is_refused(token: str) -> None:
    # 32 bits of checksum: a random text is a token once in four billion.
    with pytest.raises(S3Error) as caught:
        continuation_marker("objects", token)
    assert caught.value.code == "InvalidArgument"


@given(markers.filter(bool), st.data())
def test_a_changed_token_is_refused(marker: str, data: st.DataObject) -> None:
    token = continuation_token("objects", marker)
    position = data.draw(st.integers(0, len(token) - 1))
    letter = data.draw(st.sampled_from("ABCxyz019-_="))
    changed = token[:position] + letter + token[position + 1 :]
    if changed != token:
        with pytest.raises(S3Error):
            continuation_marker("objects", changed)


@pytest.mark.parametrize(
    ("value", "limit"),
    [("0", 0), ("1", 1), ("1000", 1000), ("1001", 1000), ("2147483647", 1000), ("", 1000), ("007", 7)],
)
def test_page_limit_is_clamped(value: str, limit: int) -> None:
    assert page_limit(target(max_keys=value), "max-keys") == limit


def test_page_limit_defaults_to_the_maximum() -> None:
    assert page_limit(target(), "max-keys") == 1000
    assert page_limit(target(), "max-buckets", maximum=10_000) == 10_000


@pytest.mark.parametrize("value", ["-1", "blah", "1.5", "2147483648", "٣", "+5", " 5", "1_0", "9" * 30, "-"])
def test_what_is_no_page_size_is_refused_by_name(value: str) -> None:
    with pytest.raises(S3Error) as caught:
        page_limit(target(max_keys=value), "max-keys")
    assert caught.value.code == "InvalidArgument"
    assert caught.value.details == {"ArgumentName": "max-keys", "ArgumentValue": value}


def test_number_marker_starts_at_zero() -> None:
    assert number_marker(target(), "part-number-marker") == 0
    assert number_marker(target(part_number_marker="12"), "part-number-marker") == 12


def test_only_url_is_an_encoding() -> None:
    assert encoding_type(target()) == ""
    assert encoding_type(target(encoding_type="url")) == "url"
    with pytest.raises(S3Error, match="Invalid Encoding Method specified in Request"):
        encoding_type(target(encoding_type="base64"))
