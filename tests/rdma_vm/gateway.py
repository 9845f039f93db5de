"""The real server on rxe0, and requests whose payload goes between it and memory behind rxe1."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from tests.integration.endpoint import BUCKET, Endpoint, Response, Wire
from tests.rdma_vm.resources import descriptors, objects

START_SECONDS = 150.0
"""Python starts twenty times slower in the guest."""

TRANSFER_SECONDS = 20


class Gateway(Endpoint):
    """A server that offers nothing but RC over one device. Use as a context manager."""

    def __init__(self, data: Path, *arguments: str, device: str = "rxe0") -> None:
        super().__init__(
            data,
            *("--rdma", "required", "--rdma-device", device, "--socket", "off", "--rdma-pool-bytes", "16MiB"),
            *("--rdma-transfer-timeout", str(TRANSFER_SECONDS), "--rdma-queue-timeout", "60"),
            *arguments,
            env={"PYTHONPATH": os.environ["PYTHONPATH"]},  # it has pyverbs
            patience=START_SECONDS,
        )

    def kill(self) -> None:
        """The parent and all workers at once, as when the machine fails."""
        workers = self.worker_pids
        for pid in (self.process.pid, *workers):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def put(self, key: str, token: str, **headers: str) -> Response:
        """PutObject of the token's memory."""
        with self.connect(120) as wire:
            return wire.request("PUT", path_of(key), x_amz_rdma_token=token, **headers)

    def get(self, key: str, token: str, query: str = "", **headers: str) -> Response:
        """GetObject into the token's memory."""
        with self.connect(120) as wire:
            return wire.request("GET", path_of(key) + query, x_amz_rdma_token=token, **headers)

    def plain_get(self, key: str) -> Response:
        """The object over HTTP."""
        with self.connect(120) as wire:
            return wire.request("GET", path_of(key))

    def plain_put(self, key: str, body: bytes) -> Response:
        with self.connect(120) as wire:
            return wire.request("PUT", path_of(key), body)

    def send(self, method: str, key: str, token: str) -> Wire:
        """Send a request and do not wait for its answer; the caller closes the connection."""
        wire = self.connect(120)
        wire.send(wire.signed(method, path_of(key), x_amz_rdma_token=token))
        return wire

    def metric(self, name: str, **labels: str) -> float:
        """The sum over all its series with these labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=60) as response:
            text = response.read().decode()
        total = 0.0
        for fields, value in re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE):
            found = dict(re.findall(r'(\w+)="([^"]*)"', fields))
            if labels.items() <= found.items():
                total += float(value)
        return total

    def held(self) -> dict[str, float]:
        """What requests hold of the server at this moment."""
        names = ("pool_used_bytes", "pool_waiting")
        return {name: self.metric(f"s3verbs_rdma_{name}") for name in names}

    def open(self) -> dict[str, int]:
        """Verbs objects and descriptors of all its workers."""
        total: dict[str, int] = {"descriptors": sum(map(descriptors, self.worker_pids))}
        for pid in self.worker_pids:
            for kind, count in objects(pid).items():
                total[kind] = total.get(kind, 0) + count
        return total


def moved(response: Response) -> bool:
    """Whether the payload went by RDMA. A GET for which there is no way at the moment is a 200 with a body."""
    return response.status == 200 and response.headers["x-amz-rdma-reply"] == "200"


def path_of(key: str) -> str:
    return f"/{BUCKET}/{quote(key)}"


IDLE: Mapping[str, float] = {"pool_used_bytes": 0, "pool_waiting": 0}


@contextmanager
def exposing_process(size: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A client in a process of its own that has registered `size` bytes and waits: it, and a token for all of them."""
    script = Path(__file__).with_name("exposer.py")
    with subprocess.Popen(
        [sys.executable, str(script), str(size)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    ) as process:
        try:
            assert process.stdout is not None
            token = process.stdout.readline().strip()
            assert token, "the client did not start"
            yield process, token
        finally:
            process.kill()
