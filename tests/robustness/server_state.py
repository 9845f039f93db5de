"""What a running server holds, read from /proc, and how it is killed: parent, workers, their memory and files."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.integration.endpoint import Endpoint


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_running(pid: int) -> bool:
    """While any of its threads is left: a process whose first thread is a zombie may still hold files and locks."""
    try:
        return any(not _is_dead(task / "stat") for task in Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return False


def _is_dead(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return True


def kill_whole(endpoint: Endpoint) -> None:
    """SIGKILL to parent and workers at one moment: the parent is stopped first, so it starts no worker again."""
    parent = endpoint.process.pid
    os.kill(parent, signal.SIGSTOP)
    workers = endpoint.worker_pids
    for pid in (*workers, parent):
        os.kill(pid, signal.SIGKILL)
    endpoint.process.wait(10)
    assert wait_until(lambda: not any(is_running(pid) for pid in workers))


def open_files(endpoint: Endpoint) -> int:
    """Descriptors of all workers together."""
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in endpoint.worker_pids)  # noqa: PTH208


def forget_peak(endpoint: Endpoint) -> None:
    """Let the peak of each worker's resident memory begin anew."""
    for pid in endpoint.worker_pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def resident(endpoint: Endpoint) -> dict[int, int]:
    """Bytes of resident memory by worker."""
    return {pid: _status(pid, "VmRSS") for pid in endpoint.worker_pids}


def peak(endpoint: Endpoint) -> dict[int, int]:
    """The most of it since `forget_peak`."""
    return {pid: _status(pid, "VmHWM") for pid in endpoint.worker_pids}


def _status(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {name}")
