"""A fault at every step of a PUT and a GET beside HTTP, through the whole gateway: the answer is the contract's, no
buffer, descriptor or region leaks, no partial object shows, and the object that was there stays."""

import hashlib
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from s3verbs.rdma.errors import Decline, Declined, Failure, PeerUnreachable, RemoteAccess
from s3verbs.rdma.fabric import CHUNK
from s3verbs.rdma.loopback import Fault, LoopbackFaults
from s3verbs.storage.faults import Faults
from tests.integration.endpoint import BUCKET, Response
from tests.integration.rdma_gateway import RELAXED, RdmaGateway

SIZES = {"inline": 1000, "one chunk": 200_000, "several chunks": 3 * CHUNK + 17}
FAULTS: dict[str, tuple[Callable[[], Fault], set[int]]] = {
    "remote access": (lambda: Fault(RemoteAccess), {400}),
    "connection lost": (lambda: Fault(lambda: PeerUnreachable(Failure.CONNECTION_LOST)), {503}),
    "not permitted": (lambda: Fault(lambda: Declined(Decline.NOT_PERMITTED)), {501, 200}),
    "silence": (lambda: Fault(hang=True, flush=0.02), {503}),
    "a defect": (lambda: Fault(lambda: ZeroDivisionError("a defect")), {500}),
    "slow": (lambda: Fault(delay=0.02), {200}),
}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RdmaGateway]:
    """Silence costs the time limit, and a busy machine must not look like it."""
    running = await RdmaGateway(tmp_path).start(transfer_timeout=0.6, seed=3)
    try:
        yield running
    finally:
        await running.stop()


def pattern(size: int, seed: int) -> bytes:
    return hashlib.shake_128(bytes([seed])).digest(size)


def check_answer(response: Response, expected: set[int]) -> None:
    assert response.status in expected
    reply = response.headers.get("x-amz-rdma-reply")
    assert reply == ("501" if 501 in expected else "200" if response.status == 200 else None)


@pytest.mark.parametrize("bucket", [BUCKET, RELAXED])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
async def test_every_step_of_a_put_and_of_a_get(gateway: RdmaGateway, size: int, bucket: str) -> None:
    before, after = pattern(size, 1), pattern(size, 2)
    await gateway.request("PUT", f"/{bucket}/k", before)
    source, target = gateway.expose(after), gateway.expose(bytes(size))

    async def put() -> Response:
        return await gateway.put("k", source, bucket)

    async def get() -> Response:
        return await gateway.get("k", target, bucket)

    for work, method in ((get, "GET"), (put, "PUT")):
        steps = await steps_of(gateway, work)
        await gateway.request("PUT", f"/{bucket}/k", before)
        for step, number in steps:
            for make, expected in FAULTS.values():
                fault = make()
                if step == "close" and (fault.error is not None or fault.hang):
                    continue
                gateway.fabric.faults = LoopbackFaults()
                gateway.fabric.faults.add(step, number, fault)  # type: ignore[arg-type]
                response = await work()
                check_answer(response, expected)
                await gateway.settle()
                assert gateway.pool.idle == gateway.pool.total
                gateway.fabric.check()
                gateway.fabric.faults = LoopbackFaults()
                if method == "GET":
                    by_http = response.headers.get("x-amz-rdma-reply") == "501"
                    if response.status == 200:
                        assert (response.body if by_http else target.bytes) == before
                elif response.status == 200:
                    assert await gateway.stored("k", bucket) == after
                    await gateway.request("PUT", f"/{bucket}/k", before)
                else:
                    assert await gateway.stored("k", bucket) == before


async def steps_of(gateway: RdmaGateway, work: Callable[[], object]) -> list[tuple[str, int]]:
    gateway.fabric.faults = LoopbackFaults()
    response = await work()  # type: ignore[misc]
    assert response.status == 200
    seen: list[tuple[str, int]] = []
    for step in gateway.fabric.faults.passed:
        seen.append((step, sum(name == step for name, _ in seen)))
    assert {step for step, _ in seen} >= {"open", "close"}
    return seen


async def test_every_step_of_a_part(gateway: RdmaGateway) -> None:
    started = await gateway.request("POST", f"/{BUCKET}/m?uploads=")
    upload = re.search(rb"<UploadId>(.*?)<", started.body)[1].decode()  # type: ignore[index]
    path = f"/{BUCKET}/m?partNumber=1&uploadId={upload}"
    first = await gateway.request("PUT", path, b"what was there")
    source = gateway.expose(pattern(2 * CHUNK, 5))
    for step, number in (("open", 0), ("read", 0), ("read", 1)):
        for make, expected in FAULTS.values():
            if expected == {200}:
                continue
            gateway.fabric.faults = LoopbackFaults()
            gateway.fabric.faults.add(step, number, make())  # type: ignore[arg-type]
            response = await gateway.request("PUT", path, x_amz_rdma_token=str(source.token))
            assert response.status in expected
            await gateway.settle()
            assert gateway.pool.idle == gateway.pool.total
            listed = await gateway.request("GET", f"/{BUCKET}/m?uploadId={upload}")
            assert first.headers["etag"].strip('"').encode() in listed.body
            assert listed.body.count(b"<Part>") == 1
    await gateway.request("DELETE", f"/{BUCKET}/m?uploadId={upload}")


@pytest.mark.parametrize("step", ["payload.create", "payload.write", "payload.seal"])
async def test_a_drive_that_fails_under_a_put(gateway: RdmaGateway, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drive's fault is the drive's: 507 or 500, and nothing is kept of either side."""
    from s3verbs.storage import payload_writer
    from s3verbs.storage.errors import StorageFull

    await gateway.request("PUT", f"/{BUCKET}/k", b"before")
    faults = Faults()
    faults.fail(step, StorageFull("full"))
    method = {"payload.create": "__init__", "payload.write": "write", "payload.seal": "seal"}[step]
    real = getattr(payload_writer.NvmePayloadWriter, method)

    def failing(*arguments: object, **named: object) -> object:
        faults.reach(step)
        return real(*arguments, **named)

    monkeypatch.setattr(payload_writer.NvmePayloadWriter, method, failing)
    response = await gateway.put("k", gateway.expose(pattern(3 * CHUNK, 7)))
    assert (response.status, response.code) == (507, "InsufficientStorage")
    assert await gateway.stored("k") == b"before"
