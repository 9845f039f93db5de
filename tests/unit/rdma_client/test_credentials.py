"""Keys: given, from botocore's default chain, refreshed, reloaded once when the server says that they have expired."""

import datetime
from pathlib import Path
from typing import Any

import pytest

from s3verbs.rdma.client.credentials import ChainKeys, GivenKeys
from s3verbs.rdma.client.errors import AccessDenied, S3Error
from s3verbs.rdma.client.signing import Keys
from tests.unit.rdma_client.scripted import FakeTransport, ScriptedServer, Store, answer, client, s3_error

FILE = "[default]\naws_access_key_id = {}\naws_secret_access_key = secret\naws_session_token = {}\n"


@pytest.fixture
def keys_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The chain sees this file and nothing else."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return path


def signed_by(request: Any) -> str:
    return str(request.headers["authorization"].partition("Credential=")[2].partition("/")[0])


def test_the_default_chain_is_used_without_given_keys(
    server: ScriptedServer, transport: FakeTransport, keys_file: Path
) -> None:
    keys_file.write_text(FILE.format("FROMFILE", "session"))
    server.script += [Store(transport, b"1").get] * 2
    with client(server, transport, access_key=None, secret_key=None) as s3, s3.register(bytearray(1)) as region:
        s3.get_into("b", "k", region)
        s3.get_into("b", "k", region)
    assert [signed_by(request) for request in server.requests] == ["FROMFILE"] * 2
    assert server.requests[0].headers["x-amz-security-token"] == "session"
    assert "x-amz-security-token" in server.requests[0].headers["authorization"]


def test_expired_keys_are_loaded_again_once(server: ScriptedServer, transport: FakeTransport, keys_file: Path) -> None:
    keys_file.write_text(FILE.format("OLD", "t1"))
    store = Store(transport, b"1")

    def expired(request: Any) -> bytes:
        keys_file.write_text(FILE.format("NEW", "t2"))
        return s3_error(400, "ExpiredToken")

    server.script += [expired, store.get, s3_error(400, "ExpiredToken")]
    with client(server, transport, access_key=None, secret_key=None) as s3, s3.register(bytearray(1)) as region:
        assert s3.get_into("b", "k", region).size == 1
        # There are no others now, so it is not tried again.
        with pytest.raises(S3Error, match="ExpiredToken"):
            s3.get_into("b", "k", region)
    assert [signed_by(request) for request in server.requests] == ["OLD", "NEW", "NEW"]


def test_given_keys_cannot_be_loaded_again(server: ScriptedServer, transport: FakeTransport) -> None:
    server.script.append(s3_error(400, "ExpiredToken"))
    with (
        client(server, transport, session_token="t") as s3,
        s3.register(bytearray(1)) as region,
        pytest.raises(S3Error, match="ExpiredToken"),
    ):
        s3.get_into("b", "k", region)
    assert len(server.requests) == 1
    assert server.requests[0].headers["x-amz-security-token"] == "t"
    assert not GivenKeys(Keys("a", "b")).reload(Keys("a", "b"))


def test_without_any_keys_requests_are_anonymous(
    server: ScriptedServer, transport: FakeTransport, keys_file: Path
) -> None:
    server.script.append(answer(403, b"<Error><Code>AccessDenied</Code></Error>"))
    with (
        client(server, transport, access_key=None, secret_key=None) as s3,
        s3.register(bytearray(1)) as region,
        pytest.raises(AccessDenied),
    ):
        s3.get_into("b", "k", region)
    assert "authorization" not in server.requests[0].headers
    # A token that nobody signed would be refused.
    assert server.requests[0].token is None


def test_temporary_credentials_are_refreshed_by_botocore(monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.credentials import RefreshableCredentials

    issued = []

    def refresh() -> dict[str, str]:
        issued.append(f"KEY{len(issued)}")
        left = datetime.timedelta(seconds=1 if len(issued) == 1 else 3600)
        expiry = (datetime.datetime.now(datetime.UTC) + left).isoformat()
        return {"access_key": issued[-1], "secret_key": "s", "token": "t", "expiry_time": expiry}

    credentials = RefreshableCredentials.create_from_metadata(refresh(), refresh, "test")
    monkeypatch.setattr("s3verbs.rdma.client.credentials._from_chain", lambda: credentials)
    keys = ChainKeys()
    first = keys.keys()
    assert first is not None
    assert first.access_key == "KEY1"
    assert keys.keys() is first
    # Somebody else has loaded them already.
    assert keys.reload(Keys("KEY0", "s", "t"))
    assert "secret" not in repr(Keys("A", "secret", "token"))


def test_a_clock_that_is_wrong_is_corrected_once(server: ScriptedServer, transport: FakeTransport) -> None:
    store = Store(transport, b"1")
    skewed = s3_error(403, "RequestTimeTooSkewed", date="Wed, 01 Jan 2031 00:00:00 GMT")
    server.script += [skewed, store.get, store.get, skewed, skewed]
    with client(server, transport) as s3, s3.register(bytearray(1)) as region:
        s3.get_into("b", "k", region)
        s3.get_into("b", "k", region)
        dates = [request.headers["x-amz-date"][:8] for request in server.requests]
        assert dates[1:] == ["20310101", "20310101"]
        assert dates[0] != "20310101"
        with pytest.raises(AccessDenied, match="RequestTimeTooSkewed"):
            s3.get_into("b", "k", region)
    assert len(server.requests) == 5
