"""rclone as Debian ships it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clients import MIB, payload, program, run
from tests.e2e.server import Endpoint

Rclone = Callable[..., str]

TREE = {
    "plain": 10,
    "empty": 0,
    "a dir/with space": 5000,
    "a dir/100%+=@~": 17_000,
    "üñí/日本語 \N{ROCKET}": 300,
    "big": 20 * MIB,
}


@pytest.fixture
def rclone(endpoint: Endpoint, tmp_path: Path) -> Rclone:
    remote = {
        "TYPE": "s3",
        "PROVIDER": "Other",
        "ENDPOINT": endpoint.url,
        "ACCESS_KEY_ID": endpoint.access_key,
        "SECRET_ACCESS_KEY": endpoint.secret_key,
        "REGION": endpoint.region,
    }
    extra = {f"RCLONE_CONFIG_S3_{name}": value for name, value in remote.items()}
    extra["RCLONE_CONFIG"] = str(tmp_path / "rclone.conf")
    (tmp_path / "rclone.conf").touch()

    def rclone(*arguments: str, status: int = 0) -> str:
        limits = ("--retries", "1", "--low-level-retries", "1")
        done = run([program("rclone"), *limits, *arguments], endpoint, extra=extra, check=False)
        assert done.returncode == status, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    return rclone


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, size in TREE.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(payload(name, size))
    return tmp_path / "tree"


def stored(observer: Any, bucket: str) -> dict[str, bytes]:
    entries = observer.list_objects_v2(Bucket=bucket).get("Contents", [])
    return {e["Key"]: observer.get_object(Bucket=bucket, Key=e["Key"])["Body"].read() for e in entries}


def test_copy_check_and_copy_back(rclone: Rclone, observer: Any, bucket: str, tree: Path, tmp_path: Path) -> None:
    multipart = ("--s3-upload-cutoff", "8M", "--s3-chunk-size", "5M")
    rclone("copy", *multipart, str(tree), f"s3:{bucket}")
    assert stored(observer, bucket) == {name: payload(name, size) for name, size in TREE.items()}
    assert observer.head_object(Bucket=bucket, Key="big")["ETag"].endswith('-4"')
    rclone("check", "--download", str(tree), f"s3:{bucket}")
    rclone("check", str(tree), f"s3:{bucket}")
    rclone("copy", f"s3:{bucket}", str(tmp_path / "back"))
    assert {name: (tmp_path / "back" / name).read_bytes() for name in TREE} == {
        n: payload(n, s) for n, s in TREE.items()
    }


def test_check_finds_a_changed_object(rclone: Rclone, observer: Any, bucket: str, tree: Path) -> None:
    rclone("copy", str(tree), f"s3:{bucket}")
    observer.put_object(Bucket=bucket, Key="a dir/with space", Body=payload("other", 5000))
    assert "1 differences found" in rclone("check", "--download", str(tree), f"s3:{bucket}", status=1)


def test_sync_removes_and_replaces(rclone: Rclone, observer: Any, bucket: str, tree: Path) -> None:
    rclone("sync", str(tree), f"s3:{bucket}")
    (tree / "plain").write_bytes(b"replaced")
    (tree / "empty").unlink()
    rclone("sync", str(tree), f"s3:{bucket}")
    held = stored(observer, bucket)
    assert held["plain"] == b"replaced"
    assert set(held) == set(TREE) - {"empty"}


def test_times_travel_as_metadata(rclone: Rclone, observer: Any, bucket: str, tree: Path) -> None:
    rclone("copy", str(tree / "plain"), f"s3:{bucket}")
    changed = float(observer.head_object(Bucket=bucket, Key="plain")["Metadata"]["mtime"])
    assert changed == pytest.approx((tree / "plain").stat().st_mtime, abs=1e-6)
    listed = json.loads(rclone("lsjson", f"s3:{bucket}"))
    assert [(entry["Path"], entry["Size"]) for entry in listed] == [("plain", 10)]


def test_move_inside_the_endpoint_and_delete(rclone: Rclone, observer: Any, bucket: str, tree: Path) -> None:
    rclone("copy", str(tree), f"s3:{bucket}/from")
    rclone("move", f"s3:{bucket}/from", f"s3:{bucket}/to")
    assert stored(observer, bucket) == {f"to/{name}": payload(name, size) for name, size in TREE.items()}
    rclone("delete", f"s3:{bucket}/to/a dir")
    assert set(stored(observer, bucket)) == {f"to/{name}" for name in TREE if not name.startswith("a dir/")}
    rclone("purge", f"s3:{bucket}")
    assert bucket not in rclone("lsd", "s3:")
