"""One client under load, in a process of its own: C threads, each with one request in flight into its own buffer.

    python rdma_driver.py boto3 | awscrt | MODULE:CLASS  < JOB

JOB is a JSON object: endpoint, access_key, secret_key, bucket, operation (GET or PUT), keys (thread T of C takes every
C-th, over and over), size (bytes of every object), connections, seconds, and crc32 (key -> what its content must
have, for GET). The answer is one JSON object: requests, errors, seconds, p50_us, p99_us, client_cpu (of this process,
without its start), warm (requests before the clock started), crc32 (of what a PUT sends), first_error.

MODULE:CLASS is a client whose payloads bypass HTTP: `CLASS(endpoint, access_key=, secret_key=, **options)` with
`register(buffer) -> region`, `get_into(bucket, key, region)`, `put_from(bucket, key, region)` and `close()`. The job's
options have to forbid it a fallback to HTTP.

Every thread's first GET, before the clock starts, and its last one are compared with the expected content.
"""

import io
import json
import random
import resource
import statistics
import sys
import threading
import time
import zlib
from importlib import import_module
from typing import Any, Protocol


class Client(Protocol):
    """What a thread calls. `slot` is the thread's number; its buffer is `buffers[slot]`."""

    def get(self, key: str, slot: int) -> None: ...
    def put(self, key: str, slot: int) -> None: ...
    def close(self) -> None: ...


class Boto3:
    def __init__(self, job: dict[str, Any], buffers: list[bytearray]) -> None:
        import boto3
        from botocore.config import Config

        config = Config(s3={"addressing_style": "path"}, max_pool_connections=job["connections"])
        self._bucket, self._buffers = job["bucket"], buffers
        self._s3 = boto3.client(
            "s3",
            endpoint_url=job["endpoint"],
            aws_access_key_id=job["access_key"],
            aws_secret_access_key=job["secret_key"],
            region_name="us-east-1",
            config=config,
        )

    def get(self, key: str, slot: int) -> None:
        body = self._s3.get_object(Bucket=self._bucket, Key=key)["Body"]
        left = memoryview(self._buffers[slot])
        while left and (count := body.readinto(left)):
            left = left[count:]
        body.close()

    def put(self, key: str, slot: int) -> None:
        self._s3.put_object(Bucket=self._bucket, Key=key, Body=io.BytesIO(self._buffers[slot]))

    def close(self) -> None:
        self._s3.close()


class Awscrt:
    """The S3 client of the AWS Common Runtime: parallel ranges into the buffer."""

    def __init__(self, job: dict[str, Any], buffers: list[bytearray]) -> None:
        from awscrt import auth, io, s3

        self._job, self._buffers = job, buffers
        provider = auth.AwsCredentialsProvider.new_static(job["access_key"], job["secret_key"])
        signing = s3.create_default_s3_signing_config(region="us-east-1", credential_provider=provider)
        bootstrap = io.ClientBootstrap.get_or_create_static_default()
        self._s3 = s3.S3Client(
            bootstrap=bootstrap,
            region="us-east-1",
            signing_config=signing,
            tls_mode=s3.S3RequestTlsMode.DISABLED,
        )

    def get(self, key: str, slot: int) -> None:
        buffer = self._buffers[slot]

        def place(chunk: bytes, offset: int, **_: object) -> None:
            buffer[offset : offset + len(chunk)] = chunk

        self._request("GET", key, on_body=place)

    def put(self, key: str, slot: int) -> None:
        self._request("PUT", key, body=io.BytesIO(self._buffers[slot]))

    def _request(self, method: str, key: str, body: io.BytesIO | None = None, **options: Any) -> None:
        from awscrt import http, s3

        headers = http.HttpHeaders([("host", self._job["endpoint"].partition("//")[2])])
        if body is not None:
            headers.add("content-length", str(self._job["size"]))
        request = http.HttpRequest(method, f"/{self._job['bucket']}/{key}", headers, body)
        kind = s3.S3RequestType.GET_OBJECT if method == "GET" else s3.S3RequestType.PUT_OBJECT
        self._s3.make_request(type=kind, request=request, **options).finished_future.result(120)

    def close(self) -> None:
        del self._s3


