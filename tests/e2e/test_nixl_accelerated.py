"""The stock NIXL wheel (nixl-cu13 1.5.1) with its accelerated engine on our client library, by the same-host transport.

Registration churns on the shared server for two minutes while the other tests of this module run: `test_churn`, the
last of them, is its end.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.accelerated import (
    DONE,
    ELSEWHERE,
    LIBRARY,
    UNTOUCHED,
    Engine,
    digests,
    engine_requests,
    failed,
    library_path,
    metric,
    moved_by_samehost,
    read_of,
    serve,
    socket_of,
    wait_for_rounds,
    went_well,
)
from tests.e2e.clients import MIB, payload, sha256
from tests.e2e.conftest import EXTERNAL, observer_of
from tests.e2e.server import DEFAULT_BUCKET, Endpoint, Server

Start = Callable[..., Engine]

SIZES = [1, 2, 100, 4095, 4096, 4097, 65_537, MIB, MIB + 1, 8 * MIB + 13, 64 * MIB]
CHURN_SECONDS = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if EXTERNAL:
        pytest.skip("S3VERBS_E2E_ENDPOINT is set: this test controls the server")
    server = serve(tmp_path_factory.mktemp("accelerated"))
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    server = serve(tmp_path)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def start() -> Iterator[Start]:
    """start(server, bucket, ...) gives an Engine; it ends with the test."""
    running: list[Engine] = []

    def start(
        server: Server,
        bucket: str = DEFAULT_BUCKET,
        *,
        at: Endpoint | None = None,
        parameters: dict[str, str] | None = None,
        **extra: str,
    ) -> Engine:
        environment = {**library_path(), **socket_of(server), **extra}
        running.append(Engine(at or server.endpoint, bucket, environment, parameters))
        return running[-1]

    yield start
    for engine in running:
        engine.close()


@pytest.fixture(scope="module", autouse=True)
def churning(server: Server) -> Iterator[Engine]:
    """Under way while the other tests run. It takes back and registers memory all the time."""
    engine = Engine(server.endpoint, DEFAULT_BUCKET, {**library_path(), **socket_of(server)})
    try:
        assert engine.problem == ""
        engine.ask("hold", sizes=[1000, 300_000])
        engine.begin("churn", seconds=CHURN_SECONDS, prefix="churn")
        yield engine
    finally:
        engine.close()


# -- what works --


def test_write_query_and_read(start: Start, server: Server, observer: Any, bucket: str) -> None:
    before = metric(server, "s3verbs_transport_bytes_total", transport="samehost")
    engine = start(server, bucket)
    keys = [f"vllm@tiny/llama=1/obj {number}" for number in range(len(SIZES))]
    assert engine.present([*keys, "absent"]) == [False] * (len(keys) + 1)
    assert engine.write(keys, SIZES) == DONE
    assert engine.present([*keys, "absent"]) == [True] * len(keys) + [False]
    assert engine.read(keys, SIZES) == {**DONE, "sha256": digests(keys, SIZES)}
    assert moved_by_samehost(server, bucket, 2 * len(keys)) == 2 * sum(SIZES)
    assert metric(server, "s3verbs_transport_bytes_total", transport="samehost") - before >= 2 * sum(SIZES)
    assert metric(server, "s3verbs_rdma_requests_total", dialect="nixl", outcome="moved") >= 2 * len(keys)
    for key, size in zip(keys, SIZES, strict=True):
        assert sha256(observer.get_object(Bucket=bucket, Key=key)["Body"].read()) == sha256(payload(key, size))


def test_another_process_reads_what_was_written(start: Start, server: Server, bucket: str) -> None:
    keys, sizes = ["a", "b"], [4096, 9 * MIB]
    writer = start(server, bucket)
    assert writer.write(keys, sizes) == DONE
    writer.finish()
    assert start(server, bucket).read(keys, sizes) == {**DONE, "sha256": digests(keys, sizes)}


def test_ranges_at_offsets(start: Start, server: Server, observer: Any, bucket: str) -> None:
    data = payload("ranged", 30 * MIB)
    observer.put_object(Bucket=bucket, Key="ranged", Body=data)
    engine = start(server, bucket)
    for offset, length in ((0, 1), (4096, 1000), (MIB - 1, 17 * MIB), (30 * MIB - 1, 1)):
        assert engine.read(["ranged"], [length], offset) == read_of(data[offset : offset + length])


def test_an_object_shorter_than_the_range(start: Start, server: Server, observer: Any, bucket: str) -> None:
    """As over HTTP: what there is arrives, and the engine, which looks at no header, takes it for all."""
    observer.put_object(Bucket=bucket, Key="short", Body=payload("short", 5000))
    engine = start(server, bucket)
    assert engine.read(["short"], [4096], 4000) == read_of(payload("short", 5000)[4000:] + UNTOUCHED * 3096)
    assert failed(engine.read(["short"], [4096], 5000), [4096]), "there is nothing at that offset"


def test_an_empty_object_leaves_the_buffer(start: Start, server: Server, observer: Any, bucket: str) -> None:
    observer.put_object(Bucket=bucket, Key="empty", Body=b"")
    assert failed(start(server, bucket).read(["empty"], [4096]), [4096])


def test_256_objects_in_one_transfer(start: Start, server: Server, bucket: str) -> None:
    keys = [f"many/{number}" for number in range(256)]
    sizes = [1 + number * 997 for number in range(256)]
    engine = start(server, bucket)
    assert engine.write(keys, sizes) == DONE
    assert engine.read(keys, sizes) == {**DONE, "sha256": digests(keys, sizes)}
    assert moved_by_samehost(server, bucket, 512) == 2 * sum(sizes)


def test_eight_threads(start: Start, server: Server, bucket: str) -> None:
    engine = start(server, bucket, parameters={"num_threads": "8"})
    sizes = [1, 70_000, MIB + 1]
    assert engine.ask("threads", count=8, repeat=5, sizes=sizes, prefix="threads") == []
    assert moved_by_samehost(server, bucket, 2 * 8 * 5 * 3) == 2 * 8 * 5 * sum(sizes)


def test_an_object_is_overwritten(start: Start, server: Server, observer: Any, bucket: str) -> None:
    engine = start(server, bucket)
    for size in (100_000, 50, 3 * MIB):
        assert engine.write(["k"], [size]) == DONE
        assert observer.head_object(Bucket=bucket, Key="k")["ContentLength"] == size
        assert engine.read(["k"], [size]) == read_of(payload("k", size))


def test_a_process_that_forks(start: Start, server: Server, bucket: str) -> None:
    """The child neither ends nor uses what is the parent's, and can have an agent of its own."""
    engine = start(server, bucket)
    engine.ask("hold", sizes=[1000, 2 * MIB])
    outcomes = engine.ask("fork", bucket=bucket, parameters={}, prefix="fork", timeout=280)
    statuses = {each["child"]: each["status"] for each in outcomes}
    assert statuses == {"leave": 0, "give_back": 0, "end": 0, "move": 0}
    assert went_well(outcomes), outcomes
    engine.finish()


