"""Run by test_payload_crash: writes payloads in child processes and kills each child at the next system call.

    python payload_crash.py DIRECTORY DURABLE UNNAMED

Prints a JSON list with, for every child, the call before which it was killed, or "" for the one that finished.
"""

import errno
import itertools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from s3verbs.storage import block_io, payload_directory, payload_writer
from s3verbs.storage.nvme_store import NvmePayloadStore

SIZE = (2 << 20) + 77
CALLS = ["open", "pwrite", "ftruncate", "link", "rename", "fdatasync", "fsync", "close"]


def refuse_unnamed_files() -> None:
    real = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(path, flags, *rest, **more)

    os.open = refuse  # type: ignore[assignment]


def die_before(step: int, tell: int) -> None:
    """Kill this process before its call number `step`, counted from 0, having written its name to `tell`."""
    count = itertools.count()
    write = os.write

    def wrap(name: str, real: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            if next(count) == step:
                write(tell, name.encode())
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **more)

        return call

    for name in CALLS:
        setattr(os, name, wrap(name, getattr(os, name)))
    allocate = wrap("fallocate", block_io.preallocate)
    payload_writer.preallocate = payload_directory.preallocate = allocate


def main() -> None:
    directory, durable, unnamed = Path(sys.argv[1]), sys.argv[2] == "1", sys.argv[3] == "1"
    if not unnamed:
        refuse_unnamed_files()
    store = NvmePayloadStore([directory], store_id=bytes(16), new_id=lambda: os.urandom(16), reserve_bytes=0)
    deaths: list[str] = []
    while not deaths or deaths[-1]:
        reader, teller = os.pipe()
        child = os.fork()
        if child == 0:
            die_before(len(deaths), teller)
            writer = store.create(SIZE + 5000, durable=durable)
            data = memoryview(os.urandom(SIZE))
            writer.write(data[: 1 << 20])
            writer.write(data[1 << 20 :])
            writer.seal(durable=durable)
            os._exit(0)
        os.waitpid(child, 0)
        os.close(teller)
        deaths.append(os.read(reader, 100).decode())
        os.close(reader)
    print(json.dumps(deaths))


if __name__ == "__main__":
    main()
