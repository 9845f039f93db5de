"""JSON lines to a file or stdout, written behind the back of the event loop.

A line costs the loop an append. Encoding and writing happen on a thread that wakes twice a second, or when many
lines wait; when the disk cannot keep up, lines are dropped and counted, and the loss is written as a line itself.
"""

import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FLUSH_SECONDS = 0.5
WAKE_AT = 2048
MAX_WAITING = 100_000

Entry = tuple[Any, ...]


class JsonLines:
    """One log. `target` is "stdout" or a file's path; `encode` turns an appended tuple into a mapping."""

    def __init__(self, target: str, encode: Callable[[Entry], Mapping[str, Any]]) -> None:
        """Raises OSError when the file cannot be opened."""
        self._target = target
        self._encode = encode
        self._entries: deque[Entry] = deque()
        self._dropped = 0
        self._wake = threading.Event()
        self._stopping = False
        self._reopen = False
        self._fd = self._open()
        self._thread = threading.Thread(target=self._run, name=f"log {Path(target).name}", daemon=True)
        self._thread.start()

    def append(self, entry: Entry) -> None:
        """Any thread; never blocks."""
        entries = self._entries
        if len(entries) >= MAX_WAITING:
            self._dropped += 1
            return
        entries.append(entry)
        if len(entries) == WAKE_AT:
            self._wake.set()

    def reopen(self) -> None:
        """Open the file again at the next flush, after it was rotated."""
        self._reopen = True
        self._wake.set()

    def close(self) -> None:
        """Write what waits, and stop. Closing again does nothing."""
        if self._stopping:
            return
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout=5)
        if self._fd > 2:
            os.close(self._fd)

    def _open(self) -> int:
        if self._target == "stdout":
            return sys.stdout.fileno()
        return os.open(self._target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def _run(self) -> None:
        while True:
            self._wake.wait(FLUSH_SECONDS)
            self._wake.clear()
            stopping = self._stopping
            if self._reopen:
                self._reopen = False
                self._reopen_file()
            self._flush()
            if stopping:
                return

    def _reopen_file(self) -> None:
        if self._fd <= 2:
            return
        try:
            fresh = self._open()
        except OSError as error:
            sys.stderr.write(f"s3verbs: {self._target} cannot be opened again: {error.strerror}\n")
            return
        os.close(self._fd)
        self._fd = fresh

    def _flush(self) -> None:
        # Taken one by one: another thread may be in the middle of an append.
        entries = self._entries
        dropped, self._dropped = self._dropped, 0
        lines = [json.dumps(self._encode(entries.popleft()), ensure_ascii=True) for _ in range(len(entries))]
        if dropped:
            lines.append(json.dumps({"dropped": dropped}))
        if not lines:
            return
        data = memoryview(("\n".join(lines) + "\n").encode())
        try:
            # One write for whole lines: several processes append to the same file.
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            sys.stderr.write(f"s3verbs: {self._target}: {error.strerror}; {len(lines)} log lines are lost\n")
