"""The Authorization header and the X-Amz-* query parameters."""

from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.gateway.auth.credential import (
    Signing,
    from_headers,
    from_query,
    parse_timestamp,
    uses_query_authentication,
)
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.target import parse_target

DATE = "20130524T000000Z"
SECONDS = 1369353600
CREDENTIAL = "AKID/20130524/us-east-1/s3/aws4_request"
GOOD = f"AWS4-HMAC-SHA256 Credential={CREDENTIAL}, SignedHeaders=host;x-amz-date, Signature=abc"
QUERY = {
    "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
    "X-Amz-Credential": CREDENTIAL,
    "X-Amz-Date": DATE,
    "X-Amz-Expires": "60",
    "X-Amz-SignedHeaders": "host",
    "X-Amz-Signature": "abc",
}


def header(authorization: str, **more: str) -> Signing:
    return from_headers(
        {"authorization": authorization, "x-amz-date": DATE}
        | {name.replace("_", "-"): value for name, value in more.items()}
    )


def query(**changes: str | None) -> Signing:
    parameters = QUERY | {"X-Amz-" + name: value for name, value in changes.items()}
    text = "&".join(f"{name}={quote(value)}" for name, value in parameters.items() if value is not None)
    return from_query(parse_target("/bucket/key?" + text, "h", ()))


@pytest.mark.parametrize(
    "authorization",
    [
        GOOD,
        GOOD.replace(", ", ","),
        GOOD.replace(", ", " ,  "),
        f"AWS4-HMAC-SHA256 Signature=abc,SignedHeaders=X-Amz-Date;Host,Credential={CREDENTIAL}",
    ],
)
def test_an_authorization_header(authorization: str) -> None:
    signing = header(authorization)
    assert (signing.credential.access_key, signing.credential.date, signing.credential.region) == (
        "AKID",
        "20130524",
        "us-east-1",
    )
    assert signing.credential.scope == "20130524/us-east-1/s3/aws4_request"
    assert signing.signed_headers == ("host", "x-amz-date")
    assert (signing.signature, signing.timestamp, signing.signed_at) == ("abc", DATE, SECONDS)
    assert (signing.expires, signing.security_token) == (None, "")


def test_an_access_key_may_hold_slashes_and_equals_signs() -> None:
    assert header(GOOD.replace("AKID", "a/b=c")).credential.access_key == "a/b=c"


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        (CREDENTIAL, "", "Credential is mal-formed"),
        (CREDENTIAL, "AKID", "Credential is mal-formed"),
        ("us-east-1", "us-\udcff", "Credential is mal-formed"),
        (CREDENTIAL, CREDENTIAL[4:], "Credential is mal-formed"),
        ("20130524/", "2013052/", 'incorrect date format "2013052"'),
        ("20130524/", "20131324/", 'incorrect date format "20131324"'),
        ("20130524/", "20130525/", 'Invalid credential date "20130525"'),
        ("/s3/", "/ec2/", 'incorrect service "ec2"'),
        ("aws4_request", "aws5_request", 'incorrect terminal "aws5_request"'),
        ("Signature=abc", "", "requires three components"),
        ("Signature=abc", "Signature=", "requires three components"),
        ("SignedHeaders=host;x-amz-date, ", "", "requires three components"),
        ("SignedHeaders=host;x-amz-date", "SignedHeaders=;", "requires three components"),
        (f"Credential={CREDENTIAL}, ", "", "requires three components"),
    ],
)
def test_a_malformed_authorization_header(old: str, new: str, part: str) -> None:
    with pytest.raises(S3Error) as error:
        header(GOOD.replace(old, new))
    assert error.value.code == "AuthorizationHeaderMalformed"
    assert part in error.value.message
    assert error.value.message.startswith("The authorization header is malformed; ")


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        ("AWS AKID:c2lnbmF0dXJl", "InvalidRequest"),
        ("AWS4-ECDSA-P256-SHA256 Credential=x", "NotImplemented"),
        ("Basic dXNlcjpwYXNz", "InvalidArgument"),
        ("Bearer x", "InvalidArgument"),
        ("AWS HAHAHA", "InvalidArgument"),
        ("AWS4-HMAC-SHA256", "AuthorizationHeaderMalformed"),
    ],
)
def test_other_kinds_of_authorization(authorization: str, code: str) -> None:
    with pytest.raises(S3Error) as error:
        header(authorization)
    assert error.value.code == code