class Bypass:
    """A client library whose payloads do not go over HTTP."""

    def __init__(self, name: str, job: dict[str, Any], buffers: list[bytearray]) -> None:
        module, _, attribute = name.partition(":")
        keys = {"access_key": job["access_key"], "secret_key": job["secret_key"]}
        self._client = getattr(import_module(module), attribute)(job["endpoint"], **keys, **job.get("options", {}))
        self._bucket = job["bucket"]
        self._regions = [self._client.register(buffer) for buffer in buffers]

    def get(self, key: str, slot: int) -> None:
        self._client.get_into(self._bucket, key, self._regions[slot])

    def put(self, key: str, slot: int) -> None:
        self._client.put_from(self._bucket, key, self._regions[slot])

    def close(self) -> None:
        self._client.close()


def open_client(name: str, job: dict[str, Any], buffers: list[bytearray]) -> Client:
    if name == "boto3":
        return Boto3(job, buffers)
    return Awscrt(job, buffers) if name == "awscrt" else Bypass(name, job, buffers)


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Load:
    """The closed loop. `latencies` in seconds; `errors` texts."""

    def __init__(self, client: Client, job: dict[str, Any], buffers: list[bytearray]) -> None:
        self._job, self._buffers = job, buffers
        self._act = client.get if job["operation"] == "GET" else client.put
        self._go = threading.Barrier(job["connections"] + 1)
        self._end = 0.0
        self.latencies: list[float] = []
        self.errors: list[str] = []

    def run(self) -> tuple[float, float]:
        """Seconds of wall clock and of CPU."""
        threads = [threading.Thread(target=self._thread, args=(slot,)) for slot in range(self._job["connections"])]
        for thread in threads:
            thread.start()
        self._go.wait()
        start, cpu = time.monotonic(), cpu_seconds()
        self._end = start + self._job["seconds"]
        self._go.wait()
        self._go.wait()
        passed = time.monotonic() - start, cpu_seconds() - cpu
        for thread in threads:
            thread.join()
        return passed

    def _thread(self, slot: int) -> None:
        keys = self._job["keys"][slot :: self._job["connections"]]
        self._try(keys[0], slot)
        self._compare(keys[0], slot)
        self._go.wait()
        self._go.wait()
        number, mine = 0, []
        last = time.monotonic()
        while last < self._end and len(self.errors) < 100:
            number += 1
            self._try(keys[number % len(keys)], slot)
            now = time.monotonic()
            mine.append(now - last)
            last = now
        self._go.wait()
        self.latencies += mine
        self._compare(keys[number % len(keys)], slot)

    def _try(self, key: str, slot: int) -> None:
        try:
            self._act(key, slot)
        except Exception as error:  # noqa: BLE001  whatever a client raises is counted
            self.errors.append(f"{type(error).__name__}: {error}")

    def _compare(self, key: str, slot: int) -> None:
        if self._job["operation"] == "GET" and zlib.crc32(self._buffers[slot]) != self._job["crc32"][key]:
            self.errors.append(f"{key}: other content than was stored")


def main(name: str) -> int:
    job = json.load(sys.stdin)
    content = random.Random(7).randbytes(job["size"]) if job["operation"] == "PUT" else bytes(job["size"])
    buffers = [bytearray(content) for _ in range(job["connections"])]
    client = open_client(name, job, buffers)
    load = Load(client, job, buffers)
    seconds, cpu = load.run()
    client.close()
    quantiles = (
        statistics.quantiles(load.latencies, n=100, method="inclusive") if len(load.latencies) > 1 else [0.0] * 99
    )
    answer = {
        "requests": len(load.latencies),
        "errors": len(load.errors),
        "first_error": load.errors[0] if load.errors else "",
        "warm": job["connections"],
        "seconds": seconds,
        "p50_us": quantiles[49] * 1e6,
        "p99_us": quantiles[98] * 1e6,
        "client_cpu": cpu,
        "crc32": zlib.crc32(content),
    }
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
