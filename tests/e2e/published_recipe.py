"""The accelerated engine of NIXL's OBJ plugin over this project's libcuobjclient.so.1, configured as storage vendors
publish it for vLLM, LMCache and NIXL: the keys of lmcache.yaml and cufile.json are theirs.

The engine asks no more of a gateway than to move the payload: these tests read in the access log how it went.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from s3verbs.rdma.samehost.location import candidates
from tests.e2e.accelerated import library_path
from tests.e2e.server import Endpoint, Server, wait_until

PARAMETERS = {
    "scheme": "http",
    "use_virtual_addressing": "false",
    "req_checksum": "required",
    "accelerated": "true",
    "type": "dell",
}
"""Of `nixl_backend_params`, beside the endpoint's own."""

ABSENT_NIC = "10.0.1.2"
"""As published. No machine that runs the tests has it, and the same-host transport needs none."""

# Not in the published file: LMCache 0.5 demands nixl_pool_size, and for 0 (an object for each chunk, found by its name)
# save_unfull_chunk. With nixl_buffer_device "cpu" the buffer is max_local_cpu_size (GiB), with "cuda" nixl_buffer_size.
_LMCACHE_YAML = """\
chunk_size: 256
local_cpu: false
save_unfull_chunk: false
max_local_cpu_size: 0.25
nixl_buffer_device: cpu
extra_config:
  enable_nixl_storage: true
  nixl_backend: OBJ
  nixl_pool_size: 0
  nixl_backend_params:
    access_key: {endpoint.access_key}
    secret_key: {endpoint.secret_key}
    bucket: {bucket}
    endpoint_override: {endpoint.url}
"""

_CUFILE_JSON = """\
{
    // The client's RDMA NICs, and how they reach the memory of its GPUs.
    "execution": {
        "parallel_io": false
    },
    "properties": {
        "allow_compat_mode": true,
        "use_pci_p2pdma": true,
        "rdma_peer_type": "dmabuf",  // or nvidia_peermem
        "rdma_dev_addr_list": ["ADDRESS"],
        // The same on all servers.
        "rdma_dc_key": "0xffeeddcc"
    }
}
"""


def backend_parameters(endpoint: Endpoint, bucket: str) -> dict[str, str]:
    """What the engine is created with."""
    return {
        "access_key": endpoint.access_key,
        "secret_key": endpoint.secret_key,
        "bucket": bucket,
        "endpoint_override": endpoint.url,
        **PARAMETERS,
    }


def write_lmcache_yaml(path: Path, endpoint: Endpoint, bucket: str) -> Path:
    parameters = "".join(f'    {name}: "{value}"\n' for name, value in PARAMETERS.items())
    path.write_text(_LMCACHE_YAML.format(endpoint=endpoint, bucket=bucket) + parameters)
    return path


def write_cufile_json(path: Path, address: str) -> Path:
    path.write_text(_CUFILE_JSON.replace("ADDRESS", address))
    return path


def library_environment(cufile: Path) -> dict[str, str]:
    """Lets the plugin find the library, and the library its configuration."""
    return {**library_path(), "CUFILE_ENV_PATH_JSON": str(cufile)}


def socket_of(server: Server) -> Path:
    """Where the server listens for clients of this machine."""
    return next(place.path for place in candidates(server.port) if place.path.is_socket())


@dataclass
class Traffic:
    """Requests for payloads in the access log: how many moved beside HTTP, by operation and transport, and their bytes
    either way."""

    moved: dict[tuple[str, str], int] = field(default_factory=dict)
    rdma_bytes: int = 0
    http_bytes: int = 0
    others: list[dict[str, Any]] = field(default_factory=list)
    """Entries of those that did not move."""


def traffic(server: Server, bucket: str, payloads: int) -> Traffic:
    """Of one bucket, once the access log tells of that many payloads: the log follows the answers by a moment."""

    def entries() -> list[dict[str, Any]]:
        return [
            entry
            for entry in server.requests()
            if entry["bucket"] == bucket and entry["operation"] in ("GetObject", "PutObject")
        ]

    wait_until(lambda: len(entries()) >= payloads, 30)
    seen = Traffic()
    for entry in entries():
        seen.http_bytes += entry["bytes_in"] + entry["bytes_out"]
        seen.rdma_bytes += entry["rdma_bytes"]
        if entry["rdma_outcome"] == "moved":
            way = entry["operation"], entry["rdma"]
            seen.moved[way] = seen.moved.get(way, 0) + 1
        else:
            seen.others.append(entry)
    return seen
