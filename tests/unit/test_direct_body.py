"""What a socket may answer to a body that is read past the transport."""

import errno
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from s3verbs.gateway.http.direct_body import DirectBody


@pytest.fixture
def body() -> Iterator[DirectBody]:
    ours, theirs = socket.socketpair()
    connection = SimpleNamespace(lend_body=lambda: None, return_body=lambda content, left: None)
    transport = SimpleNamespace(get_extra_info=lambda name: ours)
    exchange = SimpleNamespace(connection=connection, transport=transport, loop=None, content=None)
    with ours, theirs:
        made = DirectBody(exchange, 100, 1.0)  # type: ignore[arg-type]
        yield made
        made.close()


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ECONNRESET])
async def test_a_network_that_fails_is_a_client_that_is_gone(
    body: DirectBody, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def receive_into(view: memoryview) -> int:
        raise OSError(number, "the network failed")

    monkeypatch.setattr(body._socket, "receive_into", receive_into)
    with pytest.raises(ConnectionError):
        await body.receive(memoryview(bytearray(10)))
