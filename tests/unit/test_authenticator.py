"""Authentication of whole requests, and what is refused with which code."""

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.gateway.auth import sigv4
from s3verbs.gateway.auth.access_keys import AccessKeys, root_key
from s3verbs.gateway.auth.authenticator import Authenticator, Verified
from s3verbs.gateway.auth.authorizer import Authorizer
from s3verbs.gateway.auth.payload_hash import PayloadKind
from s3verbs.gateway.auth.principal import ANONYMOUS, Principal
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.aws_chunked import AwsChunkedDecoder
from s3verbs.gateway.http.request import S3Request
from s3verbs.gateway.http.target import parse_target
from s3verbs.storage.errors import BucketNotFound
from s3verbs.storage.memory import MemoryMetadataStore
from s3verbs.storage.model import Bucket

NOW = 1_700_000_000
DATE = "20231114T221320Z"
REGION = "us-east-1"
SECRET = "secret-of-the-root"
EMPTY = hashlib.sha256(b"").hexdigest()

metadata = MemoryMetadataStore()
access_keys = AccessKeys(metadata, root=root_key("ROOTKEY", SECRET), clock=lambda: 1)
USER = access_keys.create(access_key="USERKEY", secret="secret-of-the-user", principal_id="user-id", name="user")
DISABLED = access_keys.create(access_key="DISABLED", secret="secret-of-nobody")
access_keys.disable("DISABLED")
SESSION = access_keys.create(
    access_key="SESSION", secret="secret-of-a-session", session_token="token", expires_ns=(NOW + 100) * 10**9
)
SECRETS = {"ROOTKEY": SECRET, "USERKEY": USER.secret, "DISABLED": DISABLED.secret, "SESSION": SESSION.secret}


def no_bucket(name: str) -> Bucket:
    raise BucketNotFound(name)


def authenticator(now: float = NOW, *, enforce_region: bool = True) -> Authenticator:
    return Authenticator(access_keys, clock=lambda: int(now * 10**9), region=REGION, enforce_region=enforce_region)


def request(method: str, raw: str, headers: Mapping[str, str]) -> S3Request:
    folded = {"host": "localhost:9000", **headers}
    return S3Request(method, parse_target(raw, folded["host"], ()), folded, folded["host"], "127.0.0.1", "id")


def signed(
    method: str = "GET",
    raw: str = "/bucket/key",
    headers: Mapping[str, str] | None = None,
    *,
    access_key: str = "ROOTKEY",
    secret: str | None = None,
    region: str = REGION,
    payload_hash: str | None = EMPTY,
    date: str = DATE,
    unsigned: tuple[str, ...] = (),
) -> S3Request:
    """A request signed in its headers; headers named in `unsigned` are sent but not signed."""
    sent = {"x-amz-date": date, **(headers or {})}
    if payload_hash is not None:
        sent["x-amz-content-sha256"] = payload_hash
    unsigned_request = request(method, raw, sent)
    names = sorted(name for name in unsigned_request.headers if name not in unsigned)
    scope = f"{date[:8]}/{region}/s3/aws4_request"
    target = unsigned_request.target
    canonical = sigv4.canonical_request(
        method,
        target.canonical_path,
        sigv4.canonical_query(target.query),
        unsigned_request.headers,
        names,
        payload_hash or "",
    )
    key = sigv4.signing_key(secret or SECRETS.get(access_key, "unknown"), date[:8], region)
    signature = sigv4.sign(key, sigv4.string_to_sign(date, scope, canonical))
    sent["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={';'.join(names)}, Signature={signature}"
    )
    return request(method, raw, sent)


def presigned(
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    *,
    access_key: str = "ROOTKEY",
    expires: int = 60,
    date: str = DATE,
    region: str = REGION,
    signed_names: tuple[str, ...] = ("host",),
    payload_hash: str = "UNSIGNED-PAYLOAD",
    more: Mapping[str, str] | None = None,
) -> S3Request:
    scope = f"{date[:8]}/{region}/s3/aws4_request"
    query = {
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{access_key}/{scope}",
        "X-Amz-Date": date,
        "X-Amz-Expires": str(expires),
        "X-Amz-SignedHeaders": ";".join(signed_names),
        **(more or {}),
    }
    raw = "/bucket/key?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
    head = request(method, raw, headers or {})
    canonical = sigv4.canonical_request(
        method,
        head.target.canonical_path,
        sigv4.canonical_query(head.target.query),
        head.headers,
        signed_names,
        payload_hash,
    )
    key = sigv4.signing_key(SECRETS[access_key], date[:8], region)
    return request(
        method, f"{raw}&X-Amz-Signature={sigv4.sign(key, sigv4.string_to_sign(date, scope, canonical))}", headers or {}
    )