# -- what must fail --


def test_an_absent_object_fails_the_read(start: Start, server: Server, observer: Any, bucket: str) -> None:
    observer.put_object(Bucket=bucket, Key="there", Body=payload("there", 4096))
    engine = start(server, bucket)
    began = time.monotonic()
    assert failed(engine.read(["absent"], [9 * MIB]), [9 * MIB])
    assert time.monotonic() - began < 10, "it is not tried again"
    assert engine.read(["there", "absent"], [4096, 4096])["state"].startswith("ERR"), "one of two is not enough"
    assert engine.read(["there"], [4096]) == read_of(payload("there", 4096))


def test_a_wrong_secret_moves_nothing(start: Start, server: Server, observer: Any, bucket: str) -> None:
    observer.put_object(Bucket=bucket, Key="there", Body=payload("there", 4096))
    engine = start(server, bucket, at=Endpoint(url=server.endpoint.url, secret_key="wrong"))
    assert engine.problem == ""
    outcome = engine.write(["k"], [4096])
    assert (outcome["state"][:3], outcome["intact"]) == ("ERR", True)
    assert failed(engine.read(["there"], [4096]), [4096])
    assert listing(observer, bucket) == ["there"]


def listing(observer: Any, bucket: str) -> list[str]:
    return [entry["Key"] for entry in observer.list_objects_v2(Bucket=bucket).get("Contents", [])]


