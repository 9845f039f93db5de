"""The stock NIXL OBJ plugin (nixl-cu12 1.5.1): its standard client and its CRT client."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.clients import MIB, Driver, payload, sha256
from tests.e2e.fault_proxy import Fault, FaultProxy
from tests.e2e.server import DEFAULT_BUCKET, Endpoint, Server

Drive = Callable[..., Any]
Start = Callable[..., Driver]

STANDARD = {"req_checksum": "required"}
TRAILER: dict[str, str] = {}
CRT = {"req_checksum": "required", "crtMinLimit": str(8 * MIB)}
CLIENTS = pytest.mark.parametrize("parameters", [STANDARD, TRAILER, CRT], ids=["standard", "trailer", "crt"])

SIZES = [4096, 16 * 1024, 100_000, MIB, 8 * MIB, 20 * MIB, 64 * MIB]


def keys_for(sizes: list[int]) -> list[str]:
    """Keys in the shape of vLLM's: characters that this client sends raw and signs encoded."""
    return [f"vllm@tiny/llama=1/obj {number}" for number in range(len(sizes))]


def digests(keys: list[str], sizes: list[int]) -> list[str]:
    return [sha256(payload(key, size)) for key, size in zip(keys, sizes, strict=True)]


@CLIENTS
def test_write_query_and_read(drive: Drive, observer: Any, bucket: str, parameters: dict[str, str]) -> None:
    keys = keys_for(SIZES)
    result = drive("nixl", "nixl_client", "round_trip", bucket=bucket, keys=keys, sizes=SIZES, parameters=parameters)
    assert result["before"] == [False] * (len(keys) + 1)
    assert result["write"]["state"] == "DONE"
    assert result["after"] == [True] * len(keys) + [False]
    assert result["read"]["state"] == "DONE"
    assert result["read"]["sha256"] == digests(keys, SIZES)
    for key, size in zip(keys, SIZES, strict=True):
        stored = observer.get_object(Bucket=bucket, Key=key)
        assert sha256(stored["Body"].read()) == sha256(payload(key, size))
        assert "ContentEncoding" not in stored, "aws-chunked describes the transfer, not the object"
        in_parts = "crtMinLimit" in parameters and size > 8 * MIB
        assert stored["ETag"].endswith(f'-{-(-size // (8 * MIB))}"') == in_parts


@CLIENTS
def test_another_process_reads_what_was_written(drive: Drive, bucket: str, parameters: dict[str, str]) -> None:
    sizes = [4096, 9 * MIB]
    keys = keys_for(sizes)
    arguments = {"bucket": bucket, "keys": keys, "sizes": sizes, "parameters": parameters}
    assert drive("nixl", "nixl_client", "write", **arguments)["state"] == "DONE"
    result = drive("nixl", "nixl_client", "read", **arguments)
    assert (result["state"], result["sha256"]) == ("DONE", digests(keys, sizes))


def test_virtual_hosted_addressing(
    drive: Drive, endpoint: Endpoint, bucket: str, localhost_names: dict[str, str]
) -> None:
    at = Endpoint(url=f"http://localhost:{endpoint.port}")
    parameters = {**STANDARD, "use_virtual_addressing": "true"}
    arguments = {"bucket": bucket, "keys": ["a=b@c"], "sizes": [70_000], "parameters": parameters}
    result = drive("nixl", "nixl_client", "round_trip", at=at, extra=localhost_names, **arguments)
    assert (result["after"], result["read"]["sha256"]) == ([True, False], digests(["a=b@c"], [70_000]))


@CLIENTS
def test_a_range_at_an_offset(drive: Drive, observer: Any, bucket: str, parameters: dict[str, str]) -> None:
    data = payload("ranged", 30 * MIB)
    observer.put_object(Bucket=bucket, Key="ranged", Body=data)
    for offset, length in ((4096, 1000), (MIB - 1, 17 * MIB)):
        arguments = {"bucket": bucket, "keys": ["ranged"], "sizes": [length], "parameters": parameters}
        result = drive("nixl", "nixl_client", "read", offset=offset, **arguments)
        assert (result["state"], result["sha256"]) == ("DONE", [sha256(data[offset : offset + length])])


