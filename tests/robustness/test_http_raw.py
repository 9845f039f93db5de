"""HTTP as bytes on a socket: framing, keep-alive after errors, smuggling, slow and rude clients."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.endpoint import BUCKET, Endpoint, Wire

OBJECT = f"/{BUCKET}/object"
BYTES = b"0123456789" * 500


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    data: Path = tmp_path_factory.mktemp("raw")
    with Endpoint(
        data, "--header-timeout", "1", "--body-timeout", "1", "--keep-alive-timeout", "3", "--buffer-pool", "4MiB"
    ) as running:
        with running.connect() as wire:
            assert wire.request("PUT", OBJECT, BYTES).status == 200
        yield running


@pytest.fixture
def wire(endpoint: Endpoint) -> Iterator[Wire]:
    with endpoint.connect() as connected:
        yield connected


def served(wire: Wire) -> bool:
    """The connection still answers, in step."""
    response = wire.request("GET", OBJECT)
    return response.status == 200 and response.body == BYTES


# -- responses --


def test_every_response_carries_ids_and_our_name(wire: Wire) -> None:
    first, second = wire.request("GET", OBJECT), wire.request("GET", f"/{BUCKET}/absent")
    for response in (first, second):
        assert len(response.headers["x-amz-request-id"]) == 16
        assert response.headers["x-amz-id-2"]
        assert response.headers["server"] == "s3verbs"
        assert response.headers["date"].endswith("GMT")
    assert first.headers["x-amz-request-id"] != second.headers["x-amz-request-id"]
    assert second.headers["x-amz-request-id"].encode() in second.body


def test_head_has_the_length_and_no_body(wire: Wire) -> None:
    response = wire.request("HEAD", OBJECT)
    assert response.status == 200
    assert response.headers["content-length"] == str(len(BYTES))
    assert served(wire)


def test_an_error_of_head_has_no_body(wire: Wire) -> None:
    response = wire.request("HEAD", f"/{BUCKET}/absent")
    assert response.status == 404
    assert served(wire)


def test_pipelined_requests_are_answered_in_order(wire: Wire) -> None:
    wire.send(wire.signed("GET", OBJECT) + wire.signed("GET", f"/{BUCKET}/absent") + wire.signed("HEAD", OBJECT))
    wire.send(wire.signed("PUT", f"/{BUCKET}/piped", b"x" * 100_000) + wire.signed("GET", f"/{BUCKET}/piped"))
    assert wire.read().body == BYTES
    assert wire.read().code == "NoSuchKey"
    assert wire.read("HEAD").status == 200
    assert wire.read().status == 200
    assert wire.read().body == b"x" * 100_000


def test_pipelined_files_do_not_overtake_small_responses(wire: Wire) -> None:
    large = bytes(range(256)) * 8192
    assert wire.request("PUT", f"/{BUCKET}/large", large).status == 200
    requests = [OBJECT, f"/{BUCKET}/large", OBJECT, f"/{BUCKET}/large", f"/{BUCKET}/large"]
    wire.send(b"".join(wire.signed("GET", path) for path in requests))
    for path in requests:
        assert wire.read().body == (BYTES if path == OBJECT else large)


def test_http_1_0_closes_unless_it_asks_otherwise(endpoint: Endpoint) -> None:
    with endpoint.connect() as wire:
        wire.send(wire.signed("GET", OBJECT).replace(b"HTTP/1.1", b"HTTP/1.0"))
        response = wire.read()
        assert response.body == BYTES
        assert not response.keeps_alive
        assert wire.closed()
    with endpoint.connect() as wire:
        wire.send(
            wire.signed("GET", OBJECT).replace(b"HTTP/1.1", b"HTTP/1.0", 1)[:-2] + b"Connection: keep-alive\r\n\r\n"
        )
        assert wire.read().headers["connection"] == "keep-alive"
        assert served(wire)


def test_a_connection_close_request_is_obeyed(wire: Wire) -> None:
    wire.send(wire.signed("GET", OBJECT)[:-2] + b"Connection: close\r\n\r\n")
    assert wire.read().body == BYTES
    assert wire.closed()


# -- targets --


def test_absolute_form_targets_are_signed_by_their_path(wire: Wire) -> None:
    wire.send(wire.signed("PUT", f"/{BUCKET}/absolute%20form?x-id=PutObject", b"crt", absolute=True))
    assert wire.read().status == 200
    wire.send(wire.signed("GET", f"/{BUCKET}/absolute%20form", absolute=True))
    assert wire.read().body == b"crt"


def test_slashes_and_dots_of_a_key_are_kept(wire: Wire) -> None:
    for key in ("/leading", "a//b", "a/../b", "a/./b"):
        assert wire.request("PUT", f"/{BUCKET}/{key}", key.encode()).status == 200
    for key in ("/leading", "a//b", "a/../b", "a/./b"):
        assert wire.request("GET", f"/{BUCKET}/{key}").body == key.encode()


@pytest.mark.parametrize("target", ["*", "127.0.0.1:80", "relative/path", "/%zz"])
def test_other_targets_are_refused(wire: Wire, target: str) -> None:
    wire.send(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    response = wire.read()
    assert response.status == 400
    assert response.code in ("BadRequest", "InvalidURI")


def test_cors_preflight_is_forbidden(wire: Wire) -> None:
    wire.send(
        f"OPTIONS {OBJECT} HTTP/1.1\r\nHost: x\r\n"
        "Origin: http://a\r\nAccess-Control-Request-Method: GET\r\n\r\n".encode()
    )
    response = wire.read()
    assert (response.status, response.code) == (403, "AccessForbidden")
    assert served(wire)


# -- what is no HTTP --

HOST = b"Host: x\r\n"

MALFORMED = {
    "no HTTP at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "an unknown method": b"FETCH / HTTP/1.1\r\n" + HOST + b"\r\n",
    "no Host": b"GET / HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "a folded header": b"GET / HTTP/1.1\r\n" + HOST + b"X-Folded: one\r\n two\r\n\r\n",
    "a space before a colon": b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length : 4\r\n\r\nabcd",
    "a bare line feed": b"GET / HTTP/1.1\nHost: x\n\n",
    "a zero byte in a header": b"GET / HTTP/1.1\r\n" + HOST + b"X: a\0b\r\n\r\n",
    "length and chunks": b"PUT /b/k HTTP/1.1\r\n"
    + HOST
    + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": b"PUT /b/k HTTP/1.1\r\n"
    + HOST
    + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": b"PUT /b/k HTTP/1.1\r\n" + HOST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    "a list of lengths": b"PUT /b/k HTTP/1.1\r\n" + HOST + b"Content-Length: 4, 4\r\n\r\nabcd",
    "a signed length": b"PUT /b/k HTTP/1.1\r\n" + HOST + b"Content-Length: +4\r\n\r\nabcd",
    "a negative length": b"PUT /b/k HTTP/1.1\r\n" + HOST + b"Content-Length: -4\r\n\r\nabcd",
    "a huge length": b"PUT /b/k HTTP/1.1\r\n" + HOST + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "chunked not last": b"PUT /b/k HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "identity": b"PUT /b/k HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: identity\r\n\r\n",
    "xchunked": b"PUT /b/k HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("head", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_heads_get_an_s3_error_and_a_closed_connection(wire: Wire, head: bytes) -> None:
    # A request smuggled behind the malformed one must never be answered.
    wire.send(head + wire.signed("GET", OBJECT))
    response = wire.read()
    assert response.status == 400
    assert response.code == "BadRequest"
    assert response.headers["content-type"] == "application/xml"
    assert response.headers["x-amz-request-id"]
    assert not response.keeps_alive
    assert wire.closed()


CHUNKS = {
    "not hexadecimal": b"zz\r\nabcd\r\n0\r\n\r\n",
    "a sign": b"+4\r\nabcd\r\n0\r\n\r\n",
    "a prefix": b"0x4\r\nabcd\r\n0\r\n\r\n",
    "a size past 64 bits": b"fffffffffffffffff\r\nabcd\r\n0\r\n\r\n",
    "a chunk longer than its size": b"3\r\nabcd\r\n0\r\n\r\n",
    "a bare line feed": b"4\nabcd\n0\n\n",
    "an empty size": b"\r\nabcd\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS.keys())
@pytest.mark.parametrize("together", [True, False], ids=["in one packet", "after the head"])
def test_bad_chunks_are_refused(wire: Wire, chunks: bytes, together: bool) -> None:
    head = wire.signed(
        "PUT",
        f"/{BUCKET}/chunked",
        head_only=True,
        transfer_encoding="chunked",
        x_amz_content_sha256="UNSIGNED-PAYLOAD",
        x_amz_decoded_content_length="4",
    )
    if together:
        wire.send(head + chunks + wire.signed("GET", OBJECT))
    else:
        wire.send(head)
        time.sleep(0.1)
        wire.send(chunks + wire.signed("GET", OBJECT))
    response = wire.read()
    assert response.status == 400
    assert response.code in ("BadRequest", "IncompleteBody")
    assert not response.keeps_alive
    assert wire.closed()


def test_a_chunked_body_with_a_declared_length_is_stored(wire: Wire) -> None:
    head = wire.signed(
        "PUT",
        f"/{BUCKET}/chunked",
        head_only=True,
        transfer_encoding="chunked",
        x_amz_content_sha256="UNSIGNED-PAYLOAD",
        x_amz_decoded_content_length="10",
    )
    wire.send(head + b"4\r\nabcd\r\n6;extension=1\r\nefghij\r\n0\r\n\r\n")
    assert wire.read().status == 200
    assert wire.request("GET", f"/{BUCKET}/chunked").body == b"abcdefghij"


def test_headers_too_large_say_so(wire: Wire) -> None:
    wire.send(b"GET / HTTP/1.1\r\nHost: x\r\nX-Large: " + b"a" * 70_000 + b"\r\n\r\n")
    response = wire.read()
    assert (response.status, response.code) == (400, "RequestHeaderSectionTooLarge")
    assert not response.keeps_alive


def test_too_many_headers_say_so(wire: Wire) -> None:
    wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: 1\r\n" % i for i in range(200)) + b"\r\n")
    assert wire.read().code == "RequestHeaderSectionTooLarge"


def test_a_head_of_many_middling_headers_is_bounded_as_a_whole(wire: Wire) -> None:
    wire.send(
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: %b\r\n" % (i, b"a" * 4000) for i in range(8)) + b"\r\n"
    )
    assert wire.read().code == "RequestHeaderSectionTooLarge"


def test_a_head_without_end_is_cut_before_it_takes_memory(wire: Wire) -> None:
    wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: %b\r\n" % (i, b"a" * 8000) for i in range(9)))
    assert wire.read().code == "RequestHeaderSectionTooLarge"
    assert wire.closed()


def test_a_head_without_end_behind_a_request_is_cut_too(wire: Wire) -> None:
    path = f"/{BUCKET}/before-a-head"
    assert wire.request("PUT", path, b"x" * 100_000).status == 200
    wire.send(wire.signed("GET", path) + b"GET / HTTP/1.1\r\nHost: x\r\n")
    assert wire.read().body == b"x" * 100_000
    time.sleep(0.1)  # While a request is being answered, the connection is cut without a word.
    for i in range(9):
        wire.send(b"X-%d: %b\r\n" % (i, b"a" * 8000))
    assert wire.read().code == "RequestHeaderSectionTooLarge"


# -- keep-alive after early errors --

EARLY = {
    "no such bucket": ("/no-such-bucket-here/key", {}, "NoSuchBucket"),
    "a bad digest header": (OBJECT, {"content_md5": "x"}, "InvalidDigest"),
    "an unsupported header": (OBJECT, {"x_amz_server_side_encryption": "AES256"}, "NotImplemented"),
    "an RDMA token": (OBJECT, {"x_amz_rdma_token": "0" * 81}, "InvalidArgument"),
}


@pytest.mark.parametrize(("path", "headers", "code"), EARLY.values(), ids=EARLY.keys())
@pytest.mark.parametrize("size", [0, 1, 70_000, 1 << 20])
def test_the_connection_survives_an_error_before_a_small_body(
    wire: Wire, path: str, headers: dict[str, str], code: str, size: int
) -> None:
    response = wire.request("PUT", path, b"b" * size, **headers)
    assert response.code == code
    assert response.keeps_alive
    assert served(wire)


def test_a_bad_signature_leaves_the_connection_in_step(wire: Wire) -> None:
    request = wire.signed("PUT", OBJECT, b"body of a forged request")
    wire.send(request.replace(b"Signature=", b"Signature=0"))
    assert wire.read().code == "SignatureDoesNotMatch"
    assert served(wire)


def test_an_error_before_a_large_body_reaches_the_client_and_closes(wire: Wire) -> None:
    body = b"b" * (8 << 20)
    sender = threading.Thread(target=_send_quietly, args=(wire, wire.signed("PUT", "/no-such-bucket-here/key", body)))
    sender.start()
    response = wire.read()
    sender.join()
    assert response.code == "NoSuchBucket"
    assert not response.keeps_alive
    assert wire.closed()


def _send_quietly(wire: Wire, data: bytes) -> None:
    with contextlib.suppress(ConnectionError, TimeoutError):
        wire.send(data)


def test_a_failed_digest_keeps_the_connection(wire: Wire) -> None:
    assert wire.request("PUT", f"/{BUCKET}/bad", b"abc", content_md5="1B2M2Y8AsgTpgAmY7PhCfg==").code == "BadDigest"
    large = b"a" * 300_000
    assert wire.request("PUT", f"/{BUCKET}/bad", large, content_md5="1B2M2Y8AsgTpgAmY7PhCfg==").code == "BadDigest"
    assert wire.request("GET", f"/{BUCKET}/bad").code == "NoSuchKey"
    assert served(wire)


def test_a_wrong_payload_hash_stores_nothing(wire: Wire) -> None:
    for size in (10, 300_000):
        request = wire.signed("PUT", f"/{BUCKET}/forged", b"a" * size)
        wire.send(request[:-1] + b"b")
        assert wire.read().code == "XAmzContentSHA256Mismatch"
    assert wire.request("GET", f"/{BUCKET}/forged").code == "NoSuchKey"


def test_a_put_without_a_length_is_refused(wire: Wire) -> None:
    wire.send(wire.signed("PUT", OBJECT, content_length="").replace(b"content-length: \r\n", b""))
    assert wire.read().code == "MissingContentLength"
    assert served(wire)


def test_a_chunked_put_without_a_declared_length_is_refused(wire: Wire) -> None:
    head = wire.signed(
        "PUT", OBJECT, head_only=True, transfer_encoding="chunked", x_amz_content_sha256="UNSIGNED-PAYLOAD"
    )
    wire.send(head + b"4\r\nabcd\r\n0\r\n\r\n")
    assert wire.read().code == "MissingContentLength"


# -- Expect --


def test_continue_comes_before_the_body_is_sent(wire: Wire) -> None:
    request = wire.signed("PUT", f"/{BUCKET}/expected", b"awaited", expect="100-continue")
    wire.send(request[: -len(b"awaited")])
    assert wire.read().status == 100
    wire.send(b"awaited")
    assert wire.read().status == 200
    assert wire.request("GET", f"/{BUCKET}/expected").body == b"awaited"


def test_continue_comes_at_once_for_an_empty_body(wire: Wire) -> None:
    wire.send(wire.signed("PUT", f"/{BUCKET}/empty", expect="100-continue", content_length="0"))
    assert wire.read().status == 100
    assert wire.read().status == 200
    assert served(wire)


def test_an_early_error_goes_out_instead_of_continue(wire: Wire) -> None:
    request = wire.signed("PUT", "/no-such-bucket-here/key", b"x" * 100, expect="100-continue")
    wire.send(request[:-100])
    response = wire.read()
    assert response.code == "NoSuchBucket"
    assert not response.keeps_alive


@pytest.mark.parametrize("value", ["200-ok", "200", ""])
def test_another_expectation_is_ignored(wire: Wire, value: str) -> None:
    assert wire.request("PUT", f"/{BUCKET}/expecting", b"x", expect=value).status == 200
    assert served(wire)


# -- slow and rude clients --


def test_a_head_that_trickles_is_cut(wire: Wire) -> None:
    started = time.monotonic()
    wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n")
    try:
        while time.monotonic() - started < 5:
            wire.send(b"X-Slow: 1\r\n")
            time.sleep(0.2)
    except ConnectionError:
        pass
    assert time.monotonic() - started < 3
    assert wire.read().code == "RequestTimeout"
    assert wire.closed()


def test_a_silent_connection_is_closed(wire: Wire) -> None:
    started = time.monotonic()
    assert wire.closed()
    assert 0.5 < time.monotonic() - started < 3


def test_an_idle_connection_is_closed_after_the_keep_alive_time(wire: Wire) -> None:
    assert served(wire)
    started = time.monotonic()
    assert wire.closed()
    assert 2 < time.monotonic() - started < 6


@pytest.mark.parametrize("size", [1000, 300_000])
def test_a_body_that_stalls_times_out(wire: Wire, size: int) -> None:
    request = wire.signed("PUT", f"/{BUCKET}/stalled", b"s" * size)
    wire.send(request[:-10])
    response = wire.read()
    assert (response.status, response.code) == (400, "RequestTimeout")
    assert not response.keeps_alive
    with wire_again(wire) as other:
        assert other.request("GET", f"/{BUCKET}/stalled").code == "NoSuchKey"


def test_a_body_that_ends_early_is_incomplete(wire: Wire) -> None:
    for size in (1000, 300_000):
        with wire_again(wire) as short:
            request = short.signed("PUT", f"/{BUCKET}/short", b"s" * size)
            short.send(request[:-10])
            short.sock.shutdown(socket.SHUT_WR)
            assert short.read().code == "IncompleteBody"
    assert wire.request("GET", f"/{BUCKET}/short").code == "NoSuchKey"


def test_a_client_that_is_done_sending_still_gets_its_answer(wire: Wire) -> None:
    wire.send(wire.signed("GET", OBJECT))
    wire.sock.shutdown(socket.SHUT_WR)
    assert wire.read().body == BYTES
    assert wire.closed()


def test_clients_that_leave_after_their_answer_leave_no_connection_behind(endpoint: Endpoint) -> None:
    descriptors = Path(f"/proc/{endpoint.worker_pids[0]}/fd")
    before = len(list(descriptors.iterdir()))
    for _ in range(60):
        with endpoint.connect() as wire:
            assert served(wire)
    deadline = time.monotonic() + 1.5
    while len(list(descriptors.iterdir())) > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(list(descriptors.iterdir())) <= before


def test_clients_that_vanish_in_a_put_leave_no_buffer_behind(endpoint: Endpoint) -> None:
    # More of them than the pool has buffers: one that is not given back would stop the last PUT.
    for _ in range(8):
        with endpoint.connect() as wire:
            wire.send(wire.signed("PUT", f"/{BUCKET}/gone", b"g" * 2_000_000)[:1_200_000])
            time.sleep(0.05)
    with endpoint.connect() as wire:
        assert wire.request("PUT", f"/{BUCKET}/after", b"a" * 2_000_000).status == 200
        assert wire.request("GET", f"/{BUCKET}/gone").code == "NoSuchKey"


def test_a_client_that_stops_reading_is_cut_off(endpoint: Endpoint) -> None:
    with endpoint.connect() as wire:
        assert wire.request("PUT", f"/{BUCKET}/big", b"b" * (32 << 20)).status == 200
    with endpoint.connect() as wire:
        wire.send(wire.signed("GET", f"/{BUCKET}/big"))
        time.sleep(3)
        received = 0
        try:
            while data := wire.sock.recv(1 << 20):
                received += len(data)
        except ConnectionResetError:
            pass
        assert received < 32 << 20


def test_clients_that_vanish_in_a_get_leave_the_server_well(endpoint: Endpoint) -> None:
    for _ in range(5):
        with endpoint.connect() as wire:
            wire.send(wire.signed("GET", f"/{BUCKET}/big"))
            wire.sock.recv(1000)
    with endpoint.connect() as wire:
        assert served(wire)


def wire_again(wire: Wire) -> Wire:
    """A second connection to the same server."""
    return Wire(socket.create_connection(("127.0.0.1", wire.port), timeout=20), wire.port)
