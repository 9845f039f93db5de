"""What is measured: each workload names its requests, the bytes they carry and how its rate is read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from conformance.perf.client import Endpoint, head

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Workload:
    """`unit` is "MB/s" or "req/s"; `objects` (prefix, how many, bytes each) must exist before it runs."""

    name: str
    unit: str
    body_bytes: int
    requests: Callable[[Endpoint, str], Iterator[bytes]]
    objects: tuple[str, int, int] | None = None  # prefix, how many, bytes each
    needs_s3: bool = False


def _over(method: str, prefix: str, count: int, body_bytes: int = 0) -> Callable[[Endpoint, str], Iterator[bytes]]:
    def build(endpoint: Endpoint, bucket: str) -> Iterator[bytes]:
        for number in range(count):
            yield head(endpoint, method, f"/{bucket}/{prefix}{number:06d}", body_bytes=body_bytes)

    return build


def _listing(prefix: str, pages: int, page: int) -> Callable[[Endpoint, str], Iterator[bytes]]:
    def build(endpoint: Endpoint, bucket: str) -> Iterator[bytes]:
        for number in range(pages):
            after = f"{prefix}{number * page:06d}".replace("/", "%2F")
            query = f"list-type=2&max-keys={page}&prefix={prefix.replace('/', '%2F')}&start-after={after}"
            yield head(endpoint, "GET", f"/{bucket}", query)

    return build


WORKLOADS = (
    Workload("GET 8 MiB", "MB/s", 0, _over("GET", "get8/", 16), ("get8/", 16, 8 * MIB)),
    Workload("GET 32 MiB", "MB/s", 0, _over("GET", "get32/", 8), ("get32/", 8, 32 * MIB)),
    Workload("PUT 8 MiB", "MB/s", 8 * MIB, _over("PUT", "put8/", 64, 8 * MIB)),
    Workload("GET 4 KiB", "req/s", 0, _over("GET", "get4k/", 1000), ("get4k/", 1000, 4 * KIB)),
    Workload("HEAD 4 KiB", "req/s", 0, _over("HEAD", "get4k/", 1000), ("get4k/", 1000, 4 * KIB)),
    Workload("PUT 4 KiB", "req/s", 4 * KIB, _over("PUT", "put4k/", 4000, 4 * KIB)),
    Workload("LIST 1000 of 100k", "req/s", 0, _listing("list/", 99, 1000), ("list/", 100_000, 16), needs_s3=True),
)
