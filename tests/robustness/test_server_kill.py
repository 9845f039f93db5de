"""SIGKILL under load: the whole server, one worker, the parent. What was acknowledged is there; nothing half is."""

import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ResponseStreamingError

from s3verbs.storage.check import ORPHAN, check_store
from s3verbs.storage.opening import open_store
from s3verbs.storage.sweep import sweep_orphans
from tests.integration.endpoint import BUCKET, Endpoint, run
from tests.robustness.server_load import Writer, listed, settle_ledger
from tests.robustness.server_state import is_running, kill_whole, wait_until

ROUNDS = 8
WRITERS = 6
HOURS_NS = 7200 * 1_000_000_000


def lives(endpoint: Endpoint, writers: list[Writer], seconds: float) -> None:
    """Load for so long, then SIGKILL."""
    for writer in writers:
        writer.start()
    time.sleep(seconds)
    kill_whole(endpoint)
    for writer in writers:
        writer.join(30)
        assert not writer.is_alive()
        assert not writer.faults, writer.faults
    assert "Traceback" not in endpoint.errors


def orphans_only(data: list[Path], most: int) -> None:
    """The store that a kill left: nothing amiss but files of writes without a 200, which the sweep takes away."""
    store = open_store(data, exclusive=True)
    try:
        report = check_store(store, read_payloads=True, repair=False)
        assert {finding.kind for finding in report.findings} <= {ORPHAN}, report.findings
        assert len(report.findings) <= most
        now = time.time_ns()
        swept = sweep_orphans(store.metadata, store.payloads, now_ns=now + HOURS_NS, files_per_second=1_000_000)
        assert swept.unlinked == len(report.findings)
        assert check_store(store, read_payloads=False, repair=False).clean
    finally:
        store.close()


def unanswered_files(writers: list[Writer]) -> int:
    """How many payload files may have been sealed for nothing: one per writer, the request that was cut off, and those
    of refused writes, which are unlinked a moment after the answer."""
    return len(writers) + sum(writer.refused for writer in writers)


def test_a_server_killed_under_load_keeps_every_acknowledged_object_whole(tmp_path: Path) -> None:
    """On two drives, with a metadata map that has to grow meanwhile."""
    chance = random.Random(9)
    data = [tmp_path / "data", tmp_path / "more"]
    with Endpoint(data[0], "--data", str(data[1]), "--map-bytes", "16MiB", workers=2) as endpoint:
        writers = [Writer(endpoint.connect, number, races=range(100_000)) for number in range(WRITERS)]
        answered = 0
        for round in range(ROUNDS):
            lives(endpoint, writers, chance.uniform(0.3, 2.0))
            answered += sum(writer.answered for writer in writers)
            orphans_only(data, unanswered_files(writers))
            endpoint.start()
            with endpoint.connect() as wire:
                present = settle_ledger(wire, writers)
                shown = listed(wire)
            assert {key: value.etag for key, value in present.items()}.items() <= shown.items()
            assert not {key for key in shown if not key.startswith("race/")} - present.keys()
            writers = [writer.again(WRITERS * (round + 1) + number) for number, writer in enumerate(writers)]
        assert answered > 100 * ROUNDS, "too little load to prove anything"
        assert endpoint.stop() == 0
        checked = run("admin", "check", "--read-payloads", "--data", str(data[0]), "--data", str(data[1]))
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert checked.stdout.endswith("clean\n")


# -- one worker --


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    with Endpoint(tmp_path / "data", workers=2) as running:
        yield running


