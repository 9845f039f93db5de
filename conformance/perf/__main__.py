"""`python -m conformance.perf`: the load benchmark, one table per run. `... rdma`: RDMA against HTTP.

Every peer runs alone, in turn, on this machine; rounds interleave the peers so that a noisy minute hits all of them.
A figure is the median over the rounds. Read ratios within one run, not figures across runs.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from conformance.perf import peers
from conformance.perf.client import LoadClient, head
from conformance.perf.disk import fdatasync_rate
from conformance.perf.processes import usage
from conformance.perf.radosgw import Radosgw
from conformance.perf.report import as_markdown
from conformance.perf.workloads import WORKLOADS, Workload

PEERS: dict[str, type[peers.Peer]] = {
    peer.name: peer for peer in (peers.Nginx, peers.SeaweedFS, Radosgw, peers.S3Verbs, peers.S3VerbsRelaxed)
}
BUCKET = "bench"


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="conformance.perf", description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", default="nginx,seaweedfs,s3verbs,s3verbs-relaxed", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--workloads", default="", help="substring of the workloads to run, several by comma")
    parser.add_argument("--connections", default="1,16")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where the servers keep their data (default: a temporary folder here)"
    )
    parser.add_argument("--json", type=Path, default=None, help="also write every measurement here")
    return parser.parse_args(arguments)


def prepare(peer: peers.Peer, client: LoadClient, workloads: list[Workload]) -> None:
    """Create the bucket and the objects that the workloads read, with the load client itself."""
    if peer.s3:
        s3 = boto3.client(
            "s3",
            endpoint_url=peer.endpoint.url,
            aws_access_key_id=peer.endpoint.access_key,
            aws_secret_access_key=peer.endpoint.secret_key,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 10}),
        )
        if BUCKET not in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]:
            s3.create_bucket(Bucket=BUCKET)
    done = set()
    for workload in workloads:
        if not workload.objects or workload.objects in done or (workload.needs_s3 and not peer.s3):
            continue
        done.add(workload.objects)
        prefix, count, size = workload.objects
        heads = [
            head(peer.endpoint, "PUT", f"/{BUCKET}/{prefix}{number:06d}", body_bytes=size) for number in range(count)
        ]
        # every object once: as many requests as objects, whatever the time it takes
        load = client.run(peer.endpoint, heads, connections=min(8, count), seconds=600, body_bytes=size, total=count)
        if load.errors:
            raise RuntimeError(
                f"{peer.name}: {load.errors} errors while preparing {prefix} (last status {load.last_bad_status})"
            )


def measure(
    peer: peers.Peer, client: LoadClient, workload: Workload, connections: int, seconds: float
) -> dict[str, Any]:
    heads = list(workload.requests(peer.endpoint, BUCKET))
    before = usage(peer.pids)
    load = client.run(peer.endpoint, heads, connections=connections, seconds=seconds, body_bytes=workload.body_bytes)
    after = usage(peer.pids)
    good = max(1, load.requests - load.errors)
    return {
        "peer": peer.name,
        "workload": workload.name,
        "connections": connections,
        "unit": workload.unit,
        "rate": load.megabytes_per_second if workload.unit == "MB/s" else load.per_second,
        "errors": load.errors,
        "p50_us": load.p50_us,
        "p99_us": load.p99_us,
        "server_cpu_us": (after.cpu - before.cpu) / good * 1e6,
        "client_cpu_us": load.client_cpu / good * 1e6,
        "rss": after.rss,
        "pss": after.pss,
    }


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["rdma"]:
        from conformance.perf import rdma

        return rdma.main(arguments[1:])
    options = parse(arguments)
    wanted = [word for word in options.workloads.split(",") if word]
    workloads = [each for each in WORKLOADS if not wanted or any(word in each.name for word in wanted)]
    results: list[dict[str, Any]] = []
    client = LoadClient()
    with tempfile.TemporaryDirectory(prefix="s3verbs-perf-", dir=options.folder or Path.cwd()) as folder:
        rates = []
        running: dict[str, Any] = {}
        for round_number in range(options.rounds):
            rates.append(fdatasync_rate(Path(folder)))
            for name in options.peers.split(","):
                try:
                    with PEERS[name](Path(folder) / f"{name}-{round_number}") as peer:
                        prepare(peer, client, workloads)
                        for workload in workloads:
                            if workload.needs_s3 and not peer.s3:
                                continue
                            for connections in map(int, options.connections.split(",")):
                                result = measure(peer, client, workload, connections, options.seconds)
                                results.append(result | {"round": round_number})
                                rate = f"{result['rate']:10.1f} {result['unit']}"
                                print(
                                    f"{name:16} {workload.name:18} C={connections:<3} {rate}",
                                    file=sys.stderr,
                                    flush=True,
                                )
                                time.sleep(0.2)
                except peers.PeerUnavailable as missing:
                    running[name] = str(missing)
                    print(f"{name}: {missing}", file=sys.stderr)
        disk = statistics.median(rates)
    client.close()
    if options.json:
        options.json.write_text(
            json.dumps({"disk_fdatasync_mb_s": disk, "unavailable": running, "results": results}, indent=1)
        )
    print(as_markdown(results, disk))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