def verify(request: S3Request, now: float = NOW) -> Verified:
    return authenticator(now).authenticate(request)


def refused(request: S3Request, now: float = NOW) -> S3Error:
    with pytest.raises(S3Error) as error:
        verify(request, now)
    return error.value


def test_a_signed_request_speaks_for_its_key() -> None:
    verified = verify(signed())
    assert verified.principal == Principal("root", "root", "ROOTKEY")
    assert (verified.payload.kind, verified.payload.sha256) == (PayloadKind.EXACT, bytes.fromhex(EMPTY))
    assert verified.verifier is None
    assert verify(signed(access_key="USERKEY")).principal == Principal("user-id", "user", "USERKEY")


def test_no_authentication_at_all_is_anonymous_and_may_do_nothing() -> None:
    verified = verify(request("GET", "/bucket/key?versionId=x", {}))
    assert verified.principal is ANONYMOUS
    assert verified.payload.kind is PayloadKind.UNSIGNED
    with pytest.raises(S3Error) as error:
        Authorizer(no_bucket).check(verified.principal, "s3:GetObject", "bucket", "key")
    assert error.value.code == "AccessDenied"
    Authorizer(no_bucket).check(verify(signed()).principal, "s3:GetObject", "bucket", "key")


def test_an_empty_authorization_header_is_none() -> None:
    assert verify(request("GET", "/bucket/key", {"authorization": ""})).principal is ANONYMOUS
    url = presigned()
    assert verify(replace(url, headers={**url.headers, "authorization": ""})).principal.access_key == "ROOTKEY"


