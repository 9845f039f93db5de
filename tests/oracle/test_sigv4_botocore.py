"""Requests that botocore signs must verify, and must stop verifying when anything signed is changed."""

import calendar
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

import botocore.session
import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest, AWSResponse
from botocore.config import Config
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.gateway.auth.access_keys import AccessKey, root_key
from s3verbs.gateway.auth.authenticator import Authenticator, Verified
from s3verbs.gateway.auth.payload_hash import PayloadKind
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.aws_chunked import AwsChunkedDecoder
from s3verbs.gateway.http.headers import fold_headers
from s3verbs.gateway.http.request import S3Request
from s3verbs.gateway.http.target import parse_target

ACCESS_KEY = "AKIDEXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
REGION = "eu-central-1"

HOSTILE_KEYS = [
    "plain",
    "a=b",
    "a+b",
    "a@b",
    "a%b",
    "a%2Fb",
    "a%20b",
    "100%",
    "~tilde",
    "with space",
    "//double//slash//",
    "./dot",
    "../up/../../etc",
    "a/../b/./c",
    "semi;colon",
    "quote'paren(x)!*",
    "brackets[0]{1}",
    "query?x=y&z",
    "hash#tag",
    'double"quote',
    "back\\slash",
    "comma,colon:",
    "dollar$amp&",
    "trailing/",
    "ümläut/ключ/鍵",
    "emoji-\U0001f511/\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "meta-llama_Llama-3.1-8B@1@0@ab12cd@torch.bfloat16",
    "tab\tand\nnewline",
    "\u00e9 and e\u0301",
    "<xml>",
    "caret^pipe|tick`",
]

keys = st.one_of(
    st.sampled_from(HOSTILE_KEYS),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=60),
    st.text("=+@%~ /.;'()&?#é\U0001f511a", min_size=1, max_size=30),
)


class OneKey:
    """Stands in for the table of access keys."""

    def __init__(self, key: AccessKey) -> None:
        self._key = key

    def get(self, access_key: str) -> AccessKey | None:
        return self._key if access_key == self._key.access_key else None


def authenticator(now: float | None = None) -> Authenticator:
    moment = int((time.time() if now is None else now) * 1e9)
    keys: Any = OneKey(root_key(ACCESS_KEY, SECRET))
    return Authenticator(keys, clock=lambda: moment, region=REGION, enforce_region=True)


def received(method: str, url: str, headers: Any, domains: tuple[str, ...] = ("localhost",)) -> S3Request:
    """The request as the server reads it from the wire."""
    parts = urlsplit(url)
    raw = [
        (name.encode("latin-1"), value if isinstance(value, bytes) else str(value).encode("latin-1"))
        for name, value in headers.items()
    ]
    if not any(name.lower() == b"host" for name, _ in raw):
        raw.append((b"Host", parts.netloc.encode("ascii")))
    folded = fold_headers(raw)
    target = url[len(parts.scheme) + 3 + len(parts.netloc) :]
    return S3Request(method, parse_target(target, folded["host"], domains), folded, folded["host"], "127.0.0.1", "id")


def make_client(scheme: str, style: str) -> Any:
    session = botocore.session.Session()
    session.set_credentials(ACCESS_KEY, SECRET)
    return session.create_client(
        "s3",
        region_name=REGION,
        endpoint_url=f"{scheme}://localhost:9000",
        config=Config(s3={"addressing_style": style}, signature_version="s3v4"),
    )


CLIENTS = {(scheme, style): make_client(scheme, style) for scheme in ("http", "https") for style in ("path", "virtual")}


@contextmanager
def sent_by(client: Any) -> Iterator[list[Any]]:
    """Requests go into the list instead of the network."""
    sent: list[Any] = []

    def capture(request: Any, **_: Any) -> AWSResponse:
        sent.append(request)

        class Raw:
            def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
                yield b""

            def read(self, *_: Any) -> bytes:
                return b""

        return AWSResponse(request.url, 200, {}, Raw())

    client.meta.events.register("before-send.s3", capture)
    try:
        yield sent
    finally:
        client.meta.events.unregister("before-send.s3", capture)


def verify(request: S3Request) -> Verified:
    return authenticator().authenticate(request)


@pytest.mark.parametrize("style", ["path", "virtual"])
@settings(max_examples=120, deadline=None)
@given(key=keys)
def test_a_client_s_get_is_verified_and_its_key_arrives(style: str, key: str) -> None:
    client = CLIENTS["http", style]
    with sent_by(client) as sent:
        client.head_object(Bucket="bucket", Key=key, IfMatch='"x"')
    request = received("HEAD", sent[0].url, sent[0].headers)
    assert (request.target.bucket, request.target.key) == ("bucket", key)
    assert verify(request).principal.access_key == ACCESS_KEY


@settings(max_examples=100, deadline=None)
@given(key=keys, body=st.binary(max_size=100), value=st.text("abc =?;,'\"", max_size=20))
def test_a_client_s_put_is_verified_with_the_hash_of_its_body(key: str, body: bytes, value: str) -> None:
    client = CLIENTS["http", "path"]
    with sent_by(client) as sent:
        client.put_object(Bucket="bucket", Key=key, Body=body, Metadata={"note": value.strip()}, Tagging="a=b&c=d%20e")
    request = received("PUT", sent[0].url, sent[0].headers)
    verified = verify(request)
    assert verified.payload.kind is PayloadKind.EXACT
    assert request.target.key == key


