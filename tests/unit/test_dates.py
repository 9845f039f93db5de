"""HTTP dates."""

import email.utils

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.gateway.http.dates import format_http_date, parse_http_date

MOMENT = 784111777


@pytest.mark.parametrize(
    "text",
    [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        "Sun, 06 Nov 1994 08:49:37 +0000",
        "Sun, 06 Nov 1994 08:49:37 -0000",
    ],
)
def test_the_three_forms(text: str) -> None:
    assert parse_http_date(text) == MOMENT


def test_two_digit_years() -> None:
    assert format_http_date(parse_http_date("Saturday, 01-Jan-00 00:00:00 GMT") or 0).endswith("2000 00:00:00 GMT")
    assert parse_http_date("Thursday, 01-Jan-70 00:00:00 GMT") == 0


def test_a_leap_second_is_the_second_before() -> None:
    assert parse_http_date("Sat, 31 Dec 2016 23:59:60 GMT") == parse_http_date("Sat, 31 Dec 2016 23:59:59 GMT")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "0",
        "Sun, 06 Nov 1994 08:49:37",
        "Sun, 06 Nov 1994 08:49:37 PST",
        "Sun, 31 Feb 1994 08:49:37 GMT",
        "Sun, 06 Foo 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 24:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:61 GMT",
        "Sun, 06 Nov 1994 08:49 GMT",
        "Sun, 06 Nov +994 08:49:37 GMT",
        "Sun, 06 Nov 0000 08:49:37 GMT",
        "Sun, 06 Nov १९९४ 08:49:37 GMT",
        "Sunday, 06-Nov 08:49:37 GMT",
        "1994-11-06T08:49:37Z",
    ],
)
def test_other_text_is_no_date(text: str) -> None:
    assert parse_http_date(text) is None


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 253402300799))
def test_writing_and_reading_agree_with_each_other_and_with_email(seconds: int) -> None:
    text = format_http_date(seconds)
    assert text == email.utils.formatdate(seconds, usegmt=True)
    assert parse_http_date(text) == seconds


@settings(max_examples=150, deadline=None)
@given(st.text("SunMo, 0619-:GMTov", max_size=32))
def test_any_text_is_a_date_or_none(text: str) -> None:
    assert parse_http_date(text) is None or isinstance(parse_http_date(text), int)
