"""The client's own signatures against botocore's, byte for byte."""

import calendar
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from s3verbs.rdma.client.signing import EMPTY_SHA256, UNSIGNED, Keys, Signer, encoded_path, encoded_query

LOADED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure."""

NOW = 1_760_000_000
ACCESS_KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


@contextmanager
def clock_at(moment: float) -> Iterator[None]:
    """botocore's clock."""
    import datetime

    import botocore.auth as auth

    stamp = datetime.datetime.fromtimestamp(moment, datetime.UTC)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auth, "get_current_datetime", lambda remove_tzinfo=True: stamp.replace(tzinfo=None))
        yield


class Told(S3SigV4Auth):  # type: ignore[misc, unused-ignore]
    """Signs the payload hash that the header has, as botocore does for unsigned payloads over TLS."""

    told = ""

    def payload(self, request: Any) -> str:
        return self.told


def by_botocore(method: str, url: str, headers: dict[str, str], keys: Keys, region: str) -> str:
    request = AWSRequest(method, url, headers=dict(headers))
    with clock_at(NOW):
        signer = Told(Credentials(keys.access_key, keys.secret_key, keys.token), "s3", region)
        signer.told = headers["x-amz-content-sha256"]
        signer.add_auth(request)
    return str(request.headers["Authorization"])


def ours(head: str) -> str:
    (line,) = [line for line in head.split("\r\n") if line.startswith("authorization: ")]
    return line.partition(": ")[2]


printable = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=40)
names = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=20).map(lambda name: f"x-amz-meta-{name}")
keys_of_objects = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40)


@LOADED
@given(
    method=st.sampled_from(["GET", "PUT", "POST", "DELETE"]),
    key=keys_of_objects,
    query=st.dictionaries(printable, st.text(max_size=20), max_size=3),
    headers=st.dictionaries(names, printable, max_size=4),
    token=st.none() | st.just("session/token=="),
    payload=st.sampled_from([UNSIGNED, EMPTY_SHA256]),
    host=st.sampled_from(["127.0.0.1:9000", "s3.example.com", "[::1]:9000"]),
)
def test_signatures_are_botocores(
    method: str,
    key: str,
    query: dict[str, str],
    headers: dict[str, str],
    token: str | None,
    payload: str,
    host: str,
) -> None:
    keys = Keys(ACCESS_KEY, SECRET, token)
    fields = {**headers, "x-amz-content-sha256": payload}
    path, parameters = encoded_path("bucket", key), encoded_query(query)
    head = Signer(host, "eu-central-1", lambda: NOW).head(method, path, parameters, fields, keys)
    url = f"http://{host}{path}" + (f"?{parameters}" if parameters else "")
    assert ours(head) == by_botocore(method, url, fields, keys, "eu-central-1")
    assert head.startswith(f"{method} {path}{'?' + parameters if parameters else ''} HTTP/1.1\r\nhost: {host}\r\n")


def test_a_new_day_and_new_keys_get_a_new_signing_key() -> None:
    moment = calendar.timegm(time.strptime("2026-01-01 23:59:59", "%Y-%m-%d %H:%M:%S"))
    shown = [float(moment)]
    signer = Signer("h", "us-east-1", lambda: shown[0])
    headers = {"x-amz-content-sha256": UNSIGNED}

    def fresh(keys: Keys) -> str:
        return Signer("h", "us-east-1", lambda: shown[0]).head("GET", "/b/k", "", headers, keys)

    for keys in (Keys("A", "one"), Keys("A", "two"), Keys("B", "two")):
        for second in (0, 1):
            shown[0] = moment + second
            assert signer.head("GET", "/b/k", "", headers, keys) == fresh(keys)
    signer.follow(moment + 3600)
    assert "x-amz-date: 20260102T005959Z" in signer.head("GET", "/b/k", "", headers, None)


def test_without_keys_a_request_is_anonymous_and_a_secret_is_not_shown() -> None:
    head = Signer("h", "us-east-1").head("GET", "/b/k", "", {"x-amz-content-sha256": UNSIGNED}, None)
    assert "authorization" not in head
    assert "secret" not in repr(Keys("A", "secret", "token"))
