"""Shared directory fsyncs: a caller is covered by a sync that began after its call, and overlapping callers share."""

import errno
import threading
import time
from pathlib import Path

import pytest

from s3verbs.storage import directory_sync
from s3verbs.storage.directory_sync import DirectorySync


class _Disk:
    """Stands in for fsync: records when each began, takes a while, fails where told."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.failing: set[int] = set()
        self.first = 0.02

    def sync(self, path: Path) -> None:
        self.begun.append(time.perf_counter())
        number = len(self.begun)
        time.sleep(self.first if number == 1 else 0.02)
        if number in self.failing:
            raise OSError(errno.EIO, "Input/output error")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> _Disk:
    disk = _Disk()
    monkeypatch.setattr(directory_sync, "sync_directory", disk.sync)
    return disk


def _together(count: int, call: object) -> None:
    threads = [threading.Thread(target=call) for _ in range(count)]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_overlapping_callers_share_syncs_that_began_after_their_calls(disk: _Disk) -> None:
    shared = DirectorySync(Path("/nowhere"))
    spans: list[tuple[float, float]] = []

    def call() -> None:
        for _ in range(5):
            called = time.perf_counter()
            shared.sync()
            spans.append((called, time.perf_counter()))

    _together(16, call)
    assert len(spans) == 80
    for called, returned in spans:
        assert any(called <= begun <= returned - 0.02 for begun in disk.begun)
    assert len(disk.begun) < 40


def test_a_failed_sync_fails_all_who_waited_for_it_and_nobody_else(disk: _Disk) -> None:
    disk.failing = {2}
    disk.first = 0.5
    shared = DirectorySync(Path("/nowhere"))
    outcomes: list[str] = []
    first = threading.Thread(target=shared.sync)
    first.start()
    while not disk.begun:
        time.sleep(0.001)

    def call() -> None:
        try:
            shared.sync()
        except OSError as error:
            outcomes.append(f"{error.errno}")

    _together(4, call)
    first.join()
    assert outcomes == [str(errno.EIO)] * 4
    shared.sync()
    assert len(disk.begun) == 3


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DirectorySync(tmp_path / "gone").sync()
    DirectorySync(tmp_path).sync()