@pytest.mark.parametrize("options", [["--rdma", "off"], []], ids=["rdma off", "another gateway's session"])
def test_a_server_that_has_no_way_to_the_memory(
    start: Start, server: Server, tmp_path: Path, options: list[str]
) -> None:
    """The library has a session, but with another gateway than the one that gets the requests."""
    other = serve(tmp_path, *options)
    try:
        observer = observer_of(other.endpoint)
        observer.put_object(Bucket=DEFAULT_BUCKET, Key="there", Body=payload("there", MIB))
        engine = start(server, at=other.endpoint)
        assert engine.problem == ""
        outcome = engine.write(["k"], [MIB])
        assert (outcome["state"][:3], outcome["intact"]) == ("ERR", True)
        assert failed(engine.read(["there"], [MIB]), [MIB])
        assert listing(observer, DEFAULT_BUCKET) == ["there"]
        reason = "no_session" if not options else "rdma_off"
        seen = engine_requests(other, DEFAULT_BUCKET, 2)
        assert {(line["status"], line["rdma_reason"]) for line in seen} == {(501, reason)}
        observer.close()
    finally:
        other.close()


def refused(engine: Engine) -> str:
    """Require that no memory can be registered, and that the process lives on; what it said. The wheel makes a backend
    all the same."""
    assert engine.problem == ""
    for _ in range(2):
        assert engine.write(["k"], [4096]) == {"state": "ERR nixlBackendError when registering", "intact": True}
        assert failed(engine.read(["k"], [4096]), [4096])
    said = engine.finish()
    assert "CUObjClient is not connected" in said
    return said


def test_without_a_gateway_nothing_is_registered(start: Start, tmp_path: Path, server: Server) -> None:
    path = str(tmp_path / "no-socket")
    assert path in refused(start(server, S3VERBS_SOCKET=path))


def test_a_transport_that_there_is_not(start: Start, server: Server) -> None:
    said = refused(start(server, S3VERBS_TRANSPORT="infiniband-express"))
    assert "s3verbs: " in said
    assert "S3VERBS_TRANSPORT" in said
    assert "infiniband-express" in said


