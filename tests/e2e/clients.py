"""Runs the clients: driver scripts in the client's own environment, and command line programs."""

import contextlib
import hashlib
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import environments
from tests.e2e.server import Endpoint

HERE = Path(__file__).resolve().parent
MIB = 1 << 20


def payload(seed: int | str, size: int) -> bytes:
    """The bytes that a driver makes for the same seed (drivers/cases.py holds the same two lines)."""
    return random.Random(str(seed)).randbytes(size)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def client_environment(endpoint: Endpoint, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of a client: credentials as AWS names them, and no setting of the person who tests."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("S3VERBS_", "AWS_", "RCLONE_", "PYTHON", "LMCACHE_", "NIXL_", "VLLM_"))
    }
    return {
        **kept,
        "AWS_ACCESS_KEY_ID": endpoint.access_key,
        "AWS_SECRET_ACCESS_KEY": endpoint.secret_key,
        "AWS_DEFAULT_REGION": endpoint.region,
        "AWS_REGION": endpoint.region,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        **({"AWS_CA_BUNDLE": endpoint.ca} if endpoint.ca else {}),
        **(extra or {}),
    }


class Driver:
    """A case of a driver script that runs now. Its output is one JSON value a line: events, then the result. With
    `stay` the process waits for further cases, until `finish`. `within` is a command that runs its arguments."""

    def __init__(
        self,
        environment: str,
        script: str,
        case: str,
        endpoint: Endpoint,
        arguments: Mapping[str, Any],
        extra: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stay: bool = False,
        within: Sequence[str] = (),
    ) -> None:
        self.name = f"{script}:{case}"
        self._endpoint = endpoint
        self.process = subprocess.Popen(
            [*within, str(environments.ensure(environment)), str(HERE / "drivers" / f"{script}.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=client_environment(endpoint, extra),
            cwd=cwd,
            start_new_session=True,
        )
        self._send(case, arguments)
        if not stay:
            self._no_more()
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=target, daemon=True) for target in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _send(self, case: str, arguments: Mapping[str, Any]) -> None:
        request = {"case": case, "endpoint": vars(self._endpoint), "arguments": arguments}
        assert self.process.stdin is not None
        # Of a process that is gone `next` tells more.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()

    def _no_more(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            self._errors.extend(lines)

    def next(self, timeout: float) -> Any:
        """The next event, or the result."""
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            line = None
        if line is None:
            self._lines.put(None)
            self.fail(timeout)
        return json.loads(line)

    def result(self, timeout: float = 120) -> Any:
        """The value of the only case, whose process ends; events that nobody asked for are passed over."""
        deadline = time.monotonic() + timeout
        value = self.value(timeout)
        self._end(deadline, timeout)
        return value

    def value(self, timeout: float = 120) -> Any:
        """The value of the case that runs, as `result`, but the process goes on."""
        deadline = time.monotonic() + timeout
        value = self.next(timeout)
        while isinstance(value, dict) and "event" in value:
            value = self.next(max(0.1, deadline - time.monotonic()))
        return value

    def ask(self, case: str, timeout: float = 120, **arguments: Any) -> Any:
        """Another case of a process that stays: its value."""
        self._send(case, arguments)
        return self.value(timeout)

    def begin(self, case: str, **arguments: Any) -> None:
        """As `ask`; `next` and `value` tell what becomes of it."""
        self._send(case, arguments)

    def finish(self, timeout: float = 60) -> str:
        """Let a process that stays end by itself: what it said on standard error. The test fails when it crashes."""
        self._no_more()
        self._end(time.monotonic() + timeout, timeout)
        if self.process.returncode != 0:
            self.fail(timeout)
        return "".join(self._errors)

    def _end(self, deadline: float, timeout: float) -> None:
        try:
            self.process.wait(max(1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.fail(timeout)
        self._readers[1].join(5)

    def fail(self, timeout: float) -> None:
        if self.process.poll() is None:
            try:
                self.process.wait(1)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                self._errors.append(f"\nno answer within {timeout} s\n")
        self._readers[1].join(5)
        pytest.fail(f"{self.name} left with {self.process.returncode}\n{''.join(self._errors)[-6000:]}", pytrace=False)

    def close(self) -> None:
        """End it and every process that it started; vLLM leaves some behind."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._no_more()
        for reader in self._readers:
            reader.join(5)


def run(
    command: list[str],
    endpoint: Endpoint,
    *,
    extra: Mapping[str, str] | None = None,
    timeout: float = 120,
    cwd: Path | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a command line client to its end. With `check`, a non-zero exit fails the test and shows its output."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        env=client_environment(endpoint, extra),
        cwd=cwd,
        check=False,
    )
    if check and done.returncode != 0:
        pytest.fail(
            f"{command} left with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}", pytrace=False
        )
    return done


def program(path: str) -> str:
    """A program that comes from the system's packages; the test fails where it is missing."""
    found = shutil.which(path)
    if found is None:
        pytest.fail(f"{path} is not installed: apt-get install rclone s3cmd awscli", pytrace=False)
    return found
