"""One scripted server and one fake transport per test."""

from collections.abc import Iterator

import pytest

from tests.unit.rdma_client.scripted import FakeTransport, ScriptedServer


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture
def transport() -> FakeTransport:
    return FakeTransport()
