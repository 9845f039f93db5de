"""The HTTP reader: whatever pieces an answer arrives in, it is read the same."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from s3verbs.rdma.client.connection import Broken, Connection, read_all
from s3verbs.rdma.client.errors import BadAnswer
from tests.unit.rdma_client.scripted import answer

LOADED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure."""


def deadline() -> float:
    return time.monotonic() + 20


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    connection = Connection(ours)
    try:
        yield connection, theirs
    finally:
        connection.close()
        theirs.close()


def chunked(data: bytes, sizes: list[int]) -> bytes:
    said = b""
    for size in sizes:
        if piece := data[:size]:
            said += b"%x\r\n%s\r\n" % (len(piece), piece)
        data = data[size:]
    if data:
        said += b"%X; name=value\r\n%s\r\n" % (len(data), data)
    return said + b"0\r\nx-amz-checksum-crc32: x\r\n\r\n"


@LOADED
@given(
    body=st.binary(max_size=200),
    sizes=st.lists(st.integers(1, 50), max_size=5),
    cuts=st.lists(st.integers(1, 60), max_size=8),
    framing=st.sampled_from(["length", "chunked", "end"]),
    before=st.booleans(),
    room=st.integers(1, 64),
)
def test_an_answer_in_any_pieces_is_the_same(
    body: bytes, sizes: list[int], cuts: list[int], framing: str, before: bool, room: int
) -> None:
    if framing == "length":
        said = answer(200, body)
    elif framing == "chunked":
        said = answer(200, content_length="", transfer_encoding="chunked") + chunked(body, sizes)
    else:
        said = answer(200, content_length="") + body
    said = (b"HTTP/1.1 100 Continue\r\n\r\n" if before else b"") + said
    following = b"" if framing == "end" else answer(204)

    def speak(sock: socket.socket) -> None:
        left = said + following
        for cut in cuts:
            sock.sendall(left[:cut])
            left = left[cut:]
        sock.sendall(left)
        sock.shutdown(socket.SHUT_WR)

    ours, theirs = socket.socketpair()
    speaker = threading.Thread(target=speak, args=(theirs,))
    speaker.start()
    connection = Connection(ours)
    try:
        response = connection.receive("GET", deadline())
        assert response.status == 200
        assert response.headers["x-amz-request-id"] == "R1"
        assert response.length == (len(body) if framing == "length" else None)
        read = b""
        into = bytearray(room)
        while count := response.read_into(memoryview(into), deadline()):
            read += into[:count]
        assert read == body
        # Bytes that nobody asked for yet are no sign of a healthy connection.
        assert response.close(deadline()) == (framing != "end" and connection.pending == b"")
        if framing != "end":
            assert connection.receive("GET", deadline()).status == 204
    finally:
        speaker.join()
        connection.close()
        theirs.close()


@LOADED
@given(st.binary(max_size=300))
def test_bytes_of_any_kind_are_an_answer_or_an_error(data: bytes) -> None:
    for said in (data, b"HTTP/1.1 200 OK\r\n" + data, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + data):
        ours, theirs = socket.socketpair()
        theirs.sendall(said)
        theirs.close()
        connection = Connection(ours)
        try:
            read_all(connection.receive("GET", deadline()), 1000, deadline())
        except (Broken, BadAnswer):
            pass
        finally:
            connection.close()


def test_what_is_left_of_a_small_body_is_read_and_of_a_large_one_not(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, theirs = pair
    theirs.sendall(answer(200, b"x" * 1000))
    assert connection.receive("GET", deadline()).close(deadline())
    theirs.sendall(answer(200, content_length=str(1 << 30)))
    assert not connection.receive("GET", deadline()).close(deadline())


@pytest.mark.parametrize(
    "said",
    [
        b"x" * 200_000,
        b"zz\r\n",
        b"-1\r\n",
        b"\r\n",
        b"5\r\nabc",
    ],
)
def test_a_malformed_chunk_is_an_error(pair: tuple[Connection, socket.socket], said: bytes) -> None:
    connection, theirs = pair
    speaker = threading.Thread(
        target=lambda: (
            theirs.sendall(answer(200, content_length="", transfer_encoding="chunked") + said),
            theirs.close(),
        )
    )
    speaker.start()
    response = connection.receive("GET", deadline())
    with pytest.raises((BadAnswer, Broken)):
        read_all(response, 1 << 20, deadline())
    connection.close()
    speaker.join()


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 304), ("PUT", 204)])
def test_answers_without_a_body_have_none(pair: tuple[Connection, socket.socket], method: str, status: int) -> None:
    connection, theirs = pair
    theirs.sendall(answer(status, content_length="100"))
    response = connection.receive(method, deadline())
    assert read_all(response, 100, deadline()) == b""
    assert response.close(deadline())


