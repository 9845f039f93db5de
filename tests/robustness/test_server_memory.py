"""Memory that does not grow with what is stored: single huge objects, and many at once."""

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.endpoint import BUCKET, Endpoint, Wire
from tests.robustness.server_load import POOL
from tests.robustness.server_state import forget_peak, peak, resident

MIB = 1 << 20
GIB = 1 << 30
PIECE = bytes(8 * MIB)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    data: Path = tmp_path_factory.mktemp("memory") / "data"
    with Endpoint(data, "--body-timeout", "60", workers=2) as running:
        with running.connect() as wire, running.connect() as other:
            # What is loaded and allocated once.
            for each in (wire, other):
                assert each.request("PUT", f"/{BUCKET}/warm", POOL).status == 200
                assert len(each.request("GET", f"/{BUCKET}/warm").body) == len(POOL)
        yield running
        assert "Traceback" not in running.errors


def grown(endpoint: Endpoint, base: dict[int, int]) -> int:
    """The most by which one worker's resident memory grew beyond `base`, since `forget_peak`."""
    return max(most - base[pid] for pid, most in peak(endpoint).items())


def put(wire: Wire, key: str, size: int) -> None:
    head = wire.signed(
        "PUT",
        f"/{BUCKET}/{key}",
        head_only=True,
        content_length=str(size),
        x_amz_content_sha256="UNSIGNED-PAYLOAD",
    )
    wire.send(head)
    for start in range(0, size, len(PIECE)):
        wire.send(PIECE[: min(len(PIECE), size - start)])
    response = wire.read()
    assert response.status == 200, response.code


def get(wire: Wire, key: str, size: int) -> None:
    """Read it all, and count."""
    wire.send(wire.signed("GET", f"/{BUCKET}/{key}"))
    into = bytearray(MIB)
    head = b""
    while b"\r\n\r\n" not in head:
        head += wire.sock.recv(1)
    assert head.startswith(b"HTTP/1.1 200 "), head
    left = size
    while left:
        count = wire.sock.recv_into(into, min(left, len(into)))
        assert count, f"{left} bytes are missing"
        assert not any(into[:count:4096])
        left -= count


@pytest.mark.parametrize(
    "size", [pytest.param(GIB, id="1 GiB"), pytest.param(5 * GIB, id="5 GiB", marks=pytest.mark.slow)]
)
def test_a_huge_object_passes_through_little_memory(endpoint: Endpoint, size: int) -> None:
    base = resident(endpoint)
    forget_peak(endpoint)
    with endpoint.connect(timeout=120) as wire:
        put(wire, "huge", size)
        get(wire, "huge", size)
        assert wire.request("HEAD", f"/{BUCKET}/huge").headers["content-length"] == str(size)
        assert wire.request("DELETE", f"/{BUCKET}/huge").status == 204
    assert grown(endpoint, base) < 64 * MIB


def test_more_than_5_gib_at_once_is_refused_before_it_is_read(endpoint: Endpoint) -> None:
    with endpoint.connect() as wire:
        head = wire.signed(
            "PUT",
            f"/{BUCKET}/huge",
            head_only=True,
            content_length=str(5 * GIB + 1),
            x_amz_content_sha256="UNSIGNED-PAYLOAD",
        )
        wire.send(head)
        assert wire.read().code == "EntityTooLarge"


def test_64_concurrent_puts_of_8_mib_stay_within_the_pool_of_buffers(endpoint: Endpoint) -> None:
    base = resident(endpoint)
    forget_peak(endpoint)
    body = POOL[: 8 * MIB]
    etag = f'"{hashlib.md5(body).hexdigest()}"'
    outcomes: list[object] = []

    def write(number: int) -> None:
        with endpoint.connect(timeout=60) as wire:
            path = f"/{BUCKET}/many/{number}"
            response = wire.request("PUT", path, body, x_amz_content_sha256="UNSIGNED-PAYLOAD")
            outcomes.append(response.headers.get("etag", response.code))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(outcomes) == {etag}
    # 32 MiB of buffers for each worker, and what 32 connections have in the transport: 256 KiB each.
    assert grown(endpoint, base) < (32 + 8 + 24) * MIB


def test_documents_of_many_connections_are_bounded(endpoint: Endpoint) -> None:
    """A DeleteObjects document of the largest size that is taken, from 16 clients at once."""
    base = resident(endpoint)
    forget_peak(endpoint)
    document = b"<Delete>" + b" " * (2 * MIB) + b"</Delete>"

    def post() -> None:
        with endpoint.connect(timeout=60) as wire:
            response = wire.request("POST", f"/{BUCKET}?delete=", document, content_md5="AAAAAAAAAAAAAAAAAAAAAA==")
            assert response.status == 400

    threads = [threading.Thread(target=post) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert grown(endpoint, base) < 64 * MIB