def test_a_read_past_the_end_gets_what_is_there(drive: Drive, observer: Any, bucket: str) -> None:
    observer.put_object(Bucket=bucket, Key="short", Body=payload("short", 5000))
    arguments = {"bucket": bucket, "keys": ["short"], "sizes": [4096], "parameters": STANDARD}
    result = drive("nixl", "nixl_client", "read", offset=4000, **arguments)
    expected = payload("short", 5000)[4000:] + b"\xee" * 3096
    assert (result["state"], result["sha256"]) == ("DONE", [sha256(expected)])


@CLIENTS
def test_an_absent_object_fails_the_read_at_once(drive: Drive, bucket: str, parameters: dict[str, str]) -> None:
    arguments = {"bucket": bucket, "keys": ["absent"], "sizes": [9 * MIB], "parameters": parameters}
    result = drive("nixl", "nixl_client", "read", **arguments)
    assert result["state"].startswith("ERR")
    assert result["seconds"] < 3


def test_a_wrong_secret_fails_the_write(drive: Drive, observer: Any, endpoint: Endpoint, bucket: str) -> None:
    at = Endpoint(url=endpoint.url, secret_key="wrong")
    arguments = {"bucket": bucket, "keys": ["k"], "sizes": [4096], "parameters": STANDARD}
    assert drive("nixl", "nixl_client", "write", at=at, **arguments)["state"].startswith("ERR")
    assert observer.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_the_crt_client_sends_absolute_targets_in_parallel_parts(drive: Drive, bucket: str, proxy: FaultProxy) -> None:
    at = Endpoint(url=f"http://127.0.0.1:{proxy.port}")
    arguments = {"bucket": bucket, "keys": ["k"], "sizes": [20 * MIB], "parameters": CRT}
    result = drive("nixl", "nixl_client", "round_trip", at=at, **arguments)
    assert result["read"]["sha256"] == digests(["k"], [20 * MIB])
    parts = [seen for seen in proxy.seen if seen.method == "PUT"]
    assert len(parts) == 3
    assert all(seen.target.startswith(f"http://127.0.0.1:{proxy.port}/{bucket}/k?") for seen in parts)


class TestFaults:
    """503 in front of the endpoint. On GET its body is empty: this client moves its buffer past any bytes of it."""

    def test_gets_are_tried_again(self, drive: Drive, observer: Any, bucket: str, proxy: FaultProxy) -> None:
        observer.put_object(Bucket=bucket, Key="k", Body=payload("k", 100_000))
        proxy.faults.append(Fault("GET", target="/k", times=3, status=503))
        at = Endpoint(url=f"http://127.0.0.1:{proxy.port}")
        arguments = {"bucket": bucket, "keys": ["k"], "sizes": [100_000], "parameters": STANDARD}
        result = drive("nixl", "nixl_client", "read", at=at, **arguments)
        assert (result["state"], result["sha256"]) == ("DONE", digests(["k"], [100_000]))
        assert proxy.statuses("GET", "/k") == [503, 503, 503, 206]

    @CLIENTS
    def test_puts_are_tried_again(
        self, drive: Drive, bucket: str, proxy: FaultProxy, parameters: dict[str, str]
    ) -> None:
        body = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
        proxy.faults.append(Fault("PUT", times=3, status=503, body=body))
        at = Endpoint(url=f"http://127.0.0.1:{proxy.port}")
        sizes = [9 * MIB]
        arguments = {"bucket": bucket, "keys": ["k"], "sizes": sizes, "parameters": parameters}
        result = drive("nixl", "nixl_client", "round_trip", at=at, **arguments)
        assert result["write"]["state"] == "DONE"
        assert result["read"]["sha256"] == digests(["k"], sizes)
        assert proxy.statuses("PUT").count(503) == 3

    def test_a_pause_longer_than_the_clients_patience(self, start: Start, bucket: str, proxy: FaultProxy) -> None:
        at = Endpoint(url=f"http://127.0.0.1:{proxy.port}")
        arguments = {"bucket": bucket, "count": 4, "size": MIB, "parameters": STANDARD}
        driver = start("nixl", "nixl_client", "batches", at=at, **arguments)
        wait_for(driver, "write 1")
        with proxy.paused():
            time.sleep(5)
        wait_for(driver, "read 1")
        with proxy.paused():
            time.sleep(5)
        result = driver.result(60)
        for batch, (write, read) in enumerate(zip(result["writes"], result["reads"], strict=True)):
            assert (write["state"], read["state"]) == ("DONE", "DONE")
            assert read["sha256"] == digests([f"batch/{batch}/{number}" for number in range(4)], [MIB] * 4)

    @pytest.mark.parametrize("drop", ["request", "reply"])
    def test_lost_connections_are_tried_again(self, drive: Drive, bucket: str, proxy: FaultProxy, drop: str) -> None:
        proxy.faults += [Fault("PUT", times=2, drop=drop), Fault("GET", times=2, drop=drop)]
        at = Endpoint(url=f"http://127.0.0.1:{proxy.port}")
        arguments = {"bucket": bucket, "keys": ["k"], "sizes": [MIB], "parameters": STANDARD}
        result = drive("nixl", "nixl_client", "round_trip", at=at, **arguments)
        assert result["write"]["state"] == "DONE"
        assert proxy.statuses("PUT") == [0, 0, 200]
        if drop == "request":
            assert result["read"]["sha256"] == digests(["k"], [MIB])