def test_repeated_headers_are_joined_and_names_are_lower_case(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    theirs.sendall(b"HTTP/1.1 200\r\nVary: a\r\nVARY:\tb \r\nContent-Length: 0\r\n\r\n")
    assert connection.receive("GET", deadline()).headers["vary"] == "a, b"


@pytest.mark.parametrize(
    ("version", "connection_header", "kept"),
    [
        ("1.1", "", True),
        ("1.1", "close", False),
        ("1.0", "", False),
        ("1.0", "Keep-Alive", True),
        ("1.1", "x, Close", False),
    ],
)
def test_when_a_connection_stays_open(
    pair: tuple[Connection, socket.socket], version: str, connection_header: str, kept: bool
) -> None:
    connection, theirs = pair
    said = answer(200, connection=connection_header).replace(b"HTTP/1.1", f"HTTP/{version}".encode())
    theirs.sendall(said)
    assert connection.receive("GET", deadline()).close(deadline()) == kept


def test_an_early_answer_to_a_body_is_read(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair

    def refuse() -> None:
        theirs.recv(100)
        theirs.sendall(answer(403))
        theirs.shutdown(socket.SHUT_RD)

    refusing = threading.Thread(target=refuse)
    refusing.start()
    connection.send(b"PUT / HTTP/1.1\r\n\r\n", [memoryview(bytes(8 << 20))], deadline())
    refusing.join()
    assert connection.receive("PUT", deadline()).status == 403


def test_what_takes_longer_than_a_slice_is_waited_for(
    pair: tuple[Connection, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s3verbs.rdma.client.connection._SLICE", 0.02)
    connection, theirs = pair
    head, body = b"PUT / HTTP/1.1\r\nx: " + b"y" * (1 << 20) + b"\r\n\r\n", bytes(range(256)) * (4 << 10)
    heard = bytearray()

    def listen() -> None:
        while len(heard) < len(head) + len(body):
            time.sleep(0.05)
            heard.extend(theirs.recv(1 << 18))
        time.sleep(0.1)
        theirs.sendall(answer(200, content_length="4") + b"ab")
        time.sleep(0.1)
        theirs.sendall(b"cd")

    listening = threading.Thread(target=listen)
    listening.start()
    connection.send(head, [memoryview(body)], deadline())
    response = connection.receive("PUT", deadline())
    assert read_all(response, 10, deadline()) == b"abcd"
    listening.join()
    assert bytes(heard) == head + body


@pytest.mark.parametrize("slice_seconds", [0.03, 1.0])
def test_no_wait_is_longer_than_the_deadline(
    pair: tuple[Connection, socket.socket], monkeypatch: pytest.MonkeyPatch, slice_seconds: float
) -> None:
    monkeypatch.setattr("s3verbs.rdma.client.connection._SLICE", slice_seconds)
    connection, theirs = pair
    for wait in (
        lambda until: connection.receive("GET", until),
        lambda until: connection.send(b"PUT", [memoryview(bytes(64 << 20))], until),
    ):
        start = time.monotonic()
        with pytest.raises(Broken) as raised:
            wait(start + 0.1)
        assert raised.value.timeout
        assert time.monotonic() >= start + 0.1
    # A short wait does not shorten those that follow.
    answering = threading.Timer(0.2, theirs.sendall, (answer(200),))
    answering.start()
    assert connection.receive("GET", deadline()).status == 200
    answering.join()


def test_a_passed_deadline_sends_nothing(pair: tuple[Connection, socket.socket]) -> None:
    from s3verbs.rdma.client.connection import NotSent

    connection, theirs = pair
    with pytest.raises(NotSent) as raised:
        connection.send(b"GET / HTTP/1.1\r\n\r\n", (), time.monotonic() - 1)
    assert raised.value.timeout
    connection.close()
    assert theirs.recv(10) == b""
