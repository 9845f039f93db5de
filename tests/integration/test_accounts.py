"""Accounts, from the command that makes their keys to the answers and the audit log of a running server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.integration.endpoint import ACCESS_KEY, BUCKET, Endpoint, run

SECRET = "secret-of-another-account"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("accounts")
    (folder / "secret").write_text(f"{SECRET}\n")
    data = folder / "data"
    data.mkdir()
    # A key of another account that is there before the first start does not stand in for the root key.
    for account in ("team-a", "team-b"):
        made = run(
            *("admin", "key", "create", "--data", str(data), "--account", account),
            *("--access-key", f"KEY-{account}", "--secret-key-file", str(folder / "secret"), "--name", "notebooks"),
        )
        assert made.returncode == 0, made.stderr
        assert SECRET not in made.stdout
    with Endpoint(data, "--audit-log", str(folder / "audit.log")) as running:
        yield running


def client(endpoint: Endpoint, account: str) -> Any:
    return endpoint.client(access_key=f"KEY-{account}", secret_key=SECRET)


def code(call: Any, **arguments: str) -> str:
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return str(caught.value.response["Error"]["Code"])


def names(client: Any) -> list[str]:
    return [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]


def test_an_account_has_its_own_buckets_and_root_has_all(endpoint: Endpoint) -> None:
    root, a, b = endpoint.client(), client(endpoint, "team-a"), client(endpoint, "team-b")
    a.create_bucket(Bucket="bucket-of-a")
    a.put_object(Bucket="bucket-of-a", Key="key", Body=b"a's")
    assert names(a) == ["bucket-of-a"]
    assert names(b) == []
    assert names(root) == ["bucket-of-a", BUCKET]
    assert code(b.create_bucket, Bucket="bucket-of-a") == "BucketAlreadyExists"
    assert code(b.create_bucket, Bucket=BUCKET) == "BucketAlreadyExists"
    for call, more in ((b.get_object, {"Key": "key"}), (b.put_object, {"Key": "key"}), (b.list_objects_v2, {})):
        assert code(call, Bucket="bucket-of-a", **more) == "AccessDenied"
        assert code(call, Bucket=BUCKET, **more) == "AccessDenied"
        assert code(call, Bucket="bucket-of-nobody", **more) == "NoSuchBucket"
    assert root.get_object(Bucket="bucket-of-a", Key="key")["Body"].read() == b"a's"
    assert root.get_bucket_acl(Bucket="bucket-of-a")["Owner"] == {"ID": "team-a", "DisplayName": "team-a"}


def test_a_copy_needs_both_sides_and_both_are_in_the_audit_log(endpoint: Endpoint) -> None:
    root, b = endpoint.client(), client(endpoint, "team-b")
    root.put_object(Bucket=BUCKET, Key="source", Body=b"root's")
    b.create_bucket(Bucket="bucket-of-b")
    assert code(b.copy_object, Bucket="bucket-of-b", Key="key", CopySource=f"{BUCKET}/source") == "AccessDenied"
    assert code(b.head_object, Bucket="bucket-of-b", Key="key") == "404"
    root.copy_object(Bucket="bucket-of-b", Key="key", CopySource=f"{BUCKET}/source")
    endpoint.stop()
    lines = [json.loads(line) for line in (endpoint.data.parent / "audit.log").read_text().splitlines()]
    copies = [line for line in lines if line["operation"] == "CopyObject"]
    assert [(line["access_key"], line["action"], line["resource"], line["decision"]) for line in copies] == [
        (who, action, f"arn:aws:s3:::{resource}", decision)
        for who, action, resource, decision in (
            ("KEY-team-b", "s3:PutObject", "bucket-of-b/key", "allowed"),
            ("KEY-team-b", "s3:GetObject", f"{BUCKET}/source", "denied"),
            (ACCESS_KEY, "s3:PutObject", "bucket-of-b/key", "allowed"),
            (ACCESS_KEY, "s3:GetObject", f"{BUCKET}/source", "allowed"),
        )
    ]


def test_the_command_line_shows_accounts_and_refuses_bad_ones(endpoint: Endpoint, tmp_path: Path) -> None:
    listed = run("admin", "key", "list", "--data", str(endpoint.data)).stdout
    assert "KEY-team-a" in listed
    assert "\tteam-a\tnotebooks" in listed
    assert SECRET not in listed
    assert "bucket-of-a\tstrict\t" in run("admin", "bucket", "list", "--data", str(endpoint.data)).stdout
    for arguments, reason in (
        (("--account", "two words"), "account 'two words'"),
        (("--account", "anonymous"), "account 'anonymous'"),
        (("--secret-key-file", str(tmp_path / "absent")), "absent"),
    ):
        made = run("admin", "key", "create", "--data", str(endpoint.data), *arguments)
        assert made.returncode == 1
        assert reason in made.stderr