def test_the_only_gateway_is_found_without_any_setting(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a file system")
    (tmp_path / "runtime").mkdir(mode=0o700)
    environment = {"XDG_RUNTIME_DIR": str(tmp_path / "runtime")}
    server = Server(data=tmp_path / "data", log=tmp_path / "log", extra=environment)
    server.start()
    within = ["unshare", "--mount", "sh", "-c", ELSEWHERE, "sh"]
    engine = Engine(server.endpoint, DEFAULT_BUCKET, {**library_path(), **environment}, within=within)
    try:
        assert engine.problem == ""
        assert engine.write(["k"], [MIB]) == DONE
        assert moved_by_samehost(server, DEFAULT_BUCKET, 1) == MIB
        assert f"{server.port}.sock" in engine.finish(), "which gateway it took is said"
    finally:
        engine.close()
        server.close()


def test_of_two_gateways_one_must_be_named(start: Start, server: Server, tmp_path: Path) -> None:
    """Both are this user's and have the usual places: the library cannot know which of them gets the requests."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    environment = {"XDG_RUNTIME_DIR": str(tmp_path / "runtime")}
    servers = [Server(data=tmp_path / f"{n}", log=tmp_path / f"{n}.log", extra=environment) for n in range(2)]
    try:
        for each in servers:
            each.start()
        engine = Engine(servers[0].endpoint, DEFAULT_BUCKET, {**library_path(), **environment})
        said = refused(engine)
        assert "S3VERBS_SOCKET" in said
        for each in servers:
            assert f"{each.port}.sock" in said, "it names what it found"
        named = {"S3VERBS_SOCKET": str(tmp_path / "runtime" / "s3verbs" / f"{servers[1].port}.sock")}
        engine = start(servers[1], **environment, **named)
        assert engine.write(["k"], [1000]) == DONE
    finally:
        for each in servers:
            each.close()


def test_without_the_library_the_wheel_names_it(server: Server) -> None:
    environment = {**socket_of(server), "LD_LIBRARY_PATH": "", "NIXL_LOG_LEVEL": "INFO"}
    engine = Engine(server.endpoint, DEFAULT_BUCKET, environment)
    try:
        assert engine.problem.startswith("nixlNotFoundError")
        said = engine.finish()
        assert "unsupported backend 'OBJ'" in said, "all that is said without NIXL_LOG_LEVEL"
        assert f"{LIBRARY.name}: cannot open shared object file" in said
    finally:
        engine.close()


# -- the server ends and comes back --


def stop(server: Server) -> None:
    server.stop()


def kill(server: Server) -> None:
    server.kill()


@pytest.mark.parametrize("end", [stop, kill])
def test_a_server_that_is_started_again(start: Start, own_server: Server, end: Callable[[Server], None]) -> None:
    """Between two transfers: the agent and its registrations are good for the new one as well."""
    engine = start(own_server)
    engine.ask("hold", sizes=[1000, 3 * MIB])
    assert engine.write(["before"], [3 * MIB]) == DONE
    assert moved_by_samehost(own_server, DEFAULT_BUCKET, 1) == 3 * MIB
    for times in (1, 2):
        end(own_server)
        own_server.start()
        assert engine.read(["before"], [3 * MIB]) == read_of(payload("before", 3 * MIB))
        assert went_well([engine.ask("one_round", prefix="held")])
        moved = 3 * MIB + times * (3 * MIB + 2 * (3 * MIB + 1000))
        assert moved_by_samehost(own_server, DEFAULT_BUCKET, 1 + times * 5) == moved
    engine.finish()


@pytest.mark.parametrize("end", [stop, kill])
def test_a_server_that_ends_under_transfers(
    start: Start, own_server: Server, tmp_path: Path, end: Callable[[Server], None]
) -> None:
    """What is under way may fail. What is called done, is; and all is well again once the server is back."""
    engine = start(own_server)
    engine.ask("hold", sizes=[1000, 4 * MIB, 4 * MIB])
    again = tmp_path / "again"
    engine.begin("rounds", prefix="rounds", until=str(again), more=5)
    for _ in range(2):
        wait_for_rounds(engine, 2)
        time.sleep(0.02)
        end(own_server)
        time.sleep(0.5)
        own_server.start()
    again.touch()
    outcomes = engine.value(120)
    assert not went_well(outcomes), "the server was not missed"
    assert all(each["intact"] for each in outcomes)
    assert all(each["same"] for each in outcomes if each["read"] == "DONE"), outcomes
    assert went_well(outcomes[-5:]), outcomes
    observer = observer_of(own_server.endpoint)
    for each in outcomes:
        if each["write"] == "DONE":
            for number, size in enumerate((1000, 4 * MIB, 4 * MIB)):
                key = f"{each['prefix']}/{number}"
                assert observer.get_object(Bucket=DEFAULT_BUCKET, Key=key)["Body"].read() == payload(key, size)
    observer.close()
    engine.finish()


# -- two minutes --


def test_churn(churning: Engine, server: Server) -> None:
    result = churning.value(CHURN_SECONDS + 60)
    assert result["failures"] == []
    assert result["moved"] > 200
    assert result["registered"] > 2000
    early, late = result["footprints"][1], result["footprints"][-1]
    assert late["descriptors"] <= early["descriptors"] + 2
    assert late["threads"] <= early["threads"]
    assert late["resident"] < early["resident"] + 48 * MIB, result["footprints"]
    churning.finish()
    lines = [line for line in server.requests() if line["key"].startswith("churn/")]
    assert {(line["rdma_dialect"], line["rdma"], line["rdma_outcome"]) for line in lines} == {
        ("nixl", "samehost", "moved")
    }
