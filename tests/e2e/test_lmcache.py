"""LMCache 0.5.6: KV chunks stored by one process and loaded by another, over NIXL OBJ and over its s3:// connector."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clients import MIB, payload, sha256
from tests.e2e.conftest import EXTERNAL, observer_of
from tests.e2e.fault_proxy import Fault, FaultProxy
from tests.e2e.server import DEFAULT_BUCKET, Endpoint, Server

Drive = Callable[..., Any]

TOKENS = 1024
CHUNKS = 4
SIZE = TOKENS * 2 * 4 * 256 * 2
# LMCache hashes tokens with Python's hash: processes that share a cache need the same seed.
HASHES = {"PYTHONHASHSEED": "0", "LMCACHE_TRACK_USAGE": "false"}
NOTHING = {"found": 0, "loaded": 0, "sha256": sha256(bytes(SIZE))}


@pytest.fixture
def lmcache(drive: Drive) -> Drive:
    def lmcache(case: str, *, extra: dict[str, str] | None = None, **arguments: Any) -> Any:
        arguments = {"tokens": TOKENS, "seed": 7, **arguments}
        return drive("lmcache", "lmcache_client", case, extra=HASHES | (extra or {}), **arguments)

    return lmcache


def everything(seed: int = 7, worker: int = 0) -> dict[str, Any]:
    return {"found": TOKENS, "loaded": TOKENS, "sha256": sha256(payload(f"{seed}/{worker}", SIZE))}


def objects(observer: Any, bucket: str) -> dict[str, int]:
    return {entry["Key"]: entry["Size"] for entry in observer.list_objects_v2(Bucket=bucket).get("Contents", [])}


@pytest.mark.parametrize(
    "parameters",
    [{"req_checksum": "required"}, {}, {"req_checksum": "required", "crtMinLimit": str(MIB // 2)}],
    ids=["standard", "trailer", "crt"],
)
def test_a_fresh_process_loads_what_another_stored(
    lmcache: Drive, observer: Any, bucket: str, parameters: dict[str, str]
) -> None:
    storage = {"bucket": bucket, "parameters": parameters}
    assert lmcache("load", storage=storage) == NOTHING
    assert "NixlStorageBackend" in str(lmcache("store", storage=storage)["backends"])
    held = objects(observer, bucket)
    assert list(held.values()) == [SIZE // CHUNKS] * CHUNKS, "one object a chunk"
    assert lmcache("load", storage=storage) == everything()
    assert lmcache("load", storage=storage, seed=8) == NOTHING, "other tokens are a miss"


def test_changed_bytes_come_back_changed(lmcache: Drive, observer: Any, bucket: str) -> None:
    """The negative control: what is loaded is what the endpoint holds, not some copy of the client's."""
    storage = {"bucket": bucket, "parameters": {"req_checksum": "required"}}
    lmcache("store", storage=storage)
    for key, size in objects(observer, bucket).items():
        observer.put_object(Bucket=bucket, Key=key, Body=bytes(size))
    assert lmcache("load", storage=storage) == {"found": TOKENS, "loaded": TOKENS, "sha256": sha256(bytes(SIZE))}


def test_an_evicted_chunk_shortens_the_prefix(lmcache: Drive, observer: Any, bucket: str) -> None:
    storage = {"bucket": bucket, "parameters": {"req_checksum": "required"}}
    lmcache("store", storage=storage)
    observer.delete_object(Bucket=bucket, Key=next(iter(objects(observer, bucket))))
    left = lmcache("load", storage=storage)
    assert left["found"] == left["loaded"]
    assert left["found"] in range(0, TOKENS, TOKENS // CHUNKS)


def test_stored_chunks_survive_a_killed_server(lmcache: Drive, own_server: Server) -> None:
    storage = {"bucket": DEFAULT_BUCKET, "parameters": {"req_checksum": "required"}}
    lmcache("store", at=own_server.endpoint, storage=storage)
    own_server.kill()
    own_server.start()
    assert lmcache("load", at=own_server.endpoint, storage=storage) == everything()


def test_a_store_survives_a_server_that_sheds_load(
    lmcache: Drive, endpoint: Endpoint, bucket: str, proxy: FaultProxy
) -> None:
    proxy.faults += [
        Fault("PUT", times=4, status=503),
        Fault("GET", times=2, status=503),
        Fault("HEAD", times=1, status=503),
    ]
    at = Endpoint(url=f"http://127.0.0.1:{proxy.port}")
    storage = {"bucket": bucket, "parameters": {"req_checksum": "required"}}
    lmcache("store", at=at, storage=storage)
    assert lmcache("load", at=at, storage=storage) == everything()
    assert proxy.statuses("PUT").count(503) == 4
    assert proxy.statuses("GET").count(503) == 2


def test_each_worker_uses_its_endpoint_of_the_list(lmcache: Drive, tmp_path: Path) -> None:
    """Worker i of a tensor-parallel group stores on endpoint i; each endpoint holds its worker's shard alone."""
    if EXTERNAL:
        pytest.skip("S3VERBS_E2E_ENDPOINT is set: this test controls the server")
    servers = [Server(data=tmp_path / f"data{n}", log=tmp_path / f"log{n}", workers=1) for n in range(2)]
    try:
        for server in servers:
            server.start()
        endpoints = [server.endpoint.url for server in servers]
        storage = {"bucket": DEFAULT_BUCKET, "endpoints": endpoints, "parameters": {"req_checksum": "required"}}
        for worker in range(2):
            lmcache("store", at=servers[0].endpoint, storage=storage, worker=worker, workers=2)
        for worker, server in enumerate(servers):
            held = objects(observer_of(server.endpoint), DEFAULT_BUCKET)
            assert len(held) == CHUNKS
            assert all(f"_2_{worker}_" in key for key in held), held
            loaded = lmcache("load", at=server.endpoint, storage=storage, worker=worker, workers=2)
            assert loaded == everything(worker=worker)
    finally:
        for server in servers:
            server.close()


def test_the_s3_connector(lmcache: Drive, observer: Any, endpoint: Endpoint, localhost_names: dict[str, str]) -> None:
    """It knows virtual-hosted buckets only and gives up for good after three connection errors."""
    bucket = f"lm-{os.urandom(4).hex()}"
    observer.create_bucket(Bucket=bucket)
    storage = {"address": f"s3://{bucket}.localhost:{endpoint.port}"}
    assert lmcache("load", extra=localhost_names, storage=storage) == NOTHING
    assert "RemoteBackend" in str(lmcache("store", extra=localhost_names, storage=storage)["backends"])
    assert list(objects(observer, bucket).values()) == [SIZE // CHUNKS] * CHUNKS
    assert lmcache("load", extra=localhost_names, storage=storage) == everything()
