"""The command line: keys, buckets, check and doctor, beside a running server."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.integration.endpoint import BUCKET, Endpoint, run


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with Endpoint(tmp_path_factory.mktemp("admin")) as running:
        yield running


def admin(endpoint: Endpoint, *arguments: str) -> Any:
    return run("admin", *arguments, "--data", str(endpoint.data))


def test_a_key_works_until_it_is_disabled_and_again_until_it_is_deleted(endpoint: Endpoint) -> None:
    made = admin(endpoint, "key", "create", "--name", "trainer")
    assert made.returncode == 0
    access_key, secret_key, account = (
        line.split()[-1 if line.startswith("account") else 2] for line in made.stdout.splitlines()
    )
    assert account == "root"

    def refused() -> str:
        try:
            endpoint.client(access_key=access_key, secret_key=secret_key).list_buckets()
        except ClientError as error:
            return str(error.response["Error"]["Code"])
        return ""

    assert refused() == ""
    assert f"{access_key}\tActive" in admin(endpoint, "key", "list").stdout
    assert secret_key not in admin(endpoint, "key", "list").stdout
    assert admin(endpoint, "key", "disable", access_key).returncode == 0
    assert refused() == "InvalidAccessKeyId"
    assert f"{access_key}\tInactive" in admin(endpoint, "key", "list").stdout
    assert admin(endpoint, "key", "enable", access_key).returncode == 0
    assert refused() == ""
    assert admin(endpoint, "key", "delete", access_key).returncode == 0
    assert refused() == "InvalidAccessKeyId"
    gone = admin(endpoint, "key", "delete", access_key)
    assert (gone.returncode, gone.stderr) == (1, f"s3verbs: access key '{access_key}': there is none of that id\n")


def test_buckets_are_made_changed_and_removed(endpoint: Endpoint) -> None:
    assert admin(endpoint, "bucket", "create", "made-here", "--durability", "relaxed").returncode == 0
    assert "exists already" in admin(endpoint, "bucket", "create", "made-here").stderr
    assert admin(endpoint, "bucket", "create", "No_Name").returncode == 1
    assert "made-here\trelaxed" in admin(endpoint, "bucket", "list").stdout
    assert admin(endpoint, "bucket", "set-durability", "made-here", "strict").returncode == 0
    assert "made-here\tstrict" in admin(endpoint, "bucket", "list").stdout
    endpoint.client().put_object(Bucket="made-here", Key="k", Body=b"x")
    assert "still holds objects" in admin(endpoint, "bucket", "delete", "made-here").stderr
    endpoint.client().delete_object(Bucket="made-here", Key="k")
    assert admin(endpoint, "bucket", "delete", "made-here").returncode == 0
    assert admin(endpoint, "bucket", "delete", "made-here").returncode == 1


def test_check_finds_nothing_in_a_sound_store_and_damage_where_there_is(tmp_path: Path) -> None:
    with Endpoint(tmp_path) as endpoint:
        endpoint.client().put_object(Bucket=BUCKET, Key="large", Body=os.urandom(200_000))
        endpoint.client().put_object(Bucket=BUCKET, Key="other", Body=os.urandom(200_000))
        sound = admin(endpoint, "check", "--read-payloads")
        assert (sound.returncode, "clean" in sound.stdout) == (0, True), sound.stdout
        refused = admin(endpoint, "check", "--repair")
        assert refused.returncode == 2
        assert "stop the server first" in refused.stderr
    large = max(
        (
            path
            for path in tmp_path.rglob("*")
            if path.is_file() and path.stat().st_size > 200_000 and "metadata" not in path.parts
        ),
        key=lambda path: path.stat().st_mtime_ns,
    )
    with large.open("r+b") as file:
        file.seek(1000)
        file.write(b"damage!")
    found = run("admin", "check", "--read-payloads", "--data", str(tmp_path))
    assert found.returncode == 1
    assert "1 damaged, 0 orphan files" in found.stdout
    repaired = run("admin", "check", "--read-payloads", "--repair", "--data", str(tmp_path))
    assert "repaired" in repaired.stdout
    assert run("admin", "check", "--read-payloads", "--data", str(tmp_path)).returncode == 0
    with Endpoint(tmp_path) as endpoint:
        keys = [item["Key"] for item in endpoint.client().list_objects_v2(Bucket=BUCKET)["Contents"]]
        assert len(keys) == 1


def test_admin_without_a_store_says_so(tmp_path: Path) -> None:
    assert run("admin", "key", "list").stderr.startswith("s3verbs: data: no data directory is given")
    missing = run("admin", "check", "--data", str(tmp_path / "absent"))
    assert missing.returncode == 2
    assert missing.stderr.count("\n") == 1


def test_a_mistyped_directory_does_not_become_a_store(tmp_path: Path) -> None:
    typo = tmp_path / "typo"
    for words in (["key", "list"], ["bucket", "list"], ["check"], ["key", "delete", "AKIA"], ["bucket", "delete", "b"]):
        refused = run("admin", *words, "--data", str(typo))
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.startswith(f"s3verbs: data: {typo}: there is no store")
        assert not typo.exists()


def test_what_is_made_before_the_first_start_says_that_it_made_the_store(tmp_path: Path) -> None:
    for words in (["bucket", "create", "first"], ["key", "create"]):
        store = tmp_path / words[0]
        made = run("admin", *words, "--data", str(store))
        assert (made.returncode, made.stderr) == (0, f"s3verbs: made a new store in {store}\n")
        assert run("admin", *words[:1], "list", "--data", str(store)).stderr == ""


def test_doctor_says_what_clients_would_get(tmp_path: Path) -> None:
    result = run("doctor", "--data", str(tmp_path), "--rdma", "auto")
    assert result.returncode == 0
    assert "any other client gets HTTP" in result.stdout
    assert "GiB free" in result.stdout
    off = run("doctor", "--data", str(tmp_path), "--rdma", "off")
    assert "clients get HTTP: RDMA is off" in off.stdout


def test_doctor_on_a_client() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        result = run("doctor", "--endpoint", url)
    assert result.returncode == 1
    assert f"problem  endpoint {url}: 127.0.0.1 port" in result.stdout
    refused = run("doctor", "--endpoint", "somewhere")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "s3verbs: endpoint: 'somewhere' is no http://HOST:PORT\n"


def test_print_config_shows_where_values_come_from(tmp_path: Path) -> None:
    result = run("serve", "--print-config", "--data", str(tmp_path), env={"S3VERBS_WORKERS": "7"})
    assert result.returncode == 0
    assert f'data = ["{tmp_path}"]    # --data' in result.stdout
    assert "workers = 7    # S3VERBS_WORKERS" in result.stdout
    assert 'region = "us-east-1"    # default' in result.stdout


def test_a_wrong_setting_is_one_line_and_exit_code_2() -> None:
    result = run("serve", "--data", "/tmp", "--workers", "many")
    assert result.returncode == 2
    assert result.stderr == "s3verbs: workers: 'many' (from --workers); allowed: a whole number of 1 to 256\n"
