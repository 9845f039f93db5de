"""LMCache's engine on a CPU without a serving engine: KV tensors to and from its storage backends.

The KV cache of N tokens is one tensor [2, layers, N, heads x head size] in bfloat16; its bytes are payload(seed, size).
"""

import time
from typing import Any

import cases
import torch
from cases import case, mapped_libraries, payload, sha256
from lmcache.utils import mock_up_broadcast_fn, mock_up_broadcast_object_fn
from lmcache.v1.cache_engine import LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.gpu_connector.mock_gpu_connector import MockGPUConnector
from lmcache.v1.metadata import LMCacheMetadata

CHUNK = 256
LAYERS, HEADS, HEAD_SIZE = 4, 4, 64
WIDTH = HEADS * HEAD_SIZE
TOKEN_BYTES = 2 * LAYERS * WIDTH * 2


class DenseCache(MockGPUConnector):
    """Stands for the GPU: copies chunks to and from one dense tensor."""

    def __init__(self, tokens: int) -> None:
        super().__init__((LAYERS, 2, CHUNK, HEADS, HEAD_SIZE))
        self.dense = torch.zeros((2, LAYERS, tokens, WIDTH), dtype=torch.bfloat16)

    def get_shape(self, num_tokens: int | None = None) -> torch.Size:
        return torch.Size((2, LAYERS, num_tokens or CHUNK, WIDTH))

    def from_gpu(self, memory_obj: Any, start: int, end: int, **_: Any) -> None:
        memory_obj.tensor.copy_(self.dense[:, :, start:end])

    def to_gpu(self, memory_obj: Any, start: int, end: int, **_: Any) -> None:
        self.dense[:, :, start:end].copy_(memory_obj.tensor)

    def batched_from_gpu(self, memory_objs: Any, starts: Any, ends: Any, **_: Any) -> None:
        for chunk in zip(memory_objs, starts, ends, strict=True):
            self.from_gpu(*chunk)

    def batched_to_gpu(self, memory_objs: Any, starts: Any, ends: Any, **_: Any) -> None:
        for chunk in zip(memory_objs, starts, ends, strict=True):
            self.to_gpu(*chunk)


def nixl_settings(endpoint: Any, bucket: str, endpoints: list[str], parameters: dict[str, str]) -> dict[str, Any]:
    backend = {
        "access_key": endpoint.access_key,
        "secret_key": endpoint.secret_key,
        "bucket": bucket,
        "endpoint_override": endpoint.url,
        "scheme": "http",
        "region": endpoint.region,
        "use_virtual_addressing": "false",
        "num_threads": "4",
        **parameters,
    }
    extra: dict[str, Any] = {
        "enable_nixl_storage": True,
        "nixl_backend": "OBJ",
        "nixl_pool_size": 0,
        "nixl_backend_params": backend,
    }
    if endpoints:
        del backend["endpoint_override"]
        extra["nixl_endpoint_list"] = endpoints
    return {"nixl_buffer_device": "cpu", "extra_config": extra}


def connector_settings(endpoint: Any, address: str) -> dict[str, Any]:
    """The connector for `s3://` addresses: one host name, which must hold the bucket."""
    extra = {
        "s3_region": endpoint.region,
        "aws_access_key_id": endpoint.access_key,
        "aws_secret_access_key": endpoint.secret_key,
        "disable_tls": True,
        "s3_prefer_http2": False,
        "s3_num_io_threads": 4,
        "save_chunk_meta": False,
    }
    return {"remote_url": address, "remote_serde": "naive", "extra_config": extra}


class Engine:
    def __init__(self, config: LMCacheEngineConfig, tokens: int, seed: int, worker: int, workers: int) -> None:
        self.cache = DenseCache(tokens)
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, 32_000, (tokens,), generator=generator)
        metadata = LMCacheMetadata(
            model_name="tiny/llama",
            world_size=workers,
            local_world_size=workers,
            worker_id=worker,
            local_worker_id=worker,
            kv_dtype=torch.bfloat16,
            kv_shape=(LAYERS, 2, CHUNK, HEADS, HEAD_SIZE),
            role="worker",
            chunk_size=CHUNK,
        )
        broadcasts = mock_up_broadcast_fn, mock_up_broadcast_object_fn
        self.engine = LMCacheEngineBuilder.get_or_create("s3verbs", config, metadata, self.cache, *broadcasts)
        self.engine.post_init()

    def backends(self) -> dict[str, Any]:
        return dict(self.engine.storage_manager.storage_backends)

    def store(self, data: bytes) -> None:
        """Return once every chunk was accepted or given up by the storage."""
        raw = torch.frombuffer(bytearray(data), dtype=torch.bfloat16)
        self.cache.dense.copy_(raw.view(self.cache.dense.shape))
        self.engine.store(self.tokens)
        deadline = time.monotonic() + 60
        while any(getattr(b, "progress_set", None) or getattr(b, "put_tasks", None) for b in self.backends().values()):
            if time.monotonic() > deadline:
                raise TimeoutError("the chunks were not stored within 60 s")
            time.sleep(0.02)

    def load(self) -> dict[str, Any]:
        found = self.engine.lookup(self.tokens)
        loaded = int(self.engine.retrieve(self.tokens).sum()) if found else 0
        return {
            "found": found,
            "loaded": loaded,
            "sha256": sha256(self.cache.dense.view(torch.uint8).numpy().tobytes()),
        }


def engine_of(endpoint: Any, storage: dict[str, Any], tokens: int, seed: int, worker: int, workers: int) -> Engine:
    """`storage`: the path of an lmcache.yaml as "file", or what to make settings of."""
    if "file" in storage:
        return Engine(LMCacheEngineConfig.from_file(storage["file"]), tokens, seed, worker, workers)
    if "address" in storage:
        settings = connector_settings(endpoint, storage["address"])
    else:
        settings = nixl_settings(
            endpoint, storage["bucket"], storage.get("endpoints", []), storage.get("parameters", {})
        )
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK, local_cpu=False, max_local_cpu_size=0.25, save_unfull_chunk=False, **settings
    )
    return Engine(config, tokens, seed, worker, workers)


@case
def imported(_: Any) -> bool:
    """Nothing: that this answers says that the imports are done, which can take long."""
    return True


@case
def store(
    endpoint: Any, storage: dict[str, Any], tokens: int, seed: int, worker: int = 0, workers: int = 1
) -> dict[str, Any]:
    engine = engine_of(endpoint, storage, tokens, seed, worker, workers)
    engine.store(payload(f"{seed}/{worker}", tokens * TOKEN_BYTES))
    return {
        "backends": sorted(engine.backends()),
        "libraries": mapped_libraries("libplugin_OBJ.so", "libcuobjclient.so"),
    }


@case
def load(
    endpoint: Any, storage: dict[str, Any], tokens: int, seed: int, worker: int = 0, workers: int = 1
) -> dict[str, Any]:
    return engine_of(endpoint, storage, tokens, seed, worker, workers).load()


if __name__ == "__main__":
    cases.main(leave_at_once=True)
