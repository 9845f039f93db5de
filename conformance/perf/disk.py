"""The disk's own rate: appends of 8 MiB, each followed by fdatasync, from one process and no network."""

import os
import time
from pathlib import Path

SIZE = 8 << 20


def fdatasync_rate(folder: Path, seconds: float = 2.0) -> float:
    """MB/s of fresh files of 8 MiB, written through the page cache and synced one after the other."""
    data = os.urandom(SIZE)
    path = folder / "fdatasync-probe"
    written, start = 0, time.monotonic()
    while time.monotonic() - start < seconds:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(fd, data)
            os.fdatasync(fd)
        finally:
            os.close(fd)
        written += SIZE
    elapsed = time.monotonic() - start
    path.unlink()
    return written / elapsed / 1e6
