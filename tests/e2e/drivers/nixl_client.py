"""The OBJ plugin of the stock NIXL wheel: DRAM buffers to and from objects."""

import time
from typing import Any
from urllib.parse import urlsplit

import cases
import numpy
from cases import case, emit, payload, sha256
from nixl_cu12._api import nixl_agent, nixl_agent_config
from nixl_cu12._bindings import nixlBackendError, nixlInvalidParamError, nixlNotFoundError, nixlUnknownError

UNTOUCHED = 0xEE


class Objects:
    """An agent with one OBJ backend. Every transfer registers its own memory and gives it back."""

    def __init__(self, endpoint: Any, bucket: str, parameters: dict[str, str]) -> None:
        settings = {
            "access_key": endpoint.access_key,
            "secret_key": endpoint.secret_key,
            "bucket": bucket,
            "endpoint_override": endpoint.url,
            "scheme": urlsplit(endpoint.url).scheme,
            "region": endpoint.region,
            "use_virtual_addressing": "false",
            "num_threads": "4",
            **({"ca_bundle": endpoint.ca} if endpoint.ca else {}),
            **parameters,
        }
        self.agent = nixl_agent("s3verbs", nixl_agent_config(backends=[]))
        self.agent.create_backend("OBJ", settings)

    def present(self, keys: list[str]) -> list[bool]:
        answers = self.agent.query_memory([(0, 0, 0, key) for key in keys], "OBJ", mem_type="OBJ")
        return [answer is not None for answer in answers]

    def transfer(
        self,
        operation: str,
        keys: list[str],
        buffers: list[Any],
        offset: int = 0,
        timeout: float = 60,
        event: Any = None,
    ) -> dict[str, Any]:
        """Move whole buffers to or from the objects, from `offset` on. The final state and how long it took."""
        local = self.agent.register_memory(
            [(b.ctypes.data, b.nbytes, 0, "") for b in buffers], "DRAM", backends=["OBJ"]
        )
        remote = self.agent.register_memory(
            [(0, offset + b.nbytes, number, key) for number, (b, key) in enumerate(zip(buffers, keys, strict=True))],
            "OBJ",
            backends=["OBJ"],
        )
        began = time.monotonic()
        handle = None
        try:
            handle = self.agent.initialize_xfer(
                operation,
                self.agent.get_xfer_descs([(b.ctypes.data, b.nbytes, 0) for b in buffers], "DRAM"),
                self.agent.get_xfer_descs([(offset, b.nbytes, number) for number, b in enumerate(buffers)], "OBJ"),
                "s3verbs",
                backends=["OBJ"],
            )
            state = self.agent.transfer(handle)
            if event is not None:
                emit({"event": event})
            while state == "PROC" and time.monotonic() - began < timeout:
                time.sleep(0.002)
                state = self.agent.check_xfer_state(handle)
        except (nixlBackendError, nixlInvalidParamError, nixlNotFoundError, nixlUnknownError) as error:
            state = f"ERR {type(error).__name__}"
        if state != "PROC":
            # Memory of a transfer that is under way still belongs to the plugin's threads.
            if handle is not None:
                self.agent.release_xfer_handle(handle)
            self.agent.deregister_memory(remote)
            self.agent.deregister_memory(local)
        return {"state": state, "seconds": round(time.monotonic() - began, 3)}

    def write(self, keys: list[str], sizes: list[int], **options: Any) -> dict[str, Any]:
        data = [numpy.frombuffer(payload(key, size), dtype=numpy.uint8) for key, size in zip(keys, sizes, strict=True)]
        return self.transfer("WRITE", keys, data, **options)

    def read(self, keys: list[str], sizes: list[int], **options: Any) -> dict[str, Any]:
        """Read into buffers filled with UNTOUCHED; the digest of each whole buffer."""
        buffers = [numpy.full(size, UNTOUCHED, dtype=numpy.uint8) for size in sizes]
        done = self.transfer("READ", keys, buffers, **options)
        return done | {"sha256": [sha256(buffer.data) for buffer in buffers]}


@case
def round_trip(
    endpoint: Any, bucket: str, keys: list[str], sizes: list[int], parameters: dict[str, str]
) -> dict[str, Any]:
    objects = Objects(endpoint, bucket, parameters)
    asked = [*keys, "absent/key"]
    before = objects.present(asked)
    write = objects.write(keys, sizes)
    return {"before": before, "write": write, "after": objects.present(asked), "read": objects.read(keys, sizes)}


@case
def write(endpoint: Any, bucket: str, keys: list[str], sizes: list[int], parameters: dict[str, str]) -> dict[str, Any]:
    return Objects(endpoint, bucket, parameters).write(keys, sizes)


@case
def read(
    endpoint: Any, bucket: str, keys: list[str], sizes: list[int], parameters: dict[str, str], offset: int = 0
) -> dict[str, Any]:
    return Objects(endpoint, bucket, parameters).read(keys, sizes, offset=offset)


@case
def batches(endpoint: Any, bucket: str, count: int, size: int, parameters: dict[str, str]) -> dict[str, Any]:
    """Write `count` batches of four objects, then read them. An event is printed when each batch is under way."""
    objects = Objects(endpoint, bucket, parameters)
    sizes = [size] * 4
    writes, reads = [], []
    for batch in range(count):
        keys = [f"batch/{batch}/{number}" for number in range(4)]
        writes.append(objects.write(keys, sizes, event=f"write {batch}"))
    for batch in range(count):
        keys = [f"batch/{batch}/{number}" for number in range(4)]
        reads.append(objects.read(keys, sizes, event=f"read {batch}"))
    return {"writes": writes, "reads": reads}


if __name__ == "__main__":
    cases.main(leave_at_once=True)