@pytest.mark.parametrize("parameters", [STANDARD, TRAILER], ids=["standard", "trailer"])
def test_ten_seconds_without_the_server(start: Start, own_server: Server, parameters: dict[str, str]) -> None:
    """Stopped in the middle of the writes and again of the reads: nothing fails and nothing is lost."""
    count = 12
    arguments = {"bucket": DEFAULT_BUCKET, "count": count, "size": MIB, "parameters": parameters}
    driver = start("nixl", "nixl_client", "batches", at=own_server.endpoint, **arguments)
    for event in ("write 4", "read 4"):
        wait_for(driver, event)
        own_server.stop()
        time.sleep(10)
        own_server.start()
    result = driver.result(180)
    outcome = result, own_server.refusals()
    assert [write["state"] for write in result["writes"]] == ["DONE"] * count, outcome
    assert max(write["seconds"] for write in result["writes"]) > 8, "the outage was in the middle"
    assert max(read["seconds"] for read in result["reads"]) > 8, "the outage was in the middle"
    assert failed_reads(result) == 0, outcome


@pytest.mark.parametrize("parameters", [STANDARD, TRAILER], ids=["standard", "trailer"])
def test_a_server_killed_under_reads(start: Start, own_server: Server, parameters: dict[str, str]) -> None:
    """A body that breaks off has moved the client's buffer, and its retry then fails: at most that one batch."""
    arguments = {"bucket": DEFAULT_BUCKET, "count": 12, "size": MIB, "parameters": parameters}
    driver = start("nixl", "nixl_client", "batches", at=own_server.endpoint, **arguments)
    wait_for(driver, "read 4")
    own_server.kill()
    time.sleep(10)
    own_server.start()
    result = driver.result(180)
    assert [write["state"] for write in result["writes"]] == ["DONE"] * 12
    assert failed_reads(result) <= 1, result


def failed_reads(result: dict[str, Any]) -> int:
    """How many batches were not read. What was read is what was written."""
    for batch, read in enumerate(result["reads"]):
        if read["state"] == "DONE":
            assert read["sha256"] == digests([f"batch/{batch}/{number}" for number in range(4)], [MIB] * 4)
    return sum(read["state"] != "DONE" for read in result["reads"])


def wait_for(driver: Driver, event: str) -> None:
    while (said := driver.next(90)) != {"event": event}:
        assert "event" in said, f"the driver was done before {event!r}: {said}"


def test_a_server_frozen_for_ten_seconds(start: Start, own_server: Server) -> None:
    """Connections stay open and nothing answers. The client tries again after 3 s without a first byte."""
    arguments = {"bucket": DEFAULT_BUCKET, "count": 6, "size": MIB, "parameters": STANDARD}
    driver = start("nixl", "nixl_client", "batches", at=own_server.endpoint, **arguments)
    wait_for(driver, "read 1")
    with own_server.frozen():
        time.sleep(10)
    result = driver.result(120)
    assert failed_reads(result) <= 1, result
