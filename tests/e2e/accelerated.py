"""The stock NIXL wheel with `libcuobjclient.so.1` of this project: what the tests of the same host share with those in
the virtual machine."""

import re
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clients import Driver, payload, sha256
from tests.e2e.server import ROOT, Endpoint, Server, wait_until

LIBRARY = ROOT / "build" / "client" / "lib" / "libcuobjclient.so.1"
UNTOUCHED = b"\xee"
DONE = {"state": "DONE", "intact": True}


def library_path() -> dict[str, str]:
    """Environment in which the loader finds the built library."""
    if not LIBRARY.exists():
        pytest.fail(f"{LIBRARY} is not built: make client", pytrace=False)
    return {"LD_LIBRARY_PATH": str(LIBRARY.parent)}


class Engine(Driver):
    """A process with one NIXL agent whose OBJ backend is the accelerated one. `problem` says why it has none."""

    def __init__(
        self,
        endpoint: Endpoint,
        bucket: str,
        environment: Mapping[str, str],
        parameters: Mapping[str, str] | None = None,
        *,
        patience: float = 60,
        within: Sequence[str] = (),
    ) -> None:
        """`patience`: seconds that a case may take. `within` as the Driver's."""
        arguments = {"bucket": bucket, "parameters": parameters or {}}
        super().__init__(
            *("nixl-accelerated", "nixl_accelerated", "create"),
            *(endpoint, arguments, environment),
            stay=True,
            within=within,
        )
        self._patience = patience
        self.problem: str = self.value(patience)

    def present(self, keys: Sequence[str]) -> list[bool]:
        found: list[bool] = self.ask("present", self._patience, keys=keys)
        return found

    def write(self, keys: Sequence[str], sizes: Sequence[int]) -> dict[str, Any]:
        """The payloads of the keys. `intact` when neither they nor the guards have changed in the client's memory."""
        outcome: dict[str, Any] = self.ask("write", self._patience, keys=keys, sizes=sizes)
        return outcome

    def read(self, keys: Sequence[str], sizes: Sequence[int], offset: int = 0) -> dict[str, Any]:
        """Also the digest of each whole buffer; they were UNTOUCHED before."""
        outcome: dict[str, Any] = self.ask("read", self._patience, keys=keys, sizes=sizes, offset=offset)
        return outcome


def digests(keys: Sequence[str], sizes: Sequence[int]) -> list[str]:
    return [sha256(payload(key, size)) for key, size in zip(keys, sizes, strict=True)]


def read_of(*contents: bytes) -> dict[str, Any]:
    """What a read says that has left these bytes in its buffers."""
    return {**DONE, "sha256": [sha256(content) for content in contents]}


def failed(outcome: Mapping[str, Any], sizes: Sequence[int]) -> bool:
    """Whether a read says that it failed, and has left its buffers and what is beside them as they were."""
    blank = [sha256(UNTOUCHED * size) for size in sizes]
    return outcome["state"].startswith("ERR") and outcome["intact"] and outcome["sha256"] == blank


def went_well(outcomes: Sequence[Mapping[str, Any]]) -> bool:
    return all((each["write"], each["read"], each["same"]) == ("DONE", "DONE", True) for each in outcomes)


def wait_for_rounds(engine: Engine, count: int, patience: float = 60) -> None:
    """From now on, so many without a failure between them, and another begins."""
    since = time.monotonic()
    while (said := engine.next(patience))["event"] < count or said["at"] < since:
        pass


# -- servers --

ELSEWHERE = """
for folder in /run/s3verbs /tmp/s3verbs-$(id -u); do [ ! -d $folder ] || mount -t tmpfs none $folder; done
exec "$@"
"""
"""Runs a command that sees no sockets of servers that others of this machine have started."""


def serve(folder: Path, *options: str) -> Server:
    """A server whose same-host socket nobody else's client looks for."""
    server = Server(data=folder / "data", log=folder / "log", options=["--socket", str(folder / "socket"), *options])
    server.start()
    return server


def socket_of(server: Server) -> dict[str, str]:
    return {"S3VERBS_SOCKET": str(server.data.with_name("socket"))}


GIVEN_UP_MS = 2900
"""The engine's HTTP client sends a request again that is not answered within 3 s."""


def engine_requests(server: Server, bucket: str, count: int) -> list[dict[str, Any]]:
    """The lines of the access log about the bucket's data that are the engine's; that there are so many is required.
    A request that a slow disk made the engine send again is one."""
    lines: list[dict[str, Any]] = []

    def all_there() -> bool:
        found = [line for line in server.requests() if line["bucket"] == bucket and line["rdma_dialect"] == "nixl"]
        lines[:] = _without_given_up(found)
        return len(lines) >= count

    # The log is written now and then.
    wait_until(all_there, 10)
    assert len(lines) == count, [(line["operation"], line["key"], line["duration_ms"]) for line in lines]
    return lines


def _without_given_up(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the lines about one operation on one key, all but those that were given up; one stays in any case."""
    tries = Counter((line["operation"], line["key"]) for line in lines)
    kept = []
    for line in lines:
        what = (line["operation"], line["key"])
        if line["duration_ms"] > GIVEN_UP_MS and tries[what] > 1:
            tries[what] -= 1
        else:
            kept.append(line)
    return kept


def moved_by_samehost(server: Server, bucket: str, operations: int) -> int:
    """Require that the engine's operations, which are so many, went beside HTTP; how many bytes they moved."""
    lines = engine_requests(server, bucket, operations)
    assert {(line["rdma"], line["rdma_outcome"]) for line in lines} == {("samehost", "moved")}
    assert {(line["bytes_in"], line["bytes_out"]) for line in lines} == {(0, 0)}
    return sum(line["rdma_bytes"] for line in lines)


def metric(server: Server, name: str, **labels: str) -> float:
    """The sum over its series with these labels."""
    page = urllib.request.urlopen(f"http://127.0.0.1:{server.health_port}/metrics", timeout=10).read().decode()
    total = 0.0
    for fields, value in re.findall(rf"^{name}{{(.*)}} (\S+)$", page, re.MULTILINE):
        if labels.items() <= dict(re.findall(r'(\w+)="([^"]*)"', fields)).items():
            total += float(value)
    return total
