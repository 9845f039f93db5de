"""Request targets."""

from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http import target
from s3verbs.gateway.http.request import Scope, Target
from s3verbs.gateway.http.target import parse_query, parse_target, valid_bucket_name

DOMAINS = ("localhost", "s3.example.com", "example.com:9000")

any_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80)


def parse(raw: str, host: str = "127.0.0.1:9000") -> Target:
    return parse_target(raw, host, DOMAINS)


def code_of(raw: str, host: str = "127.0.0.1:9000") -> str:
    with pytest.raises(S3Error) as error:
        parse(raw, host)
    return error.value.code


@settings(max_examples=200, deadline=None)
@given(key=any_text, safe=st.sampled_from(["", "/", "/~", "/~@=+&!$'()*,;:"]))
@example(key="/", safe="/")
@example(key="..", safe="/")
@example(key="%2F", safe="/")
def test_an_encoded_key_comes_back_whatever_was_left_raw(key: str, safe: str) -> None:
    target = parse("/bucket/" + quote(key, safe=safe))
    assert (target.bucket, target.key, target.scope) == ("bucket", key, Scope.OBJECT)
    assert target.canonical_path == "/bucket/" + quote(key, safe="/~")
    hosted = parse("/" + quote(key, safe=safe), "bucket.localhost:9000")
    assert (hosted.bucket, hosted.key) == ("bucket", key)
    assert hosted.canonical_path == "/" + quote(key, safe="/~")


@settings(max_examples=200, deadline=None)
@given(raw=st.text(max_size=60), host=st.text(max_size=30))
def test_any_text_gives_a_target_or_an_s3_error(raw: str, host: str) -> None:
    try:
        target = parse(raw, host)
    except S3Error as error:
        code = error.code
        assert code in ("InvalidURI", "InvalidBucketName", "KeyTooLongError")
    else:
        assert target.canonical_path.isascii()
        target.key.encode()


@pytest.mark.parametrize(
    ("raw", "bucket", "key", "scope"),
    [
        ("/", "", "", Scope.SERVICE),
        ("/?list-type=2", "", "", Scope.SERVICE),
        ("/bucket", "bucket", "", Scope.BUCKET),
        ("/bucket/", "bucket", "", Scope.BUCKET),
        ("/bucket/?location", "bucket", "", Scope.BUCKET),
        ("/bucket//", "bucket", "/", Scope.OBJECT),
        ("/bucket//a//b", "bucket", "/a//b", Scope.OBJECT),
        ("/bucket/a/../b/./c", "bucket", "a/../b/./c", Scope.OBJECT),
        ("/bucket/..", "bucket", "..", Scope.OBJECT),
        ("/bucket/a%2Fb", "bucket", "a/b", Scope.OBJECT),
        ("/bucket/a%252Fb", "bucket", "a%2Fb", Scope.OBJECT),
        ("/bucket/a+b", "bucket", "a+b", Scope.OBJECT),
        ("/bucket/foo/", "bucket", "foo/", Scope.OBJECT),
        ("/bucket/%00", "bucket", "\0", Scope.OBJECT),
        ("/b%75cket/k", "bucket", "k", Scope.OBJECT),
        ("/bucket/a@1=b", "bucket", "a@1=b", Scope.OBJECT),
    ],
)
def test_path_style(raw: str, bucket: str, key: str, scope: Scope) -> None:
    target = parse(raw)
    assert (target.bucket, target.key, target.scope) == (bucket, key, scope)


@pytest.mark.parametrize(
    ("host", "bucket"),
    [
        ("bucket.localhost", "bucket"),
        ("bucket.localhost:9000", "bucket"),
        ("Bucket.LocalHost:1", "bucket"),
        ("bucket.localhost.", "bucket"),
        ("a.b.s3.example.com", "a.b"),
        ("bucket.example.com:9000", "bucket"),
        ("localhost:9000", ""),
        ("s3.example.com", ""),
        ("10.0.0.1:9000", ""),
        ("[::1]:9000", ""),
        ("bucket.other.com", ""),
        ("notlocalhost", ""),
        ("", ""),
    ],
)
def test_a_host_below_a_domain_names_the_bucket_and_every_other_is_path_style(host: str, bucket: str) -> None:
    target = parse("/path/key", host)
    assert (target.bucket, target.key) == ((bucket, "path/key") if bucket else ("path", "key"))


def test_a_double_slash_below_a_hosted_bucket_stays_in_the_key() -> None:
    assert parse("//model/chunk", "bucket.localhost:9000").key == "/model/chunk"