@pytest.mark.parametrize("date", ["Fri, 24 May 2013 00:00:00 GMT", "Friday, 24-May-13 00:00:00 GMT", DATE])
def test_the_date_header_stands_in_for_x_amz_date(date: str) -> None:
    signing = from_headers({"authorization": GOOD, "date": date})
    assert (signing.timestamp, signing.signed_at) == (DATE, SECONDS)


@pytest.mark.parametrize(
    "headers", [{}, {"date": "x"}, {"x-amz-date": "2013-05-24T00:00:00Z"}, {"x-amz-date": "20130524"}]
)
def test_no_valid_date_is_access_denied(headers: dict[str, str]) -> None:
    with pytest.raises(S3Error) as error:
        from_headers({"authorization": GOOD} | headers)
    assert error.value.code == "AccessDenied"
    assert "valid Date" in error.value.message


def test_a_presigned_query() -> None:
    signing = query(**{"Security-Token": "token"})
    assert (signing.signature, signing.timestamp, signing.expires) == ("abc", DATE, 60)
    assert (signing.signed_headers, signing.security_token) == (("host",), "token")


@pytest.mark.parametrize("name", ["Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature"])
def test_a_presigned_query_needs_every_parameter(name: str) -> None:
    for value in (None, ""):
        with pytest.raises(S3Error) as error:
            query(**{name: value})
        assert error.value.code == "AuthorizationQueryParametersError"
        assert "requires the X-Amz-Algorithm" in error.value.message


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("Algorithm", "AWS4", "X-Amz-Algorithm only supports"),
        ("Credential", "AKID", "Error parsing the X-Amz-Credential parameter; the Credential is mal-formed"),
        ("Credential", CREDENTIAL.replace("s3", "ec2"), 'incorrect service "ec2"'),
        ("Date", "yesterday", "ISO8601 Long Format"),
        ("Date", "20130525T000000Z", "not the same as X-Amz-Date"),
        ("Expires", "soon", "should be a number"),
        ("Expires", "1.5", "should be a number"),
        ("Expires", "१", "should be a number"),
        ("Expires", "-", "should be a number"),
        ("Expires", "-1", "must be non-negative"),
        ("Expires", "604801", "less than a week"),
        ("Expires", "9" * 10_000, "less than a week"),
    ],
)
def test_a_wrong_presigned_query(name: str, value: str, part: str) -> None:
    with pytest.raises(S3Error) as error:
        query(**{name: value})
    assert error.value.code == "AuthorizationQueryParametersError"
    assert part in error.value.message


@pytest.mark.parametrize(("value", "seconds"), [("0", 0), ("1", 1), ("604800", 604800), ("0060", 60)])
def test_expires_up_to_seven_days(value: str, seconds: int) -> None:
    assert query(Expires=value).expires == seconds


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("AWSAccessKeyId=a&Signature=b&Expires=1", "InvalidRequest"),
        ("X-Amz-Algorithm=AWS4-ECDSA-P256-SHA256&X-Amz-Signature=x", "NotImplemented"),
    ],
)
def test_other_kinds_of_presigned_queries(text: str, code: str) -> None:
    target = parse_target("/bucket/key?" + text, "h", ())
    assert uses_query_authentication(target)
    with pytest.raises(S3Error) as error:
        from_query(target)
    assert error.value.code == code


def test_an_ordinary_query_is_no_authentication() -> None:
    assert not uses_query_authentication(parse_target("/bucket?prefix=Signature&list-type=2&Expires=1", "h", ()))


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.text(max_size=60), st.text("AWS4-HMCSHA256 ,=/;CredntialgurSh", max_size=60).map("AWS4-HMAC-SHA256 ".__add__)
    )
)
def test_any_authorization_is_read_or_refused_with_an_s3_error(value: str) -> None:
    with pytest.raises(S3Error):
        header(value)


@settings(max_examples=100, deadline=None)
@given(st.text("0123456789TZ-: ", max_size=18))
def test_any_text_is_a_timestamp_or_none(text: str) -> None:
    assert parse_timestamp(text) is None or len(text) == 16


def test_timestamps() -> None:
    assert parse_timestamp(DATE) == SECONDS
    for wrong in ("20130230T000000Z", "20130524T240000Z", "20130524T0000000", "20130524t000000Z", "२0130524T000000Z"):
        assert parse_timestamp(wrong) is None