def test_an_anonymous_request_cannot_have_signed_chunks() -> None:
    streaming = {"x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER"}
    assert verify(request("PUT", "/b-1/k", streaming)).payload.kind is PayloadKind.STREAMING_UNSIGNED_TRAILER
    error = refused(request("PUT", "/b-1/k", {"x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}))
    assert error.code == "InvalidRequest"


def test_a_wrong_signature_says_what_was_signed() -> None:
    wrong = signed(raw="/bucket/k%20ey?b=2&a=1", secret="another secret")
    error = refused(wrong)
    assert (error.code, error.status) == ("SignatureDoesNotMatch", 403)
    assert error.details["AWSAccessKeyId"] == "ROOTKEY"
    assert len(error.details["SignatureProvided"]) == 64
    assert error.details["CanonicalRequest"].startswith("GET\n/bucket/k%20ey\na=1&b=2\nhost:localhost:9000\n")
    text = error.details["StringToSign"].splitlines()
    assert text[:3] == ["AWS4-HMAC-SHA256", DATE, f"{DATE[:8]}/{REGION}/s3/aws4_request"]
    assert text[3] == hashlib.sha256(error.details["CanonicalRequest"].encode()).hexdigest()
    assert bytes.fromhex(error.details["StringToSignBytes"]).decode() == error.details["StringToSign"]
    assert SECRET not in repr(error.details)


@pytest.mark.parametrize(
    ("access_key", "code"),
    [("NOSUCHKEY", "InvalidAccessKeyId"), ("DISABLED", "InvalidAccessKeyId")],
)
def test_a_key_that_may_not_sign(access_key: str, code: str) -> None:
    error = refused(signed(access_key=access_key))
    assert (error.code, error.status) == (code, 403)
    assert error.details == {"AWSAccessKeyId": access_key}


@pytest.mark.parametrize("skew", [-900, 900])
def test_fifteen_minutes_of_skew_are_allowed(skew: int) -> None:
    verify(signed(), NOW + skew)


@pytest.mark.parametrize("skew", [-901, 901])
def test_more_skew_is_refused(skew: int) -> None:
    error = refused(signed(), NOW + skew)
    assert (error.code, error.status) == ("RequestTimeTooSkewed", 403)
    assert error.details["RequestTime"] == DATE
    assert error.details["MaxAllowedSkewMilliseconds"] == "900000"
    assert error.details["ServerTime"] == ("2023-11-14T21:58:19Z" if skew < 0 else "2023-11-14T22:28:21Z")


def test_a_header_request_needs_x_amz_content_sha256() -> None:
    error = refused(signed(payload_hash=None))
    assert error.code == "InvalidRequest"
    assert error.message == "Missing required header for this request: x-amz-content-sha256"


def test_headers_of_amazon_and_host_must_be_signed() -> None:
    headers = {"x-amz-meta-a": "1", "x-amz-acl": "private", "range": "bytes=0-1", "user-agent": "x"}
    verify(signed(headers=headers, unsigned=("range", "user-agent")))
    error = refused(signed(headers=headers, unsigned=("x-amz-meta-a", "x-amz-acl", "host")))
    assert (error.code, error.status) == ("AccessDenied", 403)
    assert error.message == "There were headers present in the request which were not signed"
    assert error.details == {"HeadersNotSigned": "host, x-amz-meta-a, x-amz-acl"}
    assert refused(presigned(headers={"x-amz-acl": "private"})).details == {"HeadersNotSigned": "x-amz-acl"}
    own = {"x-s3verbs-durability": "relaxed"}
    assert refused(presigned(headers=own)).details == {"HeadersNotSigned": "x-s3verbs-durability"}


def test_an_rdma_header_may_be_signed() -> None:
    verify(signed("PUT", headers={"x-rdma-info": "00007f1dc46fd010:00100000:0000abcd", "content-length": "0"}))


def test_both_kinds_of_authentication_are_one_too_many() -> None:
    both = presigned()
    error = refused(replace(both, headers={**both.headers, "authorization": "AWS4-HMAC-SHA256 x"}))
    assert error.code == "InvalidArgument"
    assert error.details["ArgumentName"] == "Authorization"


def test_the_region_of_the_credential() -> None:
    for wrong, code in (
        (signed(region="eu-west-1"), "AuthorizationHeaderMalformed"),
        (presigned(region="eu-west-1"), "AuthorizationQueryParametersError"),
    ):
        error = refused(wrong)
        assert (error.code, error.status, error.details) == (code, 400, {"Region": REGION})
        assert "the region 'eu-west-1' is wrong; expecting 'us-east-1'" in error.message
        assert authenticator(enforce_region=False).authenticate(wrong).principal.access_key == "ROOTKEY"


def test_the_host_of_the_request_is_what_was_signed() -> None:
    behind_proxy = signed(headers={"host": "s3.example.com"})
    proxied = replace(behind_proxy, headers={**behind_proxy.headers, "host": "10.0.0.1:9000"})
    assert verify(proxied).principal.access_key == "ROOTKEY"
    assert refused(replace(proxied, host="10.0.0.1:9000")).code == "SignatureDoesNotMatch"


def test_a_presigned_url_has_its_own_expiry_and_no_skew() -> None:
    url = presigned(expires=604800)
    assert verify(url, NOW + 604800).payload.kind is PayloadKind.UNSIGNED
    error = refused(url, NOW + 604801)
    assert (error.code, error.message) == ("AccessDenied", "Request has expired")
    assert error.details == {
        "X-Amz-Expires": "604800",
        "Expires": "2023-11-21T22:13:20Z",
        "ServerTime": "2023-11-21T22:13:21Z",
    }


def test_a_presigned_url_of_no_seconds_is_expired_at_once() -> None:
    assert refused(presigned(expires=0)).message == "Request has expired"
    verify(presigned(expires=1))


def test_a_presigned_url_from_the_future() -> None:
    verify(presigned(), NOW - 900)
    error = refused(presigned(), NOW - 901)
    assert (error.code, error.message) == ("AccessDenied", "Request is not yet valid")
    assert error.details["X-Amz-Date"] == f"{NOW}000"


@pytest.mark.parametrize(
    ("headers", "more", "names", "payload_hash"),
    [
        ({}, {"X-Amz-Content-Sha256": EMPTY}, ("host",), EMPTY),
        ({"x-amz-content-sha256": EMPTY}, {}, ("host", "x-amz-content-sha256"), EMPTY),
    ],
)
def test_a_presigned_payload_hash(headers: Any, more: Any, names: tuple[str, ...], payload_hash: str) -> None:
    url = presigned("PUT", headers, more=more, signed_names=names, payload_hash=payload_hash)
    assert verify(url).payload.sha256 == bytes.fromhex(EMPTY)


def test_a_changed_presigned_parameter_is_noticed() -> None:
    url = presigned()
    query = tuple((name, "3600" if name == "X-Amz-Expires" else value) for name, value in url.target.query)
    assert refused(replace(url, target=replace(url.target, query=query))).code == "SignatureDoesNotMatch"
    longer = replace(url.target, query=(*url.target.query, ("versionId", "x")))
    assert refused(replace(url, target=longer)).code == "SignatureDoesNotMatch"


def test_session_tokens() -> None:
    token = {"x-amz-security-token": "token"}
    assert verify(signed(headers=token, access_key="SESSION")).principal.access_key == "SESSION"
    assert (
        verify(presigned(access_key="SESSION", more={"X-Amz-Security-Token": "token"})).principal == SESSION.principal
    )
    assert refused(signed(headers={"x-amz-security-token": "other"}, access_key="SESSION")).code == "InvalidToken"
    assert refused(signed(headers=token)).code == "InvalidToken"
    assert refused(signed(access_key="SESSION")).code == "InvalidAccessKeyId"
    expired = refused(signed(headers=token, access_key="SESSION"), NOW + 100)
    assert (expired.code, expired.status) == ("ExpiredToken", 400)


@pytest.mark.parametrize("content_encoding", ["aws-chunked", "gzip", ""])
def test_content_encoding_does_not_choose_the_decoder(content_encoding: str) -> None:
    plain = verify(signed("PUT", headers={"content-encoding": content_encoding}, payload_hash="UNSIGNED-PAYLOAD"))
    assert (plain.payload.kind, plain.verifier) == (PayloadKind.UNSIGNED, None)
    forged = signed(
        "PUT", headers={"content-encoding": content_encoding}, payload_hash="STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    )
    unsigned_stream = {**forged.headers, "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER"}
    assert refused(replace(forged, headers=unsigned_stream)).code == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    ("kind", "trailer"),
    [("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", False), ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", True)],
)
def test_the_chunks_of_a_stream_hang_on_the_signature_of_the_head(kind: str, trailer: bool) -> None:
    head = signed("PUT", headers={"x-amz-decoded-content-length": "5"}, payload_hash=kind)
    key = sigv4.signing_key(SECRET, DATE[:8], REGION)
    scope = f"{DATE[:8]}/{REGION}/s3/aws4_request"
    previous = head.headers["authorization"].rpartition("=")[2]
    stream = b""
    for chunk in (b"hello", b""):
        text = sigv4.chunk_string_to_sign(DATE, scope, previous, hashlib.sha256(chunk).hexdigest())
        previous = sigv4.sign(key, text)
        stream += b"%x;chunk-signature=%s\r\n" % (len(chunk), previous.encode()) + (chunk + b"\r\n" if chunk else b"")
    if trailer:
        text = sigv4.trailer_string_to_sign(
            DATE, scope, previous, hashlib.sha256(b"x-amz-checksum-crc32:NhCmhg==\n").hexdigest()
        )
        stream += b"x-amz-checksum-crc32:NhCmhg==\r\nx-amz-trailer-signature:%s\r\n" % sigv4.sign(key, text).encode()
    verified = verify(head)
    assert verified.payload.signed_chunks
    decoder = AwsChunkedDecoder(decoded_length=5, verifier=verified.verifier, trailer=verified.payload.trailer)
    assert b"".join(decoder.feed(stream + b"\r\n")) == b"hello"
    decoder.close()


def test_unsigned_streams_have_no_verifier() -> None:
    verified = verify(signed("PUT", payload_hash="STREAMING-UNSIGNED-PAYLOAD-TRAILER"))
    assert verified.payload.kind is PayloadKind.STREAMING_UNSIGNED_TRAILER
    assert verified.verifier is None


def test_the_payload_hash_is_signed_as_sent() -> None:
    upper = EMPTY.upper()
    assert verify(signed(payload_hash=upper)).payload.sha256 == bytes.fromhex(EMPTY)
    assert refused(signed(payload_hash="nonsense")).code == "InvalidArgument"


def test_the_date_header_may_be_signed_instead() -> None:
    date = "Tue, 14 Nov 2023 22:13:20 GMT"
    headers = {"date": date, "x-amz-content-sha256": EMPTY}
    head = request("GET", "/bucket/key", headers)
    names = ("date", "host", "x-amz-content-sha256")
    scope = f"{DATE[:8]}/{REGION}/s3/aws4_request"
    canonical = sigv4.canonical_request("GET", "/bucket/key", "", head.headers, names, EMPTY)
    signature = sigv4.sign(sigv4.signing_key(SECRET, DATE[:8], REGION), sigv4.string_to_sign(DATE, scope, canonical))
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential=ROOTKEY/{scope},SignedHeaders={';'.join(names)},Signature={signature}"
    )
    assert verify(request("GET", "/bucket/key", headers)).principal.access_key == "ROOTKEY"
    assert refused(request("GET", "/bucket/key", headers), NOW + 1000).details["RequestTime"] == DATE


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(
        ["authorization", "x-amz-date", "x-amz-content-sha256", "x-amz-security-token", "date", "host"]
    ),
    value=st.one_of(st.binary(max_size=40), st.text(max_size=20).map(str.encode)),
    at=st.integers(0, 200),
)
def test_any_bytes_in_a_header_are_an_s3_error_or_verified(name: str, value: bytes, at: int) -> None:
    head = signed()
    text = value.decode("utf-8", "surrogateescape")
    old = head.headers.get(name, "")
    changed = replace(head, headers={**head.headers, name: old[:at] + text + old[at:]})
    with contextlib.suppress(S3Error):
        authenticator(enforce_region=False).authenticate(replace(changed, host=changed.headers["host"]))
