import fcntl
import os
import time
from pathlib import Path

import pytest

from s3verbs.gateway.metrics_directory import FRESH_SECONDS, PREFIX, metrics_directory


def aged(path: Path) -> Path:
    path.mkdir()
    (path / "counter_1.db").write_bytes(b"x")
    then = time.time() - FRESH_SECONDS - 1
    os.utime(path, (then, then))
    return path


def test_it_is_private_and_gone_in_the_end(tmp_path: Path) -> None:
    with metrics_directory(tmp_path) as path:
        assert path.parent == tmp_path
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "counter_2.db").write_bytes(b"y")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_server_left_is_removed_and_what_others_use_is_not(tmp_path: Path) -> None:
    abandoned = aged(tmp_path / f"{PREFIX}abandoned")
    in_use = aged(tmp_path / f"{PREFIX}in-use")
    others = aged(tmp_path / "others")
    fresh = tmp_path / f"{PREFIX}fresh"
    fresh.mkdir()
    lock = os.open(in_use, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with metrics_directory(tmp_path):
        assert not abandoned.exists()
        assert (in_use / "counter_1.db").exists()
        assert (others / "counter_1.db").exists()
        assert fresh.exists()
    os.close(lock)


def test_a_link_of_that_name_is_not_followed(tmp_path: Path) -> None:
    target = aged(tmp_path / "target")
    link = tmp_path / f"{PREFIX}link"
    link.symlink_to(target)
    then = time.time() - FRESH_SECONDS - 1
    os.utime(link, (then, then), follow_symlinks=False)
    with metrics_directory(tmp_path):
        assert (target / "counter_1.db").exists()


def test_without_a_memory_file_system_it_is_among_the_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with metrics_directory(tmp_path / "none") as path:
        assert path.parent == tmp_path
