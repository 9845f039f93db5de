"""The stock NIXL wheel with its accelerated engine on our client library, over RC: the library behind rxe1, the server
behind rxe0. The same driver runs on the same host in tests/e2e/test_nixl_accelerated.py, with more cases.

One server and one client process serve all tests, for each start takes long here; the tests that end the server are the
last ones.
"""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.accelerated import (
    DONE,
    UNTOUCHED,
    Engine,
    digests,
    failed,
    library_path,
    read_of,
    wait_for_rounds,
    went_well,
)
from tests.e2e.clients import MIB, payload, sha256
from tests.e2e.server import Endpoint
from tests.integration.endpoint import ACCESS_KEY, BUCKET, SECRET_KEY
from tests.integration.endpoint import Endpoint as Server
from tests.rdma_vm.gateway import IDLE, START_SECONDS, Gateway
from tests.rdma_vm.resources import eventually

SIZES = [1, 4095, 4097, MIB, MIB + 1, 8 * MIB + 13, 64 * MIB]
"""The largest needs about half of the 3 s after which the engine's HTTP client gives up a request without an answer."""
CHURN_SECONDS = 120
HELD = [1000, 300_000, 4 * MIB]
PATIENCE = 200
"""Seconds for a case; all is twenty times slower in the guest."""

