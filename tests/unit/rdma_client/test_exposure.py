"""Which transport is taken, when that is said, and what happens when it is lost."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from s3verbs.rdma.client import exposure
from s3verbs.rdma.client.errors import Declined, TransportMissing
from s3verbs.rdma.client.transport import ClientTransport, TransportUnavailable
from s3verbs.rdma.token import Transport
from tests.unit.rdma_client.scripted import FakeTransport, ScriptedServer, Store, answer, client, s3_error

Open = Callable[..., ClientTransport]


def missing(why: str) -> Open:
    def refuse(*_: object) -> ClientTransport:
        raise TransportUnavailable(why)

    return refuse


def given(transport: FakeTransport) -> Open:
    return lambda *_: transport


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def set_up(samehost: Open = missing("no gateway here"), rc: Open = missing("no RoCE device")) -> None:  # noqa: B008
        monkeypatch.setattr(exposure, "open_samehost", samehost)
        monkeypatch.setattr(exposure, "open_rc", rc)

    return set_up


def test_the_same_host_comes_first_then_rc_then_http(
    server: ScriptedServer, offer: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    near, far = FakeTransport(), FakeTransport(Transport.RC)
    offer(given(near), given(far))
    with client(server, "auto") as s3:
        assert (s3.register(bytearray(1)).transport, s3.transport, s3.why_http) == ("samehost", "samehost", "")
    offer(rc=given(far))
    with client(server, "auto") as s3:
        assert (s3.register(bytearray(1)).transport, s3.transport) == ("rc", "rc")
    assert not caplog.records
    offer()
    with client(server, "auto") as s3:
        assert [s3.register(bytearray(1)).transport for _ in range(3)] == ["http"] * 3
        assert "no gateway here" in s3.why_http
        assert "no RoCE device" in s3.why_http
        assert s3.transport == "http"
    # Said once.
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize("name", ["samehost", "rc"])
def test_a_pinned_transport_that_is_missing_is_an_error_at_once(
    server: ScriptedServer, offer: Callable[..., None], name: str
) -> None:
    offer()
    with pytest.raises(TransportMissing, match=f"{name}: no"):
        client(server, name)
    with pytest.raises(ValueError, match="must be one of"):
        client(server, "dc")


def test_pinned_http_exposes_nothing_and_counts_no_decline(server: ScriptedServer, offer: Callable[..., None]) -> None:
    near = FakeTransport()
    offer(given(near))
    store = Store(near)
    server.script += [store.put, store.get]
    with client(server, "http", fallback=False) as s3, s3.register(bytearray(b"data")) as region:
        assert s3.put_from("b", "k", region).transport == "http"
        assert s3.get_into("b", "k", region).transport == "http"
        counters = s3.counters()
    assert (counters.declines, counters.fallbacks, counters.operations) == ({}, 0, {"http": 2})
    assert not near.registrations
    assert not any(request.token for request in server.requests)


def test_a_gateway_that_starts_later_is_found(server: ScriptedServer, offer: Callable[..., None]) -> None:
    offer()
    near = FakeTransport()
    store = Store(near, b"1234")
    server.script += [store.get, store.get]
    with client(server, "auto") as s3, s3.register(bytearray(4)) as region:
        assert s3.get_into("b", "k", region).transport == "http"
        offer(given(near))
        s3._exposer._pause.end()
        region.memory._pause.end()
        assert s3.get_into("b", "k", region).transport == "samehost"
        assert s3.counters().declines == {"no_transport": 1}


def test_without_fallback_a_missing_transport_is_an_error(server: ScriptedServer, offer: Callable[..., None]) -> None:
    offer()
    with client(server, "auto", fallback=False) as s3, s3.register(bytearray(4)) as region:
        with pytest.raises(Declined, match="no RoCE device"):
            s3.get_into("b", "k", region)
        server.script.append(answer(200))
        assert s3.put_from("b", "k", region[:0]).size == 0


def test_memory_that_the_transport_does_not_take_goes_over_http(
    server: ScriptedServer, offer: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    near = FakeTransport()
    near.refuses = lambda memory: "too large" if memory.size > 100 else None
    offer(given(near))
    store = Store(near, b"1234")
    server.script += [store.get, store.get]
    with client(server, "auto") as s3:
        assert s3.get_into("b", "k", s3.register(bytearray(200))).transport == "http"
        assert s3.get_into("b", "k", s3.register(bytearray(100))).transport == "samehost"
        assert s3.counters().declines == {"memory": 1}
    assert "too large" in caplog.text
    with client(server, near) as s3, pytest.raises(TransportMissing, match="too large"):
        s3.register(bytearray(200))


def test_a_registration_that_the_transport_has_lost_is_made_anew(
    server: ScriptedServer, offer: Callable[..., None]
) -> None:
    near = FakeTransport()
    offer(given(near))
    store = Store(near, b"1234")
    server.script += [store.get, store.get, store.get]
    with client(server, "auto") as s3, s3.register(bytearray(4)) as region:
        assert s3.get_into("b", "k", region).transport == "samehost"
        near.registrations[0].lost = True
        assert s3.get_into("b", "k", region).transport == "samehost"
        assert [each.valid for each in near.registrations] == [False, True]
        # And when that fails too, HTTP it is, for a while.
        near.registrations[1].lost = True
        near.refuses = lambda memory: "the gateway is gone"
        assert s3.get_into("b", "k", region).transport == "http"
        assert "gone" in s3.why_http


def test_pauses_grow_to_their_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(exposure.time, "monotonic", lambda: now[0])
    pause = exposure.Pause(5.0)
    assert pause.is_over()
    for expected in (1.0, 2.0, 4.0, 5.0, 5.0):
        pause.begin()
        now[0] += expected - 0.001
        assert not pause.is_over()
        now[0] += 0.001
        assert pause.is_over()
    pause.begin()
    pause.end()
    assert pause.is_over()


def test_a_pinned_transport_that_is_lost_is_an_error(server: ScriptedServer, transport: FakeTransport) -> None:
    with client(server, transport) as s3, s3.register(bytearray(4)) as region:
        transport.registrations[0].lost = True
        transport.refuses = lambda memory: "the gateway is gone"
        with pytest.raises(TransportMissing, match="gone"):
            s3.get_into("b", "k", region)
    assert not server.requests


def test_a_rail_that_the_server_cannot_reach_rests(server: ScriptedServer, transport: FakeTransport) -> None:
    rested: list[str] = []
    transport.rest = rested.append  # type: ignore[attr-defined]
    store = Store(transport, b"1234")
    server.script += [
        s3_error(503, "ServiceUnavailable"),
        answer(200, b"1234", x_amz_rdma_reply="501"),
        s3_error(501, "NotImplemented", x_amz_rdma_reply="501"),
        store.put,
    ]
    with client(server, transport) as s3, s3.register(bytearray(4)) as region:
        s3.get_into("b", "k", region)
        s3.put_from("b", "k", region)
    assert rested == [request.token for request in server.requests[:3]]


def test_the_real_transports_say_why_they_cannot_be_had(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("S3VERBS_SOCKET", f"{tmp_path}/none")
    with pytest.raises(TransportMissing, match=r"samehost: .*none"):
        client(server, "samehost")
    with client(server, "auto") as s3:
        assert s3.transport in ("rc", "http")
        assert s3.transport == "rc" or "none" in s3.why_http
