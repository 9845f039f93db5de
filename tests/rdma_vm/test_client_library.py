"""s3verbs.Client over real verbs, against the real server."""

import mmap
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3verbs.rdma.client.client import Client
from tests.integration.endpoint import ACCESS_KEY, BUCKET, SECRET_KEY
from tests.rdma_vm.gateway import IDLE, Gateway
from tests.rdma_vm.resources import GuardedBuffer, settled

MIB = 1 << 20


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[Client]:
    with Client(
        f"http://127.0.0.1:{gateway.port}",
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        transport="rc",
        fallback=False,
        devices=["rxe1"],
        part_size=5 * MIB,
        timeout=120,
    ) as opened:
        yield opened


@pytest.mark.parametrize("size", [1, 100_000, 12 * MIB + 1])
def test_put_and_get(gateway: Gateway, client: Client, size: int) -> None:
    """The largest is of three parts."""
    source, target = GuardedBuffer(size), GuardedBuffer(size)
    source.fill(b"client %d" % size)
    with client.register(source.view) as first, client.register(target.view) as second:
        put = client.put_from(BUCKET, f"client-{size}", first, checksum="crc64nvme")
        assert put.transport == "rc"
        got = client.get_into(BUCKET, f"client-{size}", second, verify_checksum=True)
        assert (got.transport, got.size) == ("rc", size)
        assert target.view == source.view
        part = client.get_into(BUCKET, f"client-{size}", second, (size // 2, size))
        assert part.size == size - size // 2
        assert target.view[: part.size] == source.view[size // 2 :]
    assert source.intact()
    assert target.intact()
    assert client.counters().rdma_share == 1.0
    settled(gateway.held, IDLE)


def test_memory_that_is_mapped_for_reading_can_be_put_from(gateway: Gateway, client: Client, tmp_path: Path) -> None:
    content = secrets.token_bytes(MIB)
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), MIB, prot=mmap.PROT_READ)
    with client.register(mapped) as region:
        assert client.put_from(BUCKET, "read-only", region).transport == "rc"
    assert gateway.plain_get("read-only").body == content
    mapped.close()