RC = {"S3VERBS_TRANSPORT": "rc", "S3VERBS_RDMA_DEVICES": "rxe1"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A server that has the same port when it comes back."""
    with Gateway(tmp_path_factory.mktemp("gateway") / "data", "--listen", "127.0.0.1:9100") as running:
        yield running


def endpoint_of(gateway: Gateway, secret_key: str = SECRET_KEY) -> Endpoint:
    return Endpoint(f"http://127.0.0.1:{gateway.port}", ACCESS_KEY, secret_key)


def engine_of(gateway: Gateway, environment: dict[str, str], secret_key: str = SECRET_KEY) -> Engine:
    at = endpoint_of(gateway, secret_key)
    return Engine(at, BUCKET, {**library_path(), **environment}, patience=PATIENCE)


@pytest.fixture(scope="module")
def engine(gateway: Gateway) -> Iterator[Engine]:
    running = engine_of(gateway, RC)
    assert running.problem == ""
    running.ask("hold", PATIENCE, sizes=HELD)
    yield running
    running.close()


def moved(gateway: Gateway) -> tuple[float, float]:
    """Requests of the engine and bytes that went by RC so far."""
    requests = gateway.metric("s3verbs_rdma_requests_total", dialect="nixl", outcome="moved")
    return requests, gateway.metric("s3verbs_transport_bytes_total", transport="rc")


def test_write_query_and_read(gateway: Gateway, engine: Engine) -> None:
    requests, count = moved(gateway)
    keys = [f"vllm@tiny/llama=1/obj {number}" for number in range(len(SIZES))]
    assert engine.present([*keys, "absent"]) == [False] * (len(keys) + 1)
    assert engine.write(keys, SIZES) == DONE
    assert engine.present([*keys, "absent"]) == [True] * len(keys) + [False]
    assert engine.read(keys, SIZES) == {**DONE, "sha256": digests(keys, SIZES)}
    now = moved(gateway)
    # More, if the largest took its 3 s and was sent again.
    assert now[0] >= requests + 2 * len(keys)
    assert now[1] >= count + 2 * sum(SIZES)
    assert gateway.plain_get(keys[4]).body == payload(keys[4], SIZES[4])


def test_ranges_at_offsets(gateway: Gateway, engine: Engine) -> None:
    data = payload("ranged", 5 * MIB)
    assert gateway.plain_put("ranged", data).status == 200
    for offset, length in ((4096, 1000), (MIB - 1, 3 * MIB), (5 * MIB - 1, 1)):
        assert engine.read(["ranged"], [length], offset) == read_of(data[offset : offset + length])


def test_an_object_shorter_than_the_range(gateway: Gateway, engine: Engine) -> None:
    assert gateway.plain_put("short", payload("short", 5000)).status == 200
    assert engine.read(["short"], [4096], 4000) == read_of(payload("short", 5000)[4000:] + UNTOUCHED * 3096)


def test_an_absent_object_fails_the_read(engine: Engine) -> None:
    assert failed(engine.read(["absent"], [MIB]), [MIB])


def test_256_objects_in_one_transfer(engine: Engine) -> None:
    keys = [f"many/{number}" for number in range(256)]
    sizes = [1 + number * 97 for number in range(256)]
    assert engine.write(keys, sizes) == DONE
    assert engine.read(keys, sizes) == {**DONE, "sha256": digests(keys, sizes)}


def test_eight_threads(engine: Engine) -> None:
    arguments: dict[str, Any] = {"count": 8, "repeat": 2, "sizes": [1, 70_000], "prefix": "threads"}
    assert engine.ask("threads", PATIENCE, **arguments) == []


def test_churn(gateway: Gateway, engine: Engine) -> None:
    result = engine.ask("churn", PATIENCE, seconds=CHURN_SECONDS, prefix="churn")
    assert result["failures"] == []
    assert result["registered"] > 50
    assert result["footprints"][-1]["descriptors"] <= result["footprints"][1]["descriptors"] + 2
    assert eventually(lambda: gateway.held() == IDLE)


def test_a_process_that_forks(engine: Engine) -> None:
    outcomes = engine.ask("fork", 2 * PATIENCE, bucket=BUCKET, parameters={}, prefix="fork")
    statuses = {each["child"]: each["status"] for each in outcomes}
    assert statuses == {"leave": 0, "give_back": 0, "end": 0, "move": 0}
    assert went_well(outcomes), outcomes


def test_the_published_configuration_file(gateway: Gateway, engine: Engine, tmp_path: Path) -> None:
    """The device is named by its address, and that it is RC is found out; the secret key is wrong, so nothing moves."""
    assert engine.write(["there"], [4096]) == DONE
    path = tmp_path / "cufile.json"
    properties = {"allow_compat_mode": True, "rdma_peer_type": "dmabuf", "rdma_dev_addr_list": ["10.77.0.2"]}
    path.write_text("// as the vendor prints it\n" + json.dumps({"properties": properties}))
    other = engine_of(gateway, {"CUFILE_ENV_PATH_JSON": str(path)}, secret_key="wrong")
    try:
        assert other.problem == ""
        outcome = other.write(["k"], [4096])
        assert (outcome["state"][:3], outcome["intact"]) == ("ERR", True)
        assert failed(other.read(["there"], [4096]), [4096])
        assert gateway.plain_get("k").status == 404
        assert "rc, rxe1" in other.finish(PATIENCE)
    finally:
        other.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_ends_under_transfers(
    gateway: Gateway, engine: Engine, tmp_path: Path, number: signal.Signals
) -> None:
    """What is under way may fail. What is called done, is; and the agent and its registrations are good for the server
    that is started again."""
    assert engine.write(["before"], [3 * MIB]) == DONE
    again = tmp_path / "again"
    engine.begin("rounds", prefix=f"rounds/{number.name}", until=str(again), more=3)
    wait_for_rounds(engine, 2, PATIENCE)
    if number == signal.SIGKILL:
        gateway.kill()
    else:
        assert gateway.stop() == 0, gateway.errors
    gateway.start()
    again.touch()
    outcomes = engine.value(PATIENCE)
    assert all(each["intact"] for each in outcomes)
    assert all(each["same"] for each in outcomes if each["read"] == "DONE"), outcomes
    assert went_well(outcomes[-3:]), outcomes
    for each in outcomes:
        if each["write"] == "DONE":
            keys = [f"{each['prefix']}/{at}" for at in range(len(HELD))]
            found = [gateway.plain_get(key).body for key in keys]
            assert digests(keys, HELD) == [sha256(body) for body in found]
    assert engine.read(["before"], [3 * MIB]) == read_of(payload("before", 3 * MIB))


def test_a_server_without_rdma(gateway: Gateway, engine: Engine) -> None:
    """In the other's place, with its data: nothing is ever done without its bytes."""
    assert engine.write(["there"], [4096]) == DONE
    assert gateway.stop() == 0, gateway.errors
    listen = ("--listen", f"127.0.0.1:{gateway.port}")
    with Server(gateway.data, "--rdma", "off", *listen, patience=START_SECONDS) as without:
        outcome = engine.write(["new"], [4096])
        assert (outcome["state"][:3], outcome["intact"]) == ("ERR", True)
        assert failed(engine.read(["there"], [4096]), [4096])
        client = without.client()
        assert "Contents" not in client.list_objects_v2(Bucket=BUCKET, Prefix="new")
        assert client.get_object(Bucket=BUCKET, Key="there")["Body"].read() == payload("there", 4096)
