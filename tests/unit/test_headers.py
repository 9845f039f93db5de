"""Header folding and user metadata."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http import headers
from s3verbs.gateway.http.headers import decode_metadata, encode_metadata, fold_headers, user_metadata


def code_of(*raw: tuple[bytes, bytes]) -> str:
    with pytest.raises(S3Error) as error:
        fold_headers(raw)
    return error.value.code


def test_names_are_lower_case_and_values_stripped() -> None:
    folded = fold_headers([(b"Host", b" a:1\t"), (b"X-Amz-Meta-A", b"b  c"), (b"empty", b"  ")])
    assert folded == {"host": "a:1", "x-amz-meta-a": "b  c", "empty": ""}


def test_repeated_fields_are_joined_in_order() -> None:
    assert fold_headers([(b"X-A", b"1"), (b"b", b"2"), (b"x-a", b"3")]) == {"x-a": "1,3", "b": "2"}


@pytest.mark.parametrize("name", [b"Content-Length", b"Host", b"Authorization", b"x-amz-content-sha256", b"X-Amz-Date"])
def test_a_single_field_may_be_repeated_only_with_the_same_value(name: bytes) -> None:
    assert fold_headers([(name, b"7"), (name.lower(), b"7")]) == {name.decode().lower(): "7"}
    assert code_of((name, b"7"), (name, b"8")) == "BadRequest"


@pytest.mark.parametrize("value", [b"a\0b", b"a\rb", b"a\nb", b"a\r\n b", b"\x01", b"a\x7f", b"\x1b[0m"])
def test_control_characters_in_values_are_refused(value: bytes) -> None:
    assert code_of((b"x-amz-meta-a", value)) == "BadRequest"


def test_a_tab_inside_a_value_and_obs_text_are_kept() -> None:
    assert fold_headers([(b"a", b"b\tc")]) == {"a": "b\tc"}
    assert fold_headers([(b"a", "ü\u2028".encode())]) == {"a": "ü\u2028"}
    assert fold_headers([(b"a", b"\xe9")])["a"].encode("utf-8", "surrogateescape") == b"\xe9"


@pytest.mark.parametrize("name", [b"", b"a b", b"a:", b"a\0", "ü".encode(), b"a\n", b"(a)"])
def test_a_name_that_is_no_token_is_refused(name: bytes) -> None:
    assert code_of((name, b"v")) == "BadRequest"


@pytest.mark.parametrize("value", [b"", b"-1", b"+1", b"1_0", b"0x10", b"1,1", b"1 1", "१".encode(), b"9" * 20])
def test_a_content_length_that_is_no_number_is_refused(value: bytes) -> None:
    assert code_of((b"content-length", value)) == "BadRequest"


def test_content_length_beside_transfer_encoding_is_refused() -> None:
    assert code_of((b"Content-Length", b"5"), (b"Transfer-Encoding", b"chunked")) == "BadRequest"
    assert code_of((b"Transfer-Encoding", b"gzip, chunked")) == "NotImplemented"
    assert code_of((b"Transfer-Encoding", b"gzip"), (b"Transfer-Encoding", b"chunked")) == "NotImplemented"
    assert fold_headers([(b"Transfer-Encoding", b"Chunked")]) == {"transfer-encoding": "Chunked"}


def test_a_header_section_over_16_kib_is_refused() -> None:
    limit = headers.MAX_HEADER_SECTION
    assert fold_headers([(b"a", b"x" * (limit - 5))])
    with pytest.raises(S3Error) as error:
        fold_headers([(b"a", b"x" * (limit - 4))])
    assert error.value.code == "RequestHeaderSectionTooLarge"
    assert error.value.details == {"MaxSizeAllowed": "16384"}
    assert code_of(*[(b"a", b"")] * 3277) == "RequestHeaderSectionTooLarge"


@settings(max_examples=200, deadline=None)
@given(raw=st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=20)), max_size=6))
def test_any_bytes_fold_or_are_refused_and_nothing_folded_breaks_a_line(raw: list[tuple[bytes, bytes]]) -> None:
    try:
        folded = fold_headers(raw)
    except S3Error as error:
        code = error.code
        assert code == "BadRequest"
    else:
        for name, value in folded.items():
            assert name == name.lower()
            assert not set(value.encode("utf-8", "surrogateescape")) & {0, 10, 13}


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_metadata_survives_encoding(value: str) -> None:
    encoded = encode_metadata(value)
    assert encoded.isascii()
    assert encoded.isprintable()
    assert decode_metadata(encoded) == value


@pytest.mark.parametrize(
    ("sent", "stored", "returned"),
    [
        ("AMAZONS3", "AMAZONS3", "AMAZONS3"),
        ("a  b=?", "a  b=?", "a  b=?"),
        ("ÄMÄZÕÑ S3", "ÄMÄZÕÑ S3", "=?UTF-8?B?w4RNw4Raw5XDkSBTMw==?="),
        ("=?UTF-8?Q?=C3=84M=C3=84Z=C3=95=C3=91_S3?=", "ÄMÄZÕÑ S3", "=?UTF-8?B?w4RNw4Raw5XDkSBTMw==?="),
        ("=?UTF-8?Q?plain?=", "plain", "plain"),
        ("a =?iso-8859-1?Q?=E9_x?= =?utf-8?B?w7w=?=", "a é xü", "=?UTF-8?B?YSDDqSB4w7w=?="),
        ("=?UTF-8?Q?a=0D=0Ab?=", "a\r\nb", "=?UTF-8?B?YQ0KYg==?="),
        ("=?no-such-charset?Q?a?=", "=?no-such-charset?Q?a?=", "=?no-such-charset?Q?a?="),
        ("a?= =?b =?c?=", "a?= =?b =?c?=", "a?= =?b =?c?="),
        ("=?UTF-8?B?!!!?=", "=?UTF-8?B?!!!?=", "=?UTF-8?B?!!!?="),
        (b"caf\xe9".decode("utf-8", "surrogateescape"), "café", "=?UTF-8?B?Y2Fmw6k=?="),
        ("", "", ""),
    ],
)
def test_metadata_in_and_out(sent: str, stored: str, returned: str) -> None:
    assert user_metadata({"x-amz-meta-name": sent, "other": "x"}) == {"name": stored}
    assert encode_metadata(stored) == returned


def test_user_metadata_over_2_kib_is_refused() -> None:
    assert user_metadata({"x-amz-meta-ab": "x" * 2046}) == {"ab": "x" * 2046}
    with pytest.raises(S3Error) as error:
        user_metadata({"x-amz-meta-ab": "ü" * 1023, "x-amz-meta-c": ""})
    assert error.value.code == "MetadataTooLarge"
    assert error.value.details == {"Size": "2049", "MaxSizeAllowed": "2048"}