@pytest.mark.parametrize("prefix", ["http://127.0.0.1:9000", "HTTPS://bucket.example.org", "http://[::1]:9000"])
def test_an_absolute_form_is_its_path_and_the_host_header_decides_the_bucket(prefix: str) -> None:
    assert parse(prefix + "/bucket/key?partNumber=1") == parse("/bucket/key?partNumber=1")
    assert parse(prefix).scope is Scope.SERVICE
    assert parse(prefix + "?x-id=ListBuckets").query == (("x-id", "ListBuckets"),)


@pytest.mark.parametrize(
    "raw",
    [
        "*",
        "localhost:9000",
        "",
        "bucket/key",
        "ftp://host/key",
        "http:///key",
        "/bucket/%",
        "/bucket/%4",
        "/bucket/%zz",
        "/bucket/% 1",
        "/bucket/%+1",
        "/bucket/%ff",
        "/bucket/%C3",
        "/bucket/%ED%A0%80",
        "/bucket/%C0%AF",
        "/bucket/a b",
        "/bucket/a\x00b",
        "/bucket/a\tb",
        "/bucket/a#b",
        "/bucket/\udcff",
        "/bucket?prefix=%ff",
        "/bucket?prefix=%",
    ],
)
def test_what_cannot_be_parsed_is_invalid_uri(raw: str) -> None:
    assert code_of(raw) == "InvalidURI"


def test_raw_utf8_is_accepted_and_signed_encoded() -> None:
    target = parse("/bucket/ключ?prefix=ü")
    assert (target.key, target.get("prefix")) == ("ключ", "ü")
    assert target.canonical_path == "/bucket/" + quote("ключ")


def test_a_key_may_have_1024_bytes_and_no_more() -> None:
    assert len(parse("/bucket/" + "k" * 1024).key) == 1024
    assert parse("/bucket/" + "%C3%BC" * 512).key == "ü" * 512
    for raw, size in (("k" * 1025, 1025), ("%C3%BC" * 513, 1026), ("%F0%9F%94%91" * 257, 1028)):
        with pytest.raises(S3Error) as error:
            parse("/bucket/" + raw)
        assert error.value.code == "KeyTooLongError"
        assert error.value.details == {"Size": str(size), "MaxSizeAllowed": "1024"}


@pytest.mark.parametrize(
    "name",
    ["abc", "a" * 63, "my.bucket-1", "1bucket", "a.b.c.d", "1.2.3", "1.2.3.4.5", "kvcache", "favicon.ico", "x--y"],
)
def test_allowed_bucket_names(name: str) -> None:
    assert valid_bucket_name(name)
    assert parse(f"/{name}/k").bucket == name


@pytest.mark.parametrize(
    "name",
    [
        "ab",
        "a" * 64,
        "Bucket",
        "under_score",
        "-abc",
        "abc-",
        ".abc",
        "abc.",
        "a..b",
        "a.-b",
        "a-.b",
        "192.168.1.1",
        "xn--bucket",
        "sthree-bucket",
        "bucket-s3alias",
        "bucket--ol-s3",
        "bucket--x-s3",
        "b%C3%BCcket",
        "buc%2Fket",
        "buc%20ket",
        "bu:ket",
    ],
)
def test_refused_bucket_names(name: str) -> None:
    assert not valid_bucket_name(name)
    assert code_of(f"/{name}/k") == "InvalidBucketName"


def test_an_empty_path_segment_is_no_bucket() -> None:
    assert code_of("//key") == "InvalidBucketName"
    assert code_of("/key", "under_score.localhost") == "InvalidBucketName"


@settings(max_examples=150, deadline=None)
@given(pairs=st.lists(st.tuples(any_text, any_text), max_size=6), plus=st.booleans())
def test_query_pairs_come_back_in_order(pairs: list[tuple[str, str]], plus: bool) -> None:
    raw = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in pairs)
    if plus:
        raw = raw.replace("%20", "+")
    assert parse_query(raw) == tuple(pairs)


def test_query_forms() -> None:
    assert parse_query("uploads") == (("uploads", ""),)
    assert parse_query("a=&&b=c=d&a=2") == (("a", ""), ("b", "c=d"), ("a", "2"))
    assert parse("/bucket?a+b=c+d%2B").query == (("a b", "c d+"),)
    assert parse("/bucket?").query == ()
    target = parse("/bucket?x=1&x=2")
    assert (target.get("x"), target.get("y"), target.has("x"), target.has("y")) == ("1", None, True, False)


def test_names_that_anybody_can_send_are_kept_only_when_they_are_short() -> None:
    for cached in (target._host_bucket, target._valid_bucket_name):
        cached.cache_clear()
    for host, raw in (("x" * 10_000, "/bucket/key"), ("x" * 10_000 + ".localhost", "/bucket/key")):
        assert parse(raw, host).bucket == "bucket"
    assert code_of("/" + "x" * 10_000) == "InvalidBucketName"
    assert target._host_bucket.cache_info().currsize == 1
    assert target._valid_bucket_name.cache_info().currsize == 1
