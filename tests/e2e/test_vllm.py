"""vLLM offloads KV cache to the endpoint: a second, fresh process reuses it and says the same.

The reused tokens prove that objects were found, the equal output that their bytes were right, and the control, in which
all objects were overwritten with zeros, that these bytes are what the second process computed with.
"""

import contextlib
import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import environments
from tests.e2e.clients import Driver, client_environment
from tests.e2e.published_recipe import (
    ABSENT_NIC,
    backend_parameters,
    library_environment,
    socket_of,
    traffic,
    write_cufile_json,
    write_lmcache_yaml,
)
from tests.e2e.server import Endpoint, Server, free_port, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

Drive = Callable[..., Any]

TOKENS = 1200
TOKEN_BYTES = 2 * 4 * 4 * 64 * 2
"""Keys and values, layers, heads, head size, bytes of a number: of the model that the driver makes."""
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "LMCACHE_TRACK_USAGE": "false",
    "OMP_NUM_THREADS": "2",
    # Processes that share a cache hash token blocks with the same seed.
    "PYTHONHASHSEED": "0",
    # vLLM's obj tier asks NIXL for telemetry.
    "NIXL_TELEMETRY_ENABLE": "y",
}


@pytest.fixture(scope="module")
def model(endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    driver = Driver("vllm", "vllm_client", "model", endpoint, {"folder": str(folder)}, SETTINGS)
    try:
        assert driver.result(300)["parameters"] > 1_000_000
    finally:
        driver.close()
    return folder


@pytest.fixture
def generate(drive: Drive, model: Path, bucket: str, tmp_path: Path) -> Drive:
    """Start vLLM, generate from the same prompt, and stop it."""

    def generate(
        transfer: dict[str, Any] | None, environment: str = "vllm", extra: Mapping[str, str] | None = None
    ) -> Any:
        arguments = {"bucket": bucket, "folder": str(model), "transfer": transfer, "tokens": TOKENS}
        options = {"timeout": 600, "extra": {**SETTINGS, **(extra or {})}, "cwd": tmp_path}
        return drive(environment, "vllm_client", "generate", **options, **arguments)

    return generate


class MpServer:
    """`lmcache server`, the cache process that LMCacheMPConnector talks to, with one L2 adapter."""

    def __init__(
        self, adapter: dict[str, Any], endpoint: Endpoint, log: Path, environment: str, extra: dict[str, str]
    ) -> None:
        self.port, self.http_port = free_port(), free_port()
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [
                    str(environments.ensure(environment)),
                    str(environments.VENVS / "vllm" / "bin" / "lmcache"),
                    *("server", "--host", "127.0.0.1", "--port", str(self.port)),
                    *("--http-host", "127.0.0.1", "--http-port", str(self.http_port)),
                    *("--chunk-size", "256", "--l1-size-gb", "0.25", "--no-l1-use-lazy", "--eviction-policy", "LRU"),
                    # One page, and so one object, holds a chunk of 256 tokens at 4 KiB of KV cache a token.
                    *("--l1-align-bytes", str(1 << 20)),
                    # The cache process maps no memory of the engine; the engine copies.
                    *("--supported-transfer-mode", "engine_driven"),
                    *("--l2-adapter", json.dumps(adapter)),
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=client_environment(endpoint, SETTINGS | extra),
                start_new_session=True,
            )
        try:
            wait_until(self._answers, 180)
        except BaseException:
            self.close()
            raise

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"lmcache server left with {self.process.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/healthcheck", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def forget(self) -> None:
        """Drop what it holds in memory: what it gives from now on comes from the endpoint."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.http_port}/cache/clear", method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer)["status"] == "ok"

    @property
    def transfer(self) -> dict[str, Any]:
        extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": self.port}
        return {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def start_mp_server(endpoint: Endpoint, tmp_path: Path) -> Iterator[Callable[..., MpServer]]:
    running: list[MpServer] = []

    def start(adapter: dict[str, Any], environment: str = "vllm", extra: dict[str, str] | None = None) -> MpServer:
        running.append(MpServer(adapter, endpoint, tmp_path / "mp.log", environment, extra or {}))
        return running[-1]

    yield start
    for server in running:
        server.close()


@pytest.fixture
def recipe(server: Server, bucket: str, tmp_path: Path) -> dict[str, str]:
    """Environment with the published configuration of LMCache and of the engine."""
    settings = write_lmcache_yaml(tmp_path / "lmcache.yaml", server.endpoint, bucket)
    cufile = write_cufile_json(tmp_path / "cufile.json", ABSENT_NIC)
    return {
        **library_environment(cufile),
        "LMCACHE_CONFIG_FILE": str(settings),
        "S3VERBS_SOCKET": str(socket_of(server)),
    }


def zero(observer: Any, bucket: str) -> int:
    """Overwrite every object with zeros of its length."""
    entries = observer.list_objects_v2(Bucket=bucket).get("Contents", [])
    for entry in entries:
        observer.put_object(Bucket=bucket, Key=entry["Key"], Body=bytes(entry["Size"]))
    return len(entries)


def gets(server: Server, bucket: str) -> int:
    return sum(entry["operation"] == "GetObject" and entry["bucket"] == bucket for entry in server.requests())


def test_the_obj_tier_of_vllm(generate: Drive, observer: Any, endpoint: Endpoint, bucket: str, server: Server) -> None:
    store = {
        "bucket": bucket,
        "endpoint_override": endpoint.url,
        "access_key": endpoint.access_key,
        "secret_key": endpoint.secret_key,
        "region": endpoint.region,
        "scheme": "http",
    }
    extra = {
        "spec_name": "CpuTieringSpec",
        "spec_module_path": "cpu_tiering",
        "cpu_bytes_to_use": 64 << 20,
        "block_size": 64,
        "secondary_tiers": [{"type": "obj", "prefix": "vllm", "io_threads": 4, "store_config": store}],
    }
    transfer = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    first = generate(transfer)
    assert (first["prompt"], first["cached"]) == (TOKENS, 0)
    assert gets(server, bucket) == 0
    second = generate(transfer)
    assert second["cached"] >= 1024
    assert second["ids"] == first["ids"]
    assert gets(server, bucket) >= 16
    assert zero(observer, bucket) >= 16
    control = generate(transfer)
    assert control["cached"] >= 1024
    assert control["ids"] != first["ids"]


def test_lmcache_mp_connector_over_nixl(
    generate: Drive,
    start_mp_server: Callable[..., MpServer],
    observer: Any,
    endpoint: Endpoint,
    bucket: str,
    server: Server,
) -> None:
    parameters = {
        "access_key": endpoint.access_key,
        "secret_key": endpoint.secret_key,
        "bucket": bucket,
        "endpoint_override": endpoint.url,
        "scheme": "http",
        "region": endpoint.region,
        "use_virtual_addressing": "false",
        "req_checksum": "required",
        "num_threads": "4",
    }
    adapter = {"type": "nixl_store", "backend": "OBJ", "backend_params": parameters, "pool_size": 64}
    cache = start_mp_server(adapter)
    first = generate(cache.transfer)
    assert (first["prompt"], first["cached"]) == (TOKENS, 0)
    assert observer.list_objects_v2(Bucket=bucket)["KeyCount"] >= 4
    cache.forget()
    before = gets(server, bucket)
    second = generate(cache.transfer)
    assert second["cached"] >= 1024
    assert second["ids"] == first["ids"]
    assert gets(server, bucket) > before
    assert zero(observer, bucket) >= 4
    cache.forget()
    control = generate(cache.transfer)
    assert control["cached"] >= 1024
    assert control["ids"] != first["ids"]


def test_lmcache_mp_connector_over_its_s3_adapter(
    generate: Drive,
    start_mp_server: Callable[..., MpServer],
    observer: Any,
    endpoint: Endpoint,
    bucket: str,
    localhost_names: dict[str, str],
) -> None:
    """Its objects are found by name, so both vLLM and the cache process may be new."""
    adapter = {
        "type": "s3",
        "s3_endpoint": f"s3://{bucket}.localhost:{endpoint.port}",
        "s3_region": endpoint.region,
        "s3_num_io_threads": 4,
        "s3_prefer_http2": False,
        "disable_tls": True,
        "aws_access_key_id": endpoint.access_key,
        "aws_secret_access_key": endpoint.secret_key,
    }
    cache = start_mp_server(adapter, extra=localhost_names)
    first = generate(cache.transfer)
    assert (first["prompt"], first["cached"]) == (TOKENS, 0)
    cache.close()
    cache = start_mp_server(adapter, extra=localhost_names)
    second = generate(cache.transfer)
    assert second["cached"] >= 1024
    assert second["ids"] == first["ids"]
    assert zero(observer, bucket) >= 4
    cache.close()
    control = generate(start_mp_server(adapter, extra=localhost_names).transfer)
    assert control["cached"] >= 1024
    assert control["ids"] != first["ids"]


def test_lmcache_over_the_accelerated_engine(
    generate: Drive, recipe: dict[str, str], observer: Any, bucket: str, server: Server
) -> None:
    transfer = {
        "kv_connector": "LMCacheConnectorV1OnCpu",
        "kv_connector_module_path": "cpu_lmcache",
        "kv_role": "kv_both",
    }
    first = generate(transfer, "vllm-accelerated", recipe)
    assert (first["prompt"], first["cached"]) == (TOKENS, 0)
    second = generate(transfer, "vllm-accelerated", recipe)
    assert second["cached"] >= 1024
    assert second["ids"] == first["ids"]
    seen = traffic(server, bucket, 8)
    assert seen.moved == {("PutObject", "samehost"): 4, ("GetObject", "samehost"): 4}
    assert (seen.others, seen.http_bytes, seen.rdma_bytes) == ([], 0, 2 * 1024 * TOKEN_BYTES)
    assert zero(observer, bucket) == 4
    control = generate(transfer, "vllm-accelerated", recipe)
    assert control["cached"] >= 1024
    assert control["ids"] != first["ids"]


def test_lmcache_mp_connector_over_the_accelerated_engine(
    generate: Drive,
    start_mp_server: Callable[..., MpServer],
    recipe: dict[str, str],
    observer: Any,
    bucket: str,
    server: Server,
) -> None:
    """vLLM itself moves nothing: the cache process has the engine."""
    parameters = backend_parameters(server.endpoint, bucket)
    adapter = {"type": "nixl_store", "backend": "OBJ", "backend_params": parameters, "pool_size": 64}
    cache = start_mp_server(adapter, "vllm-accelerated", recipe)
    first = generate(cache.transfer)
    assert (first["prompt"], first["cached"]) == (TOKENS, 0)
    cache.forget()
    second = generate(cache.transfer)
    assert second["cached"] >= 1024
    assert second["ids"] == first["ids"]
    seen = traffic(server, bucket, 8)
    assert set(seen.moved) == {("PutObject", "samehost"), ("GetObject", "samehost")}
    assert (seen.others, seen.http_bytes) == ([], 0)
    assert seen.rdma_bytes >= 2 * 1024 * TOKEN_BYTES
    assert zero(observer, bucket) >= 4
    cache.forget()
    control = generate(cache.transfer)
    assert control["cached"] >= 1024
    assert control["ids"] != first["ids"]
