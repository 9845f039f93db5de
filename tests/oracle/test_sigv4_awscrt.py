"""Requests that the AWS Common Runtime signs (NIXL's CRT client, awscrt, mountpoint-s3) must verify."""

import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest
from awscrt.auth import (
    AwsCredentialsProvider,
    AwsSignatureType,
    AwsSignedBodyHeaderType,
    AwsSigningAlgorithm,
    AwsSigningConfig,
    aws_sign_request,
)
from awscrt.http import HttpHeaders, HttpRequest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.gateway.auth.access_keys import AccessKey, root_key
from s3verbs.gateway.auth.authenticator import Authenticator
from s3verbs.gateway.auth.payload_hash import PayloadKind
from s3verbs.gateway.http.headers import fold_headers
from s3verbs.gateway.http.request import S3Request
from s3verbs.gateway.http.target import parse_target

ACCESS_KEY = "AKIDEXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
REGION = "us-west-2"
HOST = "localhost:9000"
PROVIDER = AwsCredentialsProvider.new_static(ACCESS_KEY, SECRET)

keys = st.one_of(
    st.sampled_from(["a=b+c@d", "//a/../b/.", "a%2Fb %", "ü\U0001f511;'()", "~!*&?#"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40),
)


class OneKey:
    """Stands in for the table of access keys."""

    def __init__(self, key: AccessKey) -> None:
        self._key = key

    def get(self, access_key: str) -> AccessKey | None:
        return self._key if access_key == self._key.access_key else None


def sign(method: str, path: str, headers: dict[str, str], body_value: str, signature_type: Any) -> S3Request:
    request = HttpRequest(method, path, HttpHeaders([("host", HOST), *headers.items()]))
    in_query = signature_type == AwsSignatureType.HTTP_REQUEST_QUERY_PARAMS
    config = AwsSigningConfig(
        algorithm=AwsSigningAlgorithm.V4,
        signature_type=signature_type,
        credentials_provider=PROVIDER,
        region=REGION,
        service="s3",
        date=datetime.now(UTC),
        use_double_uri_encode=False,
        should_normalize_uri_path=False,
        signed_body_value=body_value,
        signed_body_header_type=AwsSignedBodyHeaderType.NONE
        if in_query
        else AwsSignedBodyHeaderType.X_AMZ_CONTENT_SHA_256,
        expiration_in_seconds=60 if in_query else None,
    )
    aws_sign_request(request, config).result(timeout=10)
    folded = fold_headers((name.encode(), value.encode()) for name, value in request.headers)
    return S3Request(method, parse_target(request.path, HOST, ()), folded, HOST, "127.0.0.1", "id")


def authenticator() -> Authenticator:
    table: Any = OneKey(root_key(ACCESS_KEY, SECRET))
    return Authenticator(table, clock=time.time_ns, region=REGION, enforce_region=True)


@pytest.mark.parametrize(
    ("body_value", "kind"),
    [
        ("UNSIGNED-PAYLOAD", PayloadKind.UNSIGNED),
        ("STREAMING-UNSIGNED-PAYLOAD-TRAILER", PayloadKind.STREAMING_UNSIGNED_TRAILER),
    ],
)
@settings(max_examples=60, deadline=None)
@given(key=keys, upload_id=keys)
def test_a_request_signed_in_its_headers_is_verified(
    body_value: str, kind: PayloadKind, key: str, upload_id: str
) -> None:
    path = f"/bucket/{quote(key, safe='/')}?partNumber=1&uploadId={quote(upload_id, safe='')}"
    request = sign(
        "PUT", path, {"x-amz-meta-a": "b  c", "content-length": "9"}, body_value, AwsSignatureType.HTTP_REQUEST_HEADERS
    )
    verified = authenticator().authenticate(request)
    assert (verified.payload.kind, verified.principal.access_key) == (kind, ACCESS_KEY)
    assert (request.target.key, request.target.get("uploadId")) == (key, upload_id)


@settings(max_examples=60, deadline=None)
@given(key=keys)
def test_a_presigned_request_is_verified(key: str) -> None:
    request = sign(
        "GET", "/bucket/" + quote(key, safe="/"), {}, "UNSIGNED-PAYLOAD", AwsSignatureType.HTTP_REQUEST_QUERY_PARAMS
    )
    assert authenticator().authenticate(request).principal.access_key == ACCESS_KEY
    assert request.target.key == key
