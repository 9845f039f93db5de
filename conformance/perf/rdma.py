"""`python -m conformance.perf rdma`: payloads by RDMA against the same payloads by HTTP, in one run on one host.

One server, objects warm in the page cache. Rounds interleave the clients so that a noisy minute hits all of them; a
figure is the median over the rounds. Yardsticks say what the machine gives without a server: process_vm_writev and
sendfile, of a file of the same size. Every client's content is verified.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from conformance.perf import rdma_report
from conformance.perf.client import LoadClient, compile_c, head
from conformance.perf.peers import Peer, S3Verbs, S3VerbsRelaxed
from conformance.perf.processes import usage

BUCKET = "bench"
RAW = "raw HTTP"
RDMA = "RDMA"
DRIVER = Path(__file__).with_name("rdma_driver.py")
YARDSTICKS = {"process_vm_writev": "writev", "sendfile over TCP": "sendfile"}
_MIB = 1 << 20


@dataclass(frozen=True)
class Objects:
    """What GETs read: `count` objects of `size` bytes, each of other content."""

    size: int
    count: int

    @property
    def keys(self) -> list[str]:
        return [f"get/{self.size}/{number:03d}" for number in range(self.count)]

    def content(self, key: str) -> bytes:
        return random.Random(key).randbytes(self.size)

    def put_keys(self, client: str, connections: int) -> list[str]:
        """Two for each connection, overwritten in turn."""
        name = "".join(letter for letter in client if letter.isalnum())
        return [f"put/{self.size}/{name}/{number:03d}" for number in range(2 * connections)]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="conformance.perf rdma", description=__doc__.partition("\n")[0])
    parser.add_argument("--transport", choices=("samehost", "rc"), default="samehost", help="how RDMA payloads move")
    parser.add_argument("--sizes", default="8,32", help="MiB, by comma")
    parser.add_argument("--connections", default="1,16")
    parser.add_argument("--operations", default="GET,PUT")
    parser.add_argument("--clients", default="raw,boto3,awscrt,rdma", help="of these; raw is what ratios are against")
    parser.add_argument(
        "--client",
        default="s3verbs:Client",
        help="the RDMA client library, MODULE:CLASS (see rdma_driver.py)",
    )
    parser.add_argument(
        "--client-options", default="", help="further arguments of CLASS, JSON (default: this transport, no fallback)"
    )
    parser.add_argument(
        "--serve", action="append", default=[], metavar="NAME=VALUE", help="a further setting of s3verbs serve"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--durability", choices=("relaxed", "strict"), default="relaxed", help="of the bucket")
    parser.add_argument("--working-set", type=int, default=256, help="MiB of objects of each size")
    parser.add_argument("--folder", type=Path, default=None, help="where the server keeps its data (default: here)")
    parser.add_argument("--json", type=Path, default=None, help="also write every measurement here")
    return parser.parse_args(arguments)


class Bench:
    """One server under measurement and the programs that load it."""

    def __init__(self, peer: Peer, client: LoadClient, yardsticks: Path, options: argparse.Namespace) -> None:
        self._peer = peer
        self._client = client
        self._yardsticks = yardsticks
        self._options = options
        self._crc32: dict[str, int] = {}
        self._s3 = boto3.client(
            "s3",
            endpoint_url=peer.endpoint.url,
            aws_access_key_id=peer.endpoint.access_key,
            aws_secret_access_key=peer.endpoint.secret_key,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}),
        )

    def prepare(self, objects: Objects) -> None:
        """Store the objects and read each once, so that all are in the page cache."""
        for key in objects.keys:
            content = objects.content(key)
            self._crc32[key] = zlib.crc32(content)
            self._s3.put_object(Bucket=BUCKET, Key=key, Body=content)
            if self._s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() != content:
                raise RuntimeError(f"{key}: the server returns other content than was stored")

    def yardstick(self, name: str, objects: Objects, folder: Path) -> dict[str, Any]:
        """One measurement over a file with as many bytes as the objects have."""
        path, size = folder / f"yardstick-{objects.size}", objects.size
        if not path.exists():
            with path.open("wb") as file:
                for key in objects.keys:
                    file.write(objects.content(key))
        command = [str(self._yardsticks), YARDSTICKS[name], str(path), str(size), str(self._options.seconds)]
        out = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
        return {
            "client": name,
            "operation": "GET",
            "size": size,
            "connections": 1,
            "mb_s": out["bytes"] / out["seconds"] / 1e6,
            "p50_ms": out["p50_us"] / 1e3,
            "p99_ms": out["p99_us"] / 1e3,
            "client_cpu": out["client_cpu"] / out["bytes"] * 1e9,
            "server_cpu": out["server_cpu"] / out["bytes"] * 1e9,
            "errors": 0,
            "first_error": "",
        }

    def measure(self, client: str, operation: str, objects: Objects, connections: int) -> dict[str, Any]:
        """One measurement. CPU is in seconds for 10^9 bytes."""
        before = usage(self._peer.pids)
        if client == RAW:
            out = self._raw(operation, objects, connections)
        else:
            out = self._driver(client, operation, objects, connections)
        server = usage(self._peer.pids).cpu - before.cpu
        good = max(1, out["requests"] - out["errors"])
        return {
            "client": client,
            "operation": operation,
            "size": objects.size,
            "connections": connections,
            "mb_s": good * objects.size / out["seconds"] / 1e6,
            "p50_ms": out["p50_us"] / 1e3,
            "p99_ms": out["p99_us"] / 1e3,
            "client_cpu": out["client_cpu"] / (good * objects.size) * 1e9,
            "server_cpu": server / ((good + out["warm"]) * objects.size) * 1e9,
            "errors": out["errors"],
            "first_error": out["first_error"],
        }

    def _raw(self, operation: str, objects: Objects, connections: int) -> dict[str, Any]:
        writes = operation == "PUT"
        body = objects.size if writes else 0
        keys = objects.put_keys(RAW, connections) if writes else objects.keys
        heads = [head(self._peer.endpoint, operation, f"/{BUCKET}/{key}", body_bytes=body) for key in keys]
        load = self._client.run(
            self._peer.endpoint,
            heads,
            connections=connections,
            seconds=self._options.seconds,
            body_bytes=body,
            receive_bytes=0 if writes else objects.size,
        )
        first_error = f"status {load.last_bad_status}" if load.errors else ""
        wrong = [] if writes else [crc for crc in load.crc32 if crc not in self._crc32.values()]
        if wrong:
            first_error = f"{len(wrong)} buffers have other content than was stored"
        return {
            "requests": load.requests,
            "errors": load.errors + len(wrong),
            "first_error": first_error,
            "warm": 0,
            "seconds": load.seconds,
            "p50_us": load.p50_us,
            "p99_us": load.p99_us,
            "client_cpu": load.client_cpu,
        }

    def _driver(self, client: str, operation: str, objects: Objects, connections: int) -> dict[str, Any]:
        endpoint, writes = self._peer.endpoint, operation == "PUT"
        keys = objects.put_keys(client, connections) if writes else objects.keys
        job = {
            "endpoint": endpoint.url,
            "access_key": endpoint.access_key,
            "secret_key": endpoint.secret_key,
            "bucket": BUCKET,
            "operation": operation,
            "keys": keys,
            "size": objects.size,
            "connections": connections,
            "seconds": self._options.seconds,
            "crc32": self._crc32,
            "options": json.loads(self._options.client_options)
            if self._options.client_options
            else {"transport": self._options.transport, "fallback": False},
        }
        name = self._options.client if client == RDMA else client
        command = [sys.executable, str(DRIVER), name]
        result = subprocess.run(
            command, input=json.dumps(job), text=True, capture_output=True, timeout=self._options.seconds + 300
        )
        if result.returncode:
            raise RuntimeError(f"{client}, {operation}: {result.stderr[-2000:]}")
        out: dict[str, Any] = json.loads(result.stdout)
        if writes and zlib.crc32(self._s3.get_object(Bucket=BUCKET, Key=keys[0])["Body"].read()) != out["crc32"]:
            out["errors"] += 1
            out["first_error"] = f"{keys[0]}: other content than was sent"
        return out


def measurements(bench: Bench, options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    known = {"raw": RAW, "rdma": RDMA}
    clients = [known.get(name, name) for name in options.clients.split(",")]
    sizes = [int(text) * _MIB for text in options.sizes.split(",")]
    sets = [Objects(size, max(16, options.working_set * _MIB // size)) for size in sizes]
    for objects in sets:
        bench.prepare(objects)
    for number in range(options.rounds):
        for objects in sets:
            for name in YARDSTICKS:
                yield bench.yardstick(name, objects, folder) | {"round": number}
            for connections in map(int, options.connections.split(",")):
                for operation in options.operations.split(","):
                    for client in clients:
                        yield bench.measure(client, operation, objects, connections) | {"round": number}


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    kind: type[S3Verbs] = S3VerbsRelaxed if options.durability == "relaxed" else S3Verbs
    results = []
    before = os.getloadavg()[0]
    client = LoadClient()
    with tempfile.TemporaryDirectory(prefix="s3verbs-perf-", dir=options.folder or Path.cwd()) as name:
        folder = Path(name)
        yardsticks = compile_c(Path(__file__).with_name("yardsticks.c"), folder / "yardsticks")
        try:
            server = kind(folder / "server")
            server.settings = dict(setting.split("=", 1) for setting in options.serve)
            with server as peer:
                for result in measurements(Bench(peer, client, yardsticks, options), options, folder):
                    results.append(result)
                    print(rdma_report.line(result), file=sys.stderr, flush=True)
        finally:
            client.close()
    if options.json:
        options.json.write_text(json.dumps({"options": vars(options), "results": results}, indent=1, default=str))
    noise = f"{os.cpu_count()} CPUs, load average {before:.1f} before and {os.getloadavg()[0]:.1f} after the run"
    print(f"{options.rounds} rounds of {options.seconds:g} s, {options.durability} bucket, {noise}.\n")
    print(rdma_report.as_markdown(results, RAW))
    if options.transport == "samehost" and any(result["client"] == RDMA for result in results):
        print("\n" + rdma_report.targets(results, RAW, RDMA))
    return 1 if any(result["errors"] for result in results) else 0
