"""The server as processes: start, serve boto3, restart what dies, drain, stop, refuse."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.endpoint import BUCKET, Endpoint, Wire, run


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with Endpoint(tmp_path_factory.mktemp("server"), "--bucket", "kvcache:relaxed", workers=2) as running:
        yield running


def until(condition: object, seconds: float = 15) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("bucket", [BUCKET, "kvcache"])
@pytest.mark.parametrize("size", [0, 1, 16384, 16385, 1 << 20, (1 << 20) + 1, 9_000_001])
def test_boto3_stores_and_reads_back(endpoint: Endpoint, bucket: str, size: int) -> None:
    client = endpoint.client()
    body = os.urandom(size)
    put = client.put_object(Bucket=bucket, Key=f"sizes/{size}", Body=body, Metadata={"who": "test"})
    got = client.get_object(Bucket=bucket, Key=f"sizes/{size}")
    assert got["Body"].read() == body
    assert got["ETag"] == put["ETag"]
    assert got["Metadata"] == {"who": "test"}
    if size > 10:
        part = client.get_object(Bucket=bucket, Key=f"sizes/{size}", Range=f"bytes={size // 2}-{size + 10}")
        assert part["Body"].read() == body[size // 2 :]
    listed = client.list_objects_v2(Bucket=bucket, Prefix=f"sizes/{size}")["Contents"]
    assert (f"sizes/{size}", size) in [(item["Key"], item["Size"]) for item in listed]


def test_boto3_multipart(endpoint: Endpoint) -> None:
    client = endpoint.client()
    bodies = [os.urandom(5 << 20), os.urandom(6 << 20), os.urandom(100)]
    upload = client.create_multipart_upload(Bucket=BUCKET, Key="multi")["UploadId"]
    parts = []
    for number, body in enumerate(bodies, 1):
        part = client.upload_part(Bucket=BUCKET, Key="multi", UploadId=upload, PartNumber=number, Body=body)
        parts.append({"PartNumber": number, "ETag": part["ETag"]})
    done = client.complete_multipart_upload(
        Bucket=BUCKET, Key="multi", UploadId=upload, MultipartUpload={"Parts": parts}
    )
    assert done["ETag"].endswith('-3"')
    whole = b"".join(bodies)
    assert client.get_object(Bucket=BUCKET, Key="multi")["Body"].read() == whole
    cross = client.get_object(Bucket=BUCKET, Key="multi", Range="bytes=5242870-5242890")["Body"].read()
    assert cross == whole[5242870:5242891]
    client.copy_object(Bucket=BUCKET, Key="copy", CopySource={"Bucket": BUCKET, "Key": "multi"})
    assert client.get_object(Bucket=BUCKET, Key="copy")["Body"].read() == whole


def test_keep_alive_connections_are_spread_evenly(endpoint: Endpoint) -> None:
    wires = [endpoint.connect() for _ in range(16)]
    try:
        # x-amz-id-2 names the process that answers.
        answered = [wire.request("GET", "/").headers["x-amz-id-2"] for wire in wires]
        assert sorted(answered.count(worker) for worker in set(answered)) == [8, 8]
        for wire in wires[::2]:
            wire.close()
        time.sleep(0.3)
        wires += [endpoint.connect() for _ in range(8)]
        again = [wire.request("GET", "/").headers["x-amz-id-2"] for wire in wires[1:16:2] + wires[16:]]
        assert sorted(again.count(worker) for worker in set(again)) == [8, 8]
    finally:
        for wire in wires:
            wire.close()


def test_metrics_are_those_of_all_workers(endpoint: Endpoint) -> None:
    def total() -> float:
        page = urllib.request.urlopen(f"http://127.0.0.1:{endpoint.metrics_port}/metrics").read().decode()
        found = re.search(r'^s3verbs_requests_total\{code="",operation="ListBuckets",status="200"\} (\S+)$', page, re.M)
        return float(found[1]) if found else 0.0

    before = total()
    for _ in range(10):
        with endpoint.connect() as wire:
            assert wire.request("GET", "/").status == 200
    assert total() == before + 10
    page = urllib.request.urlopen(f"http://127.0.0.1:{endpoint.metrics_port}/metrics").read().decode()
    for name in (
        "s3verbs_request_seconds_bucket",
        "s3verbs_received_bytes_total",
        "s3verbs_sent_bytes_total",
        "s3verbs_requests_in_flight",
        "s3verbs_connections",
        f's3verbs_payload_free_bytes{{directory="{endpoint.data}"}}',
    ):
        assert name in page


def test_health_says_what_it_found(endpoint: Endpoint) -> None:
    base = f"http://127.0.0.1:{endpoint.metrics_port}/health"
    assert json.load(urllib.request.urlopen(f"{base}/live"))["status"] == "live"
    ready = json.load(urllib.request.urlopen(f"{base}/ready"))
    assert ready["status"] == "ready"
    assert ready["metadata"] == "ok"
    assert "bytes free" in ready["payload"][str(endpoint.data)]
    assert ready["rdma"].startswith("same host: ")


def test_all_processes_together_stay_small(endpoint: Endpoint) -> None:
    def resident(pid: int) -> int:
        return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1])  # type: ignore[index]

    assert resident(endpoint.process.pid) < 40_000
    assert sum(map(resident, [endpoint.process.pid, *endpoint.worker_pids])) < 300_000


def test_a_worker_that_dies_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    with Endpoint(tmp_path, workers=2) as endpoint:
        client = endpoint.client()
        client.put_object(Bucket=BUCKET, Key="kept", Body=b"kept" * 10_000)
        before = endpoint.worker_pids
        os.kill(before[0], signal.SIGKILL)
        assert until(lambda: len(endpoint.worker_pids) == 2 and before[0] not in endpoint.worker_pids)
        assert before[1] in endpoint.worker_pids
        for _ in range(4):
            with endpoint.connect() as wire:
                assert wire.request("GET", f"/{BUCKET}/kept").body == b"kept" * 10_000
        assert f"(pid {before[0]}) died: signal 9" in endpoint.errors


def test_what_was_stored_is_there_after_kill_9(tmp_path: Path) -> None:
    endpoint = Endpoint(tmp_path, workers=2)
    endpoint.start()
    body = os.urandom(3_000_000)
    endpoint.client().put_object(Bucket=BUCKET, Key="large", Body=body)
    endpoint.client().put_object(Bucket=BUCKET, Key="small", Body=b"small")
    workers = endpoint.worker_pids
    endpoint.stop(signal.SIGKILL)
    # Without their parent the workers drain and go.
    assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    with endpoint:
        assert endpoint.client().get_object(Bucket=BUCKET, Key="large")["Body"].read() == body
        assert endpoint.client().get_object(Bucket=BUCKET, Key="small")["Body"].read() == b"small"


# -- stopping --


def test_a_stop_lets_requests_finish(tmp_path: Path) -> None:
    with Endpoint(tmp_path) as endpoint:
        idle, busy = endpoint.connect(), endpoint.connect()
        assert idle.request("GET", "/").status == 200
        request = busy.signed("PUT", f"/{BUCKET}/late", b"l" * 500_000)
        busy.send(request[:300_000])
        time.sleep(0.2)
        endpoint.process.send_signal(signal.SIGTERM)
        assert idle.closed()
        with pytest.raises(ConnectionRefusedError):
            until(lambda: not endpoint.connect().close() and False, 5)
        busy.send(request[300_000:])
        response = busy.read()
        assert response.status == 200
        assert not response.keeps_alive
        assert busy.closed()
        assert endpoint.process.wait(10) == 0
        idle.close()
        busy.close()


def test_a_stop_lets_a_busy_client_finish_its_request_and_tells_it_to_go(tmp_path: Path) -> None:
    """The request after the signal is answered, not reset: the client cannot know of the stop before."""
    with Endpoint(tmp_path) as endpoint, endpoint.connect() as wire:
        assert wire.request("GET", "/").status == 200
        endpoint.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        response = wire.request("PUT", f"/{BUCKET}/after", b"l" * 500_000)
        assert response.status == 200
        assert not response.keeps_alive
        assert wire.closed()
        assert endpoint.process.wait(10) == 0


def test_a_stop_cuts_what_does_not_finish_in_time(tmp_path: Path) -> None:
    with Endpoint(tmp_path, "--drain-timeout", "0.5") as endpoint, endpoint.connect() as wire:
        wire.send(wire.signed("PUT", f"/{BUCKET}/never", b"l" * 500_000)[:300_000])
        time.sleep(0.2)
        started = time.monotonic()
        assert endpoint.stop(timeout=10) == 0
        assert 0.4 < time.monotonic() - started < 5


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    with Endpoint(tmp_path, "--drain-timeout", "60") as endpoint, endpoint.connect() as wire:
        wire.send(wire.signed("PUT", f"/{BUCKET}/never", b"l" * 500_000)[:300_000])
        time.sleep(0.2)
        endpoint.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert endpoint.process.poll() is None
        endpoint.process.send_signal(signal.SIGINT)
        endpoint.process.wait(5)


# -- starting --


def test_a_port_in_use_ends_with_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("serve", "--data", str(tmp_path / "d"), "--listen", address, "--metrics-listen", "off")
    assert result.returncode == 2
    assert result.stderr == (
        f"s3verbs: listen: {address}: Address already in use; another process listens there; stop it, or choose "
        "another port\n"
    )


def test_a_second_server_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with Endpoint(tmp_path) as endpoint:
        result = run("serve", "--data", str(tmp_path), "--listen", "127.0.0.1:0", "--metrics-listen", "off")
        assert result.returncode == 2
        assert result.stderr == (
            f"s3verbs: data: {tmp_path}: another server uses it (pid {endpoint.process.pid}); stop it, or give "
            "another directory\n"
        )


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    root = os.geteuid() == 0  # who may write everywhere but on a read-only file system
    if root:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "s3verbs-test", str(tmp_path)], check=True)
    else:
        tmp_path.chmod(0o500)
    try:
        result = run("serve", "--data", str(tmp_path / "d"), "--listen", "127.0.0.1:0", "--metrics-listen", "off")
    finally:
        if root:
            subprocess.run(["umount", str(tmp_path)], check=True)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert f"{tmp_path / 'd'}: " in result.stderr
    assert ("Read-only file system" if root else "Permission denied; give a directory that this user") in result.stderr


def test_data_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("serve", "--data", str(tmp_path / "file"), "--listen", "127.0.0.1:0", "--metrics-listen", "off")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"s3verbs: data: {tmp_path / 'file'}: ")


def test_the_first_start_makes_a_root_key_and_prints_it_once(tmp_path: Path) -> None:
    endpoint = Endpoint(tmp_path, keys=False)
    with endpoint:
        access_key = re.search(r"access key +(\S+)", endpoint.banner)[1]  # type: ignore[index]
        secret_key = re.search(r"secret key +(\S+) +\(made just now", endpoint.banner)[1]  # type: ignore[index]
        names = [
            bucket["Name"]
            for bucket in endpoint.client(access_key=access_key, secret_key=secret_key).list_buckets()["Buckets"]
        ]
        assert names == [BUCKET]
    with endpoint:
        assert access_key in endpoint.banner
        assert secret_key not in endpoint.banner
        assert endpoint.client(access_key=access_key, secret_key=secret_key).list_buckets()["Buckets"]


def test_the_lmcache_configuration_names_this_endpoint(tmp_path: Path) -> None:
    with Endpoint(tmp_path, "--show-lmcache") as endpoint:
        assert f"endpoint_override: http://127.0.0.1:{endpoint.port}" in endpoint.banner
        assert f"bucket: {BUCKET}" in endpoint.banner


def test_concurrent_clients_are_all_served(endpoint: Endpoint) -> None:
    failures: list[object] = []

    def work(number: int) -> None:
        try:
            with endpoint.connect() as wire:
                for turn in range(10):
                    body = bytes([number]) * (1000 + turn * 40_000)
                    if wire.request("PUT", f"/{BUCKET}/c{number}", body).status != 200:
                        failures.append((number, turn, "put"))
                    if wire.request("GET", f"/{BUCKET}/c{number}").body != body:
                        failures.append((number, turn, "get"))
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_gone_parent_takes_its_workers_along(tmp_path: Path) -> None:
    endpoint = Endpoint(tmp_path, workers=2)
    endpoint.start()
    workers = endpoint.worker_pids
    wire: Wire = endpoint.connect()
    assert wire.request("GET", "/").status == 200
    endpoint.stop(signal.SIGKILL)
    assert wire.closed()
    assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    wire.close()