class Client(threading.Thread):
    """A boto3 client with its default retries, which writes new keys until it is stopped."""

    def __init__(self, client: Any, number: int) -> None:
        super().__init__()
        self.client = client
        self.number = number
        self.written: dict[str, bytes] = {}
        self.errors: list[Exception] = []
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            key = f"c{self.number}/{len(self.written):05d}"
            body = f"{key} ".encode() * (3 if len(self.written) % 2 else 4000)
            try:
                self.client.put_object(Bucket=BUCKET, Key=key, Body=body)
                assert self._read(key) == body
            except Exception as error:  # noqa: BLE001  whatever the client raises fails the test
                self.errors.append(error)
                return
            self.written[key] = body

    def _read(self, key: str) -> bytes:
        """A body that breaks off is asked for again, as download_file does: boto3 itself retries the head only."""
        for _ in range(4):
            with suppress(ResponseStreamingError):
                return bytes(self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
        return bytes(self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read())


def test_a_killed_worker_is_replaced_and_retrying_clients_notice_nothing(endpoint: Endpoint) -> None:
    # boto3's default: legacy retries, five attempts in all.
    clients = [Client(endpoint.client(config=Config(parameter_validation=False)), number) for number in range(4)]
    for client in clients:
        client.start()
    killed: list[int] = []
    for _ in range(3):
        time.sleep(1.0)
        workers = endpoint.worker_pids
        victim = random.Random(len(killed)).choice(workers)
        os.kill(victim, signal.SIGKILL)
        killed.append(victim)
        assert wait_until(lambda: len(endpoint.worker_pids) == 2 and killed[-1] not in endpoint.worker_pids)
    time.sleep(1.0)
    for client in clients:
        client.stop.set()
    for client in clients:
        client.join(60)
        assert not client.errors, client.errors
        assert len(client.written) > 20
    reader = endpoint.client()
    for client in clients:
        for key, body in client.written.items():
            assert reader.get_object(Bucket=BUCKET, Key=key)["Body"].read() == body
    assert endpoint.errors.count("died: signal 9") == 3
    assert "Traceback" not in endpoint.errors
    assert endpoint.stop() == 0


def test_acknowledged_writes_survive_the_worker_that_made_them(endpoint: Endpoint) -> None:
    writers = [Writer(endpoint.connect, number, races=range(10_000)) for number in range(4)]
    for writer in writers:
        writer.start()
    time.sleep(1.5)
    os.kill(endpoint.worker_pids[0], signal.SIGKILL)
    time.sleep(1.0)
    alive = [writer for writer in writers if writer.is_alive()]
    assert 0 < len(alive) < len(writers), "the other worker goes on serving"
    for writer in writers:
        writer.stop.set()
    for writer in writers:
        writer.join(30)
        assert not writer.faults
    with endpoint.connect() as wire:
        settle_ledger(wire, writers)


# -- the parent --


def test_workers_end_with_a_killed_parent_and_the_next_server_waits_for_them(endpoint: Endpoint) -> None:
    workers = endpoint.worker_pids
    next_start = threading.Thread(target=endpoint.start)
    with endpoint.connect() as idle, endpoint.connect() as busy:
        assert idle.request("GET", f"/{BUCKET}").status == 200
        request = busy.signed("PUT", f"/{BUCKET}/late", b"l" * 100_000)
        busy.send(request[:-1])
        time.sleep(0.2)
        endpoint.process.kill()
        endpoint.process.wait(10)
        # A request that is being served still ends well, as after SIGTERM.
        assert idle.closed()
        next_start.start()
        time.sleep(0.5)
        busy.send(request[-1:])
        assert busy.read().status == 200
    assert wait_until(lambda: not any(is_running(pid) for pid in workers), 5)
    next_start.join(30)
    with endpoint.connect() as wire:
        assert wire.request("GET", f"/{BUCKET}/late").body == b"l" * 100_000


def test_a_port_of_a_killed_parent_is_free_at_once(endpoint: Endpoint) -> None:
    port = endpoint.port
    with endpoint.connect() as wire:
        assert wire.request("GET", f"/{BUCKET}").status == 200
    endpoint.process.kill()
    endpoint.process.wait(10)
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_second_server_on_the_same_data_is_refused_at_once(endpoint: Endpoint) -> None:
    started = time.monotonic()
    second = run("serve", "--data", str(endpoint.data), "--listen", "127.0.0.1:0", "--metrics-listen", "off")
    assert second.returncode == 2
    assert f"another server uses it (pid {endpoint.process.pid})" in second.stderr
    assert time.monotonic() - started < 20
