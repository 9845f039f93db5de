"""The parent's side of a process of `nixl_worker`: start it, give it windows, say in one line why it failed."""

import contextlib
import json
import os
import re
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from s3verbs.bench.errors import BenchError, CannotStart
from s3verbs.bench.plan import Context
from s3verbs.bench.results import Sample

LIBRARY_PREFIX = "s3verbs: "
"""Of the lines that libcuobjclient writes to standard error."""
_ERROR = re.compile(r"(?:E\d{4} [\d:.]+ +\d+ \S+\] |s3verbs: (?=error))(.+)")
"""A line in the format of NIXL's logger, or one of the library."""

SCRIPT = Path(__file__).with_name("nixl_worker.py")


@dataclass(frozen=True, slots=True)
class Job:
    """`parameters` of the OBJ plugin, with the secret key. The buffer has `slots` places of `slot_bytes`; `timeout`,
    seconds, is for one window. `environment` is added to the parent's."""

    transport: str
    python: str
    parameters: Mapping[str, str]
    slots: int
    slot_bytes: int
    timeout: float
    environment: Mapping[str, str]


class Worker:
    """One process; a context manager. One thread. After a BenchError it is of no more use."""

    def __init__(self, job: Job) -> None:
        """Returns once the buffer is registered. Raises CannotStart."""
        self._job = job
        try:
            self._process = subprocess.Popen(  # noqa: S603 the interpreter that the caller named
                [job.python, str(SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                # The folder of the script must not be searched for modules.
                env={**os.environ, "PYTHONSAFEPATH": "1", **job.environment},
            )
        except OSError as error:
            raise CannotStart(f"--python {job.python}: {error.strerror}") from None
        self._said: deque[str] = deque(maxlen=100)
        self._library_said: deque[str] = deque(maxlen=20)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        try:
            told = {"parameters": dict(job.parameters), "slots": job.slots, "slot_bytes": job.slot_bytes}
            ready = self._ask({**told, "timeout": job.timeout})
        except BenchError as error:
            self.close()
            raise CannotStart(str(error)) from None
        except BaseException:
            self.close()
            raise
        self.nixl = str(ready["nixl"])
        self.register_seconds = float(ready["register_seconds"])

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._process.kill()
        self.close()

    def move(self, operation: str, context: Context, window: range, prefix: str, salt: int) -> Sample:
        """Store or load the objects of `window`, under `prefix` and their number. Raises BenchError."""
        done = self._ask(
            {
                "operation": operation,
                "keys": [f"{prefix}{number:06d}" for number in window],
                "sizes": [context.size_of(number) for number in window],
                "first": window.start,
                "salt": salt,
            }
        )
        return Sample(done["seconds"], done["cpu"])

    @property
    def library_lines(self) -> Sequence[str]:
        """The last that the client library has said, without its prefix."""
        return list(self._library_said)

    def close(self) -> None:
        """End the process; one that does not leave by itself is killed."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join(5)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._said.clear()
        # One that has left has said why.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            how = f"was ended by signal {-code}" if code < 0 else f"left with {code}"
            raise BenchError(f"{self._job.transport}: the process that runs NIXL {how}{self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if answer["event"] == "error":
            raise BenchError(f"{self._job.transport}: {answer['text']}{self._advice(answer['kind'])}")
        return answer

    def _advice(self, kind: str) -> str:
        if kind == "nixl":
            python = self._job.python
            return (
                f" in {python}; install it there: {python} -m pip install numpy && "
                f"{python} -m pip install --no-deps nixl-cu13; or name another interpreter: --python"
            )
        if kind == "plugin":
            return "; `make client` builds that library, --library names it, `s3verbs client env` examines it"
        return self._last_words()

    def _last_words(self) -> str:
        """What the library complained of, else NIXL's first error since the question: the later ones follow from it."""
        self._listener.join(0.2)
        errors = [found[1] for line in list(self._said) if (found := _ERROR.match(line))]
        return f" ({errors[0]})" if errors else ""

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._said.append(line)
                if line.startswith(LIBRARY_PREFIX):
                    self._library_said.append(line.removeprefix(LIBRARY_PREFIX).rstrip())
