"""LMCache's configuration for this endpoint, as a file to save: over HTTP, or with NIXL's accelerated engine.

The names are LMCache's (`nixl_*`, `extra_config`) and NIXL's (`nixl_backend_params`).
"""

import json
from dataclasses import dataclass
from urllib.parse import urlsplit

from s3verbs.rdma.client.kv_models import CHUNK_SIZE, KvModel

GIB = 1 << 30
REGISTRATION_LIMIT = (4 << 30) - (64 << 10)
"""Bytes that cuObject's interface registers at once; LMCache registers one chunk at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where chunks go. `endpoint` is http(s)://HOST[:PORT]. Empty keys are left out: NIXL then takes those of AWS's own
    chain (environment, ~/.aws, instance)."""

    endpoint: str
    bucket: str
    region: str = "us-east-1"
    access_key: str = ""
    secret_key: str = ""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of one worker that NIXL reads and writes: room for `chunks` objects of `object_bytes`."""

    object_bytes: int
    chunks: int

    @property
    def gibibytes(self) -> int:
        """Whole GiB that hold them."""
        return -(-self.chunks * self.object_bytes // GIB)

    @property
    def bytes(self) -> int:
        """The same in whole objects: what LMCache would round a `nixl_buffer_size` up to, with a warning."""
        return -(-self.gibibytes * GIB // self.object_bytes) * self.object_bytes


def buffer_for(model: KvModel, context: int, *, tp: int = 1, chunk_size: int = CHUNK_SIZE) -> Buffer:
    """The published formula: chunks x chunk_size x layers x 2 x (kv_heads / tp) x head_dim x dtype bytes.

    Raises ValueError when there is no such context, or when an object is larger than a registration may be.
    """
    if context < 1:
        raise ValueError(f"context {context}: must be at least 1 token")
    size = model.object_bytes(chunk_size, tp)
    if size > REGISTRATION_LIMIT:
        raise ValueError(f"a chunk of {chunk_size} tokens is {size} bytes, and {REGISTRATION_LIMIT} can be registered")
    return Buffer(size, -(-context // chunk_size))


def endpoint_of(url: str) -> str:
    """The endpoint as LMCache wants it. Raises ValueError when it is no http(s)://HOST[:PORT]."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError(f"{url!r} is no http://HOST:PORT or https://HOST:PORT")
    if parts.username is not None or any(letter.isspace() for letter in url):
        raise ValueError(f"{url!r}: keys do not belong into the address, nor does white space")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "")


def over_http(storage: Storage) -> str:
    """For any NIXL wheel. The buffer is LMCache's own host memory."""
    memory = [
        "max_local_cpu_size: 1        # GB of host memory that NIXL reads and writes; several chunks must fit",
        "save_unfull_chunk: false",
        "nixl_buffer_device: cpu",
    ]
    return _document(storage, CHUNK_SIZE, memory, accelerated=False)


def accelerated(storage: Storage, buffer: Buffer, *, chunk_size: int = CHUNK_SIZE, device: str = "cuda") -> str:
    """For the accelerated engine of nixl-cu13, with a buffer in GPU (cuda) or host (cpu) memory.

    With cpu `nixl_buffer_size` must be absent: the buffer is LMCache's own, of `max_local_cpu_size` GB.
    """
    note = f"# {buffer.chunks} chunks of {buffer.object_bytes} bytes, for each worker"
    if device == "cpu":
        memory = [f"max_local_cpu_size: {buffer.gibibytes}        {note}", "save_unfull_chunk: false"]
    else:
        memory = ["save_unfull_chunk: false", f"nixl_buffer_size: {buffer.bytes}    {note}"]
    return _document(storage, chunk_size, [*memory, f"nixl_buffer_device: {device}"], accelerated=True)


def _document(storage: Storage, chunk_size: int, memory: list[str], *, accelerated: bool) -> str:
    # JSON strings are YAML strings: a key such as 12345 or one with a # must not be read as something else.
    keys = [
        f"access_key: {json.dumps(storage.access_key)}",
        f"secret_key: {json.dumps(storage.secret_key)}",
    ]
    if not storage.access_key:
        keys = ["# no access_key and secret_key: NIXL takes AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"]
    parameters = [
        f"endpoint_override: {storage.endpoint}",
        f"scheme: {storage.endpoint.partition(':')[0]}",
        *keys,
        f"bucket: {storage.bucket}",
        f"region: {storage.region}",
        'use_virtual_addressing: "false"',
        "req_checksum: required",
        'num_threads: "4"',
    ]
    if accelerated:
        parameters += ['accelerated: "true"', "type: dell"]
    lines = [
        f"chunk_size: {chunk_size}",
        "local_cpu: false",
        *memory,
        "extra_config:",
        "  enable_nixl_storage: true",
        "  nixl_backend: OBJ",
        "  nixl_pool_size: 0          # dynamic mode: one object per chunk",
        "  nixl_backend_params:",
        *(f"    {line}" for line in parameters),
    ]
    return "\n".join(lines) + "\n"
