"""LMCache 0.5.6 over the accelerated engine of the stock NIXL wheel, with the published lmcache.yaml and cufile.json:
what one process stored, another loads, and the payloads move by the same-host transport."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import environments
from tests.e2e.accelerated import LIBRARY
from tests.e2e.clients import Driver, sha256
from tests.e2e.published_recipe import (
    ABSENT_NIC,
    library_environment,
    socket_of,
    traffic,
    write_cufile_json,
    write_lmcache_yaml,
)
from tests.e2e.server import Server
from tests.e2e.test_lmcache import CHUNKS, HASHES, NOTHING, SIZE, TOKENS, everything, objects

Lmcache = Callable[..., Any]


@pytest.fixture
def said() -> list[str]:
    """What the client library has logged, in all processes of the test."""
    return []


@pytest.fixture
def lmcache(server: Server, bucket: str, said: list[str], tmp_path: Path) -> Lmcache:
    """lmcache(case) runs it in a new process. `socket` is a gateway's that is not the endpoint's."""
    settings = write_lmcache_yaml(tmp_path / "lmcache.yaml", server.endpoint, bucket)
    cufile = write_cufile_json(tmp_path / "cufile.json", ABSENT_NIC)

    def lmcache(case: str, *, seed: int = 7, socket: Path | None = None) -> Any:
        extra = HASHES | library_environment(cufile) | {"S3VERBS_SOCKET": str(socket or socket_of(server))}
        arguments = {"tokens": TOKENS, "seed": seed, "storage": {"file": str(settings)}}
        driver = Driver(
            "lmcache-accelerated", "lmcache_client", case, server.endpoint, arguments, extra, tmp_path, stay=True
        )
        try:
            value = driver.value()
            said.extend(line for line in driver.finish().splitlines() if line.startswith("s3verbs: "))
        finally:
            driver.close()
        return value

    return lmcache


def test_a_fresh_process_loads_what_another_stored(
    lmcache: Lmcache, observer: Any, server: Server, bucket: str, said: list[str]
) -> None:
    assert lmcache("load") == NOTHING
    stored = lmcache("store")
    assert "NixlStorageBackend" in stored["backends"]
    library, plugin = sorted(map(Path, stored["libraries"]), key=lambda path: path.name)
    assert library == LIBRARY.resolve()
    assert plugin.is_relative_to(environments.packages_of("lmcache-accelerated")), "of the wheel with the engine"
    assert list(objects(observer, bucket).values()) == [SIZE // CHUNKS] * CHUNKS, "one object a chunk"
    assert lmcache("load") == everything()
    assert lmcache("load", seed=8) == NOTHING, "other tokens are a miss"
    seen = traffic(server, bucket, 2 * CHUNKS)
    assert seen.moved == {("PutObject", "samehost"): CHUNKS, ("GetObject", "samehost"): CHUNKS}
    assert (seen.others, seen.http_bytes, seen.rdma_bytes) == ([], 0, 2 * SIZE)
    assert len(said) == 4, "one line a process, and no complaint about the configuration"
    assert all(f"samehost, {socket_of(server)}" in line for line in said), said


def test_changed_bytes_come_back_changed(lmcache: Lmcache, observer: Any, bucket: str) -> None:
    lmcache("store")
    for key, size in objects(observer, bucket).items():
        observer.put_object(Bucket=bucket, Key=key, Body=b"\1" * size)
    assert lmcache("load") == {**everything(), "sha256": sha256(b"\1" * SIZE)}


def test_bytes_that_do_not_come_are_a_miss(lmcache: Lmcache, own_server: Server, server: Server, bucket: str) -> None:
    """The engine has a session with another gateway than the one that it asks, which declines."""
    lmcache("store")
    loaded = lmcache("load", socket=socket_of(own_server))
    assert (loaded["loaded"], loaded["sha256"]) == (0, NOTHING["sha256"])
    declined = traffic(server, bucket, 2 * CHUNKS).others
    assert len(declined) == CHUNKS
    assert {(entry["rdma_outcome"], entry["rdma_reason"]) for entry in declined} == {("declined", "no_session")}
