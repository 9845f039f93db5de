"""Large plain bodies leave aiohttp's parser half-way; whatever ends them, the connection stays in step or closes."""

import hashlib
import time
from collections.abc import Iterator

import pytest

from tests.integration.endpoint import BUCKET, Endpoint, Wire

LARGE = hashlib.shake_256(b"large").digest(3 * (1 << 20) + 17)
PATH = f"/{BUCKET}/large"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with Endpoint(tmp_path_factory.mktemp("direct"), "--body-timeout", "1", "--buffer-pool", "4MiB") as running:
        yield running


@pytest.fixture
def wire(endpoint: Endpoint) -> Iterator[Wire]:
    with endpoint.connect() as connected:
        yield connected


def head_and_body(wire: Wire, method: str, path: str, body: bytes) -> tuple[bytes, bytes]:
    whole = wire.signed(method, path, body)
    split = len(whole) - len(body)
    return whole[:split], whole[split:]


@pytest.mark.parametrize("first", [0, 1, 65_536, 1 << 20, len(LARGE) - 1])
def test_a_body_in_pieces_and_the_requests_behind_it(wire: Wire, first: int) -> None:
    head, body = head_and_body(wire, "PUT", PATH, LARGE)
    wire.send(head + body[:first])
    time.sleep(0.05)
    wire.send(body[first:] + wire.signed("GET", PATH) + wire.signed("HEAD", PATH))
    assert wire.read().status == 200
    assert wire.read().body == LARGE
    assert wire.read("HEAD").headers["content-length"] == str(len(LARGE))


def test_many_large_bodies_on_one_connection(wire: Wire) -> None:
    for number in range(5):
        body = LARGE[number:]
        assert wire.request("PUT", f"{PATH}-{number}", body).status == 200
        assert wire.request("GET", f"{PATH}-{number}").body == body


def test_a_wrong_checksum_found_at_the_end_keeps_the_connection(wire: Wire) -> None:
    assert wire.request("PUT", PATH, LARGE).status == 200
    wrong = {"content-md5": "AAAAAAAAAAAAAAAAAAAAAA=="}
    response = wire.request("PUT", PATH, LARGE[1:], **wrong)
    assert (response.status, response.code) == (400, "BadDigest")
    assert wire.request("GET", PATH).body == LARGE


def test_a_client_that_stops_in_the_middle_leaves_the_old_object(endpoint: Endpoint, wire: Wire) -> None:
    assert wire.request("PUT", PATH, LARGE).status == 200
    with endpoint.connect() as other:
        head, body = head_and_body(other, "PUT", PATH, LARGE[::-1])
        other.send(head + body[: 2 << 20])
        time.sleep(0.1)
    assert wire.request("GET", PATH).body == LARGE


def test_a_client_that_pauses_for_too_long_is_told_so(endpoint: Endpoint) -> None:
    with endpoint.connect() as wire:
        head, body = head_and_body(wire, "PUT", PATH, LARGE)
        wire.send(head + body[: 2 << 20])
        response = wire.read()
        assert (response.status, response.code) == (400, "RequestTimeout")
        assert wire.closed()


def test_a_slow_but_steady_client_is_served(wire: Wire) -> None:
    head, body = head_and_body(wire, "PUT", PATH, LARGE)
    wire.send(head)
    for start in range(0, len(body), 1 << 19):
        wire.send(body[start : start + (1 << 19)])
        time.sleep(0.3)
    assert wire.read().status == 200
    assert wire.request("GET", PATH).body == LARGE
