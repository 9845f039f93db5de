"""LMCache over the accelerated engine of the stock NIXL wheel, by RC: rxe0 to the NIC that the published cufile.json
names, which is rxe1.

Importing LMCache takes two minutes in the guest, so the two processes do it at the same time. The one that loads is no
less fresh for that: it has done nothing else.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.clients import Driver
from tests.e2e.published_recipe import library_environment, write_cufile_json, write_lmcache_yaml
from tests.e2e.server import Endpoint
from tests.e2e.test_lmcache import CHUNKS, HASHES, SIZE, TOKENS, everything
from tests.integration.endpoint import ACCESS_KEY, BUCKET, SECRET_KEY
from tests.rdma_vm.gateway import Gateway

pytestmark = pytest.mark.timeout(1800)

NIC = "10.77.0.2"
SECONDS = 600
"""For one answer. Where the machine has nothing else to do the imports take 130."""


@pytest.fixture
def endpoint(gateway: Gateway) -> Endpoint:
    return Endpoint(f"http://127.0.0.1:{gateway.port}", ACCESS_KEY, SECRET_KEY)


@pytest.fixture
def processes(endpoint: Endpoint, tmp_path: Path) -> Iterator[list[Driver]]:
    """Two that have imported LMCache and nothing more."""
    environment = HASHES | library_environment(write_cufile_json(tmp_path / "cufile.json", NIC))
    running = [
        Driver("lmcache-accelerated", "lmcache_client", "imported", endpoint, {}, environment, stay=True)
        for _ in range(2)
    ]
    try:
        for process in running:
            assert process.value(SECONDS)
        yield running
    finally:
        for process in running:
            process.close()


def moved(gateway: Gateway, transport: str) -> dict[str, float]:
    """How many payloads went that way, and their bytes."""
    operations = {
        operation: gateway.metric("s3verbs_transport_operations_total", operation=operation, transport=transport)
        for operation in ("PutObject", "GetObject")
    }
    return operations | {"bytes": gateway.metric("s3verbs_transport_bytes_total", transport=transport)}


def test_a_fresh_process_loads_what_another_stored(
    gateway: Gateway, endpoint: Endpoint, processes: list[Driver], tmp_path: Path
) -> None:
    settings = write_lmcache_yaml(tmp_path / "lmcache.yaml", endpoint, BUCKET)
    arguments = {"tokens": TOKENS, "seed": 7, "storage": {"file": str(settings)}}
    before = {way: moved(gateway, way) for way in ("rc", "http")}
    first, second = processes
    assert "NixlStorageBackend" in first.ask("store", SECONDS, **arguments)["backends"]
    assert second.ask("load", SECONDS, **arguments) == everything()
    after = {way: moved(gateway, way) for way in ("rc", "http")}
    gained = {name: after["rc"][name] - before["rc"][name] for name in after["rc"]}
    assert gained == {"PutObject": CHUNKS, "GetObject": CHUNKS, "bytes": 2 * SIZE}
    assert after["http"] == before["http"]
    for process in processes:
        said = process.finish(60)
        assert "rxe1" in said
        assert "rxe0" not in said, "cufile.json names one device"