@settings(max_examples=100, deadline=None)
@given(prefix=keys, delimiter=st.sampled_from(["", "/", "+", "%", " ", "é"]))
def test_a_client_s_list_is_verified_and_its_prefix_arrives(prefix: str, delimiter: str) -> None:
    client = CLIENTS["http", "path"]
    with sent_by(client) as sent:
        client.list_objects_v2(Bucket="bucket", Prefix=prefix, Delimiter=delimiter, StartAfter=prefix)
    request = received("GET", sent[0].url, sent[0].headers)
    assert request.target.get("prefix") == prefix
    assert request.target.get("delimiter") == delimiter
    assert request.target.get("start-after") == prefix
    verify(request)


@settings(max_examples=100, deadline=None)
@given(key=keys, disposition=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20))
def test_a_client_s_presigned_url_is_verified(key: str, disposition: str) -> None:
    for style in ("path", "virtual"):
        url = CLIENTS["http", style].generate_presigned_url(
            "get_object",
            Params={"Bucket": "bucket", "Key": key, "ResponseContentDisposition": disposition},
            ExpiresIn=604800,
        )
        request = received("GET", url, {})
        assert (request.target.bucket, request.target.key) == ("bucket", key)
        assert request.target.get("response-content-disposition") == disposition
        assert verify(request).payload.kind is PayloadKind.UNSIGNED


def test_a_client_s_trailing_checksum_is_decoded() -> None:
    client = CLIENTS["https", "path"]
    body = bytes(range(256)) * 1000
    with sent_by(client) as sent:
        client.put_object(Bucket="bucket", Key="k", Body=body, ChecksumAlgorithm="CRC32")
    request = received("PUT", sent[0].url, sent[0].headers)
    verified = verify(request)
    assert verified.payload.kind is PayloadKind.STREAMING_UNSIGNED_TRAILER
    decoder = AwsChunkedDecoder(
        decoded_length=int(request.header("x-amz-decoded-content-length")), verifier=verified.verifier, trailer=True
    )
    assert b"".join(decoder.feed(sent[0].body.read())) == body
    decoder.close()
    assert decoder.trailers.keys() == {"x-amz-checksum-crc32"}


def sign_with_botocore(
    method: str, path: str, query: str, headers: dict[str, str], auth: Any
) -> tuple[str, dict[str, str]]:
    """Sign a URL as it stands, whatever is raw in it; gives URL and headers as sent."""
    url = f"http://localhost:9000{path}" + (f"?{query}" if query else "")
    request = AWSRequest(method=method, url=url, headers=headers, data=b"")
    auth(Credentials(ACCESS_KEY, SECRET), "s3", REGION).add_auth(request)
    return request.url, dict(request.headers.items())


@settings(max_examples=150, deadline=None)
@given(key=keys)
def test_characters_sent_raw_and_signed_encoded_are_verified(key: str) -> None:
    # What the C++ SDK does with "@" and "=": the signature is over the encoded path, the path on the wire is not.
    encoded = quote(key, safe="/~")
    raw = quote(key, safe="/~@=$&,:;!*'()+[]^|`{}<>\"\\")
    url, headers = sign_with_botocore("GET", "/bucket/" + encoded, "", {}, S3SigV4Auth)
    request = received("GET", url.replace(encoded, raw), headers)
    assert request.target.key == key
    verify(request)


def test_an_absolute_form_target_is_verified_as_its_path() -> None:
    url, headers = sign_with_botocore("PUT", "/bucket/a%40b%3Dc", "partNumber=1&uploadId=x", {}, S3SigV4Auth)
    target = parse_target("http://localhost:9000/bucket/a@b=c?partNumber=1&uploadId=x", "localhost:9000", ())
    request = received("PUT", url, headers)
    verify(replace(request, target=target))
    assert target.path == "/bucket/a@b=c"


@settings(max_examples=80, deadline=None)
@given(value=st.text("ab \t", max_size=12).map(str.strip), query=st.lists(st.tuples(keys, keys), max_size=4))
def test_white_space_in_values_and_any_query_are_canonical(value: str, query: list[tuple[str, str]]) -> None:
    text = "&".join(f"{quote(name, safe='')}={quote(content, safe='')}" for name, content in query)
    url, headers = sign_with_botocore("GET", "/bucket/k", text, {"x-amz-meta-a": value}, S3SigV4Auth)
    verify(received("GET", url, headers))


def test_changing_anything_signed_is_noticed() -> None:
    url, headers = sign_with_botocore("GET", "/bucket/key", "versionId=a&x=1", {"x-amz-meta-a": "b"}, S3SigV4Auth)
    request = received("GET", url, headers)
    verify(request)
    other_target = parse_target("/bucket/other?versionId=a&x=1", request.host, ())
    other_query = parse_target("/bucket/key?versionId=b&x=1", request.host, ())
    for changed in (
        replace(request, method="PUT"),
        replace(request, target=other_target),
        replace(request, target=other_query),
        replace(request, host="localhost:9001"),
        replace(request, headers={**request.headers, "x-amz-meta-a": "c"}),
        replace(request, headers={**request.headers, "x-amz-content-sha256": "UNSIGNED-PAYLOAD"}),
    ):
        with pytest.raises(S3Error) as error:
            verify(changed)
        assert error.value.code == "SignatureDoesNotMatch"


def test_a_presigned_url_lives_as_long_as_it_says() -> None:
    url, _ = sign_with_botocore("GET", "/bucket/key", "", {}, lambda *a: S3SigV4QueryAuth(*a, expires=60))
    request = received("GET", url, {})
    signed_at = calendar.timegm(time.strptime(request.target.get("X-Amz-Date"), "%Y%m%dT%H%M%SZ"))
    authenticator(signed_at + 60).authenticate(request)
    with pytest.raises(S3Error) as error:
        authenticator(signed_at + 61).authenticate(request)
    assert (error.value.code, error.value.message) == ("AccessDenied", "Request has expired")
