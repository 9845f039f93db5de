"""A gateway of the benchmark's own: `s3verbs serve` on loopback, in a temporary directory that goes away with it."""

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from s3verbs.bench.endpoint import Access
from s3verbs.bench.errors import CannotStart

BUCKET = "kvcache"
START_SECONDS = 60.0
STOP_SECONDS = 60.0


class OwnGateway:
    """A context manager. `settings` are further NAME=VALUE of serve. The bucket is a relaxed one, as for a cache."""

    def __init__(self, folder: Path | None, settings: Sequence[str]) -> None:
        self._folder = folder
        self._settings = settings
        self.access = Access("", "", "")
        self.socket = ""
        """Path of the same-host transport's socket, "" when there is none."""

    def __enter__(self) -> "OwnGateway":
        """Raises CannotStart."""
        try:
            self._home = Path(tempfile.mkdtemp(prefix="s3verbs-bench-", dir=self._folder))
        except OSError as error:
            raise CannotStart(f"--folder {self._folder}: {error.strerror}") from None
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process: subprocess.Popen[bytes] | None = getattr(self, "_process", None)
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    @property
    def free_bytes(self) -> int:
        """Of the drive that has its data."""
        return shutil.disk_usage(self._home).free

    def _start(self) -> None:
        access_key, secret_key = "BENCH" + secrets.token_hex(8).upper(), secrets.token_hex(20)
        # Settings and keys of a gateway that this user runs are not this one's.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("S3VERBS_")}
        command = [sys.executable, "-m", "s3verbs.gateway", "serve", "--data", str(self._home / "data")]
        command += ["--listen", "127.0.0.1:0", "--metrics-listen", "off", "--bucket", f"{BUCKET}:relaxed"]
        for setting in self._settings:
            name, _, value = setting.partition("=")
            command += [f"--{name.replace('_', '-')}", value]
        told, log = self._home / "stdout", self._home / "stderr"
        with told.open("wb") as stdout, log.open("wb") as stderr:
            self._process = subprocess.Popen(  # noqa: S603 our own command
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**kept, "S3VERBS_ROOT_ACCESS_KEY": access_key, "S3VERBS_ROOT_SECRET_KEY": secret_key},
                # An interrupt from the terminal is ours to pass on, after the objects are deleted.
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while "access key" not in (banner := told.read_text()):
            if self._process.poll() is not None or time.monotonic() > deadline:
                lines = log.read_text(errors="replace").strip().splitlines()
                raise CannotStart(
                    f"the benchmark's own gateway did not start: {lines[-1] if lines else 'no reason given'}"
                )
            time.sleep(0.02)
        found = dict(re.findall(r"^  (endpoint|same host) +(\S+)$", banner, re.MULTILINE))
        self.access = Access(found["endpoint"], access_key, secret_key)
        self.socket = found.get("same host", "")
