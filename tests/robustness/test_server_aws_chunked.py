"""Malformed and forged aws-chunked streams, sent to a running server: the code, the connection, and what is stored."""

import base64
import hashlib
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from awscrt import checksums as crt

from tests.integration.endpoint import BUCKET, Endpoint, Response, Wire
from tests.robustness.aws_chunked_stream import SIGNED, SIGNED_TRAILER, UNSIGNED_TRAILER, ChunkedPut
from tests.robustness.server_load import POOL

KEY = f"/{BUCKET}/stream"
BEFORE = b"what was stored before"
MIN_CHUNK = 8192
TOKEN = "00007f1dc46fd010:00100000:0000abcd:0000:001234:1:00000000000000000000ffff7f000001"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with Endpoint(tmp_path_factory.mktemp("chunked") / "data", workers=2) as running:
        yield running
        assert "Traceback" not in running.errors


@pytest.fixture
def wire(endpoint: Endpoint) -> Iterator[Wire]:
    with endpoint.connect() as connected:
        assert connected.request("PUT", KEY, BEFORE).status == 200
        yield connected


def checksum(algorithm: str, data: bytes) -> str:
    raw = {
        "crc32": lambda: crt.crc32(data).to_bytes(4, "big"),
        "crc32c": lambda: crt.crc32c(data).to_bytes(4, "big"),
        "crc64nvme": lambda: crt.crc64nvme(data).to_bytes(8, "big"),
        "sha1": lambda: hashlib.sha1(data).digest(),
        "sha256": lambda: hashlib.sha256(data).digest(),
    }[algorithm]()
    return base64.b64encode(raw).decode()


ALGORITHMS = ("crc32", "crc32c", "crc64nvme", "sha1", "sha256")

Build = Callable[[ChunkedPut, list[bytes]], bytes]
"""The body from the chunks' payloads. The put signs in the order in which it is asked."""


@dataclass(frozen=True)
class Case:
    """`length` changes the announced decoded length; "none" leaves it out."""

    code: str
    build: Build
    mode: str = SIGNED
    status: int = 400
    length: int | str = 0
    headers: Mapping[str, str] = field(default_factory=dict)


def chunks(put: ChunkedPut, data: list[bytes]) -> list[bytes]:
    """A stream as it should be, piece by piece; the last one is the chunk of no bytes."""
    return [put.chunk(piece) for piece in (*data, b"")]


def whole(put: ChunkedPut, data: list[bytes]) -> bytes:
    return b"".join(chunks(put, data)) + b"\r\n"


def edit(change: Callable[[list[bytes]], list[bytes]]) -> Build:
    """A stream made whole and then changed."""
    return lambda put, data: b"".join(change(chunks(put, data))) + b"\r\n"


def forged(at: int) -> Build:
    """One digit of a signature is another."""

    def change(pieces: list[bytes]) -> list[bytes]:
        head, _, rest = pieces[at].partition(b"\r\n")
        digit = b"0" if head[-1:] != b"0" else b"1"
        return [*pieces[:at], head[:-1] + digit + b"\r\n" + rest, *pieces[at + 1 :][: len(pieces)]]

    return lambda put, data: b"".join(change(chunks(put, data))[: len(data) + 1]) + b"\r\n"


def flipped(pieces: list[bytes]) -> list[bytes]:
    first = bytearray(pieces[0])
    first[-10] ^= 1
    return [bytes(first), *pieces[1:]]


def sized(size: bytes) -> Build:
    return lambda put, data: put.chunk(data[0], size=size) + b"".join(chunks(put, data[1:])) + b"\r\n"


def with_trailer(lines: Mapping[str, str], *, sign: bool = True, change: tuple[bytes, bytes] = (b"", b"")) -> Build:
    def build(put: ChunkedPut, data: list[bytes]) -> bytes:
        return put_trailer(put, data)

    def put_trailer(put: ChunkedPut, data: list[bytes]) -> bytes:
        body = b"".join(chunks(put, data))
        values = {name: value.replace("RIGHT", checksum("crc32", b"".join(data))) for name, value in lines.items()}
        return (
            body + put.trailer(values, sign=sign).replace(*change)
            if change[0]
            else body + put.trailer(values, sign=sign)
        )

    return build


def small_middle(put: ChunkedPut, data: list[bytes]) -> bytes:
    joined = b"".join(data)
    return whole(put, [joined[:100], joined[100:]])


CRC32 = {"x-amz-trailer": "x-amz-checksum-crc32"}
RIGHT = {"x-amz-checksum-crc32": "RIGHT"}
WRONG = {"x-amz-checksum-crc32": "AAAAAA=="}

CASES: dict[str, Case] = {
    "the first chunk's signature is forged": Case("SignatureDoesNotMatch", forged(0), status=403),
    "the second chunk's signature is forged": Case("SignatureDoesNotMatch", forged(1), status=403),
    "the last chunk's signature is forged": Case("SignatureDoesNotMatch", forged(-1), status=403),
    "a byte of the data is another": Case("SignatureDoesNotMatch", edit(flipped), status=403),
    "two chunks are swapped": Case(
        "SignatureDoesNotMatch", edit(lambda pieces: [pieces[1], pieces[0], *pieces[2:]]), status=403
    ),
    "a chunk is replayed": Case(
        "SignatureDoesNotMatch", edit(lambda p: [p[0], p[0], *p[2:]]), status=403, length=MIN_CHUNK
    ),
    "a chunk is left out": Case("SignatureDoesNotMatch", edit(lambda pieces: pieces[1:]), status=403),
    "no signature": Case(
        "SignatureDoesNotMatch", lambda put, data: b"".join(put.chunk(d, sign=False) for d in data), status=403
    ),
    "another extension in place of the signature": Case(
        "SignatureDoesNotMatch",
        edit(lambda p: [piece.replace(b"chunk-signature", b"chunk-extension") for piece in p]),
        status=403,
    ),
    "an empty signature": Case(
        "SignatureDoesNotMatch",
        lambda put, data: b"%x;chunk-signature=\r\n%b\r\n" % (len(data[0]), data[0]),
        status=403,
    ),
    "the last chunk is missing": Case("IncompleteBody", lambda put, data: b"".join(chunks(put, data)[:-1])),
    "the last line end is missing": Case("IncompleteBody", lambda put, data: b"".join(chunks(put, data))),
    "it ends inside a chunk": Case("IncompleteBody", lambda put, data: chunks(put, data)[0][:-200]),
    "it ends inside a chunk's header": Case("IncompleteBody", lambda put, data: chunks(put, data)[0][:20]),
    "there is nothing": Case("IncompleteBody", lambda put, data: b""),
    "bytes follow the end": Case("IncompleteBody", lambda put, data: whole(put, data) + b"x"),
    "a second stream follows the end": Case("IncompleteBody", lambda put, data: whole(put, data) * 2),
    "more data than announced": Case("IncompleteBody", whole, length=-1),
    "less data than announced": Case("IncompleteBody", whole, length=1),
    "a size that is not hexadecimal": Case("IncompleteBody", sized(b"xyz")),
    "a negative size": Case("IncompleteBody", sized(b"-1")),
    "a size with a prefix": Case("IncompleteBody", sized(b"0x2000")),
    "a size with a blank": Case("IncompleteBody", sized(b" 2000")),
    "a size past 64 bits": Case("IncompleteBody", sized(b"1" + b"0" * 16)),
    "no size": Case("IncompleteBody", sized(b"")),
    "a size above the object's": Case("IncompleteBody", sized(b"fffffff")),
    "a header that never ends": Case("IncompleteBody", lambda put, data: b"2000;" + b"x" * 4000),
    "bare line feeds": Case("IncompleteBody", lambda put, data: whole(put, data).replace(b"\r\n", b"\n")),
    "no line end after the data": Case(
        "IncompleteBody", edit(lambda pieces: [piece.removesuffix(b"\r\n") + b"  " for piece in pieces])
    ),
    "plain bytes": Case("IncompleteBody", lambda put, data: b"".join(data)),
    "a small chunk before others": Case("InvalidChunkSizeError", small_middle, status=403),
    "no announced length": Case("MissingContentLength", whole, status=411, length="none"),
    "an announced length that is no number": Case("InvalidArgument", whole, length="ten"),
    "a negative announced length": Case("InvalidArgument", whole, length="-5"),
    "an announced length above 5 GiB": Case("EntityTooLarge", whole, length=str((5 << 30) + 1)),
    "a trailer that was not announced": Case("MalformedTrailerError", with_trailer(RIGHT)),
    "no trailer though one was announced": Case(
        "MalformedTrailerError", with_trailer({}), UNSIGNED_TRAILER, headers=CRC32
    ),
    "another trailer than announced": Case(
        "MalformedTrailerError",
        with_trailer({"x-amz-checksum-sha1": "RIGHT"}),
        UNSIGNED_TRAILER,
        headers=CRC32,
    ),
    "a second checksum in the trailer": Case(
        "MalformedTrailerError",
        with_trailer({**RIGHT, "x-amz-checksum-crc32c": "AAAAAA=="}),
        UNSIGNED_TRAILER,
        headers=CRC32,
    ),
    "the trailer twice": Case(
        "MalformedTrailerError",
        lambda put, data: b"".join(chunks(put, data)) + b"x-amz-checksum-crc32:AAAAAA==\r\n" * 2 + b"\r\n",
        UNSIGNED_TRAILER,
        headers=CRC32,
    ),
    "a trailer line without a colon": Case(
        "MalformedTrailerError",
        lambda put, data: b"".join(chunks(put, data)) + b"x-amz-checksum-crc32\r\n\r\n",
        UNSIGNED_TRAILER,
        headers=CRC32,
    ),
    "a trailer name with a blank": Case(
        "MalformedTrailerError",
        lambda put, data: b"".join(chunks(put, data)) + b"x-amz-checksum-crc32 :AAAAAA==\r\n\r\n",
        UNSIGNED_TRAILER,
        headers=CRC32,
    ),
    "a trailer without an end": Case(
        "MalformedTrailerError",
        lambda put, data: b"".join(chunks(put, data)) + b"x-amz-checksum-crc32:" + b"A" * 20_000,
        UNSIGNED_TRAILER,
        headers=CRC32,
    ),
    "a thousand trailers": Case(
        "MalformedTrailerError",
        lambda put, data: b"".join([*chunks(put, data), *(b"x-%d:1\r\n" % i for i in range(1200)), b"\r\n"]),
        UNSIGNED_TRAILER,
        headers=CRC32,
    ),
    "a trailer that is no checksum": Case(
        "BadDigest", with_trailer({"x-amz-checksum-crc32": "nonsense"}), UNSIGNED_TRAILER, headers=CRC32
    ),
    "an announced trailer of an unknown kind": Case(
        "InvalidRequest", whole, UNSIGNED_TRAILER, headers={"x-amz-trailer": "x-amz-checksum-md5"}
    ),
    "a checksum in the header and the trailer": Case(
        "InvalidRequest", with_trailer(RIGHT), UNSIGNED_TRAILER, headers={**CRC32, "x-amz-checksum-crc32": "AAAAAA=="}
    ),
    "a wrong checksum in an unsigned trailer": Case("BadDigest", with_trailer(WRONG), UNSIGNED_TRAILER, headers=CRC32),
    "a wrong checksum in a signed trailer": Case("BadDigest", with_trailer(WRONG), SIGNED_TRAILER, headers=CRC32),
    "a trailer that was changed after signing": Case(
        "SignatureDoesNotMatch",
        with_trailer(WRONG, change=(b"AAAAAA==", b"AAAAAQ==")),
        SIGNED_TRAILER,
        status=403,
        headers=CRC32,
    ),
    "no trailer signature": Case(
        "SignatureDoesNotMatch", with_trailer(RIGHT, sign=False), SIGNED_TRAILER, status=403, headers=CRC32
    ),
    "a forged trailer signature": Case(
        "SignatureDoesNotMatch",
        with_trailer(RIGHT, change=(b"-signature:", b"-signature:0")),
        SIGNED_TRAILER,
        status=403,
        headers=CRC32,
    ),
    "a forged chunk before a trailer": Case(
        "SignatureDoesNotMatch", forged(0), SIGNED_TRAILER, status=403, headers=CRC32
    ),
    "a small chunk before others, unsigned": Case(
        "InvalidChunkSizeError", small_middle, UNSIGNED_TRAILER, status=403, headers=CRC32
    ),
    "a wrong Content-MD5": Case("BadDigest", whole, headers={"content-md5": "1B2M2Y8AsgTpgAmY7PhCfg=="}),
    "an RDMA token as well": Case("InvalidArgument", whole, headers={"x-amz-rdma-token": TOKEN}),
}

SIZES = {"in the record": (MIN_CHUNK, 1000), "in a file": (MIN_CHUNK, 70_000, 9000)}


def settled(wire: Wire, response: Response) -> Wire:
    """The connection for what follows: the same where the server keeps it in step, else it must be closed."""
    if response.keeps_alive:
        return wire
    assert wire.closed()
    return wire.again()


@pytest.mark.parametrize("framing", [0, 5000], ids=["content-length", "http-chunks"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_malformed_stream_is_refused_and_stores_nothing(
    wire: Wire, case: Case, sizes: tuple[int, ...], framing: int
) -> None:
    data = [POOL[number * 100_000 : number * 100_000 + size] for number, size in enumerate(sizes)]
    length: int | str | None = case.length
    if isinstance(length, int):
        length = sum(sizes) + length
    elif length == "none":
        length = None
    put = ChunkedPut(wire, KEY, mode=case.mode, length=length, headers=case.headers)
    put.send(wire, case.build(put, data), http_chunks=framing)
    response = wire.read()
    assert (response.status, response.code) == (case.status, case.code)
    with settled(wire, response) as after:
        assert after.request("GET", KEY).body == BEFORE


@pytest.mark.parametrize("framing", [0, 5000], ids=["content-length", "http-chunks"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("mode", [SIGNED, SIGNED_TRAILER, UNSIGNED_TRAILER])
def test_the_streams_that_the_others_are_bent_from_are_stored(
    wire: Wire, mode: str, sizes: tuple[int, ...], framing: int
) -> None:
    data = [POOL[number * 100_000 : number * 100_000 + size] for number, size in enumerate(sizes)]
    headers = CRC32 if mode != SIGNED else {}
    put = ChunkedPut(wire, KEY, mode=mode, length=sum(sizes), headers=headers)
    put.send(wire, (with_trailer(RIGHT) if headers else whole)(put, data), http_chunks=framing)
    assert wire.read().status == 200
    stored = wire.request("GET", KEY)
    assert stored.body == b"".join(data)
    assert "content-encoding" not in stored.headers


# -- checksums --


@pytest.mark.parametrize("size", [1000, 100_000], ids=["in the record", "in a file"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("where", ["header", "trailer"])
def test_a_wrong_checksum_is_a_bad_digest_and_leaves_the_object(
    wire: Wire, where: str, algorithm: str, size: int
) -> None:
    name, data = f"x-amz-checksum-{algorithm}", POOL[:size]
    for sent, wanted in ((checksum(algorithm, data + b"!"), "BadDigest"), (checksum(algorithm, data), "")):
        if where == "header":
            response = wire.request("PUT", KEY, data, **{name: sent})
        else:
            put = ChunkedPut(wire, KEY, mode=UNSIGNED_TRAILER, length=size, headers={"x-amz-trailer": name})
            put.send(wire, put.chunk(data) + put.chunk(b"") + put.trailer({name: sent}))
            response = wire.read()
        assert response.code == wanted
        assert response.status == (400 if wanted else 200)
        assert response.keeps_alive
        assert wire.request("GET", KEY).body == (BEFORE if wanted else data)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_wrong_checksum_of_a_part_is_a_bad_digest_and_leaves_the_part(wire: Wire, algorithm: str) -> None:
    name, data = f"x-amz-checksum-{algorithm}", POOL[:50_000]
    started = wire.request("POST", f"/{BUCKET}/parts?uploads=", x_amz_checksum_algorithm=algorithm.upper())
    upload = started.body.partition(b"<UploadId>")[2].partition(b"<")[0].decode()
    target = f"/{BUCKET}/parts?partNumber=1&uploadId={upload}"
    kept = wire.request("PUT", target, data, **{name: checksum(algorithm, data)})
    assert kept.status == 200
    assert wire.request("PUT", target, data, **{name: checksum(algorithm, b"other")}).code == "BadDigest"
    parts = wire.request("GET", f"/{BUCKET}/parts?uploadId={upload}").body
    assert parts.count(b"<PartNumber>") == 1
    assert checksum(algorithm, data).encode() in parts


# -- which header decides --


def test_an_unsigned_content_encoding_does_not_choose_the_decoder(wire: Wire) -> None:
    framed = b"a\r\n0123456789\r\n0\r\n\r\n"
    request = wire.signed("PUT", KEY, framed, x_amz_content_sha256="UNSIGNED-PAYLOAD", content_length=str(len(framed)))
    wire.send(request.replace(b"\r\n\r\n", b"\r\nContent-Encoding: aws-chunked\r\n\r\n", 1))
    assert wire.read().status == 200
    assert wire.request("GET", KEY).body == framed
    exact = wire.signed("PUT", KEY, b"0123456789", content_length=str(len(framed)))
    wire.send(exact.replace(b"\r\n\r\n0123456789", b"\r\nContent-Encoding: aws-chunked\r\n\r\n" + framed))
    assert wire.read().code == "XAmzContentSHA256Mismatch"
    assert wire.request("GET", KEY).body == framed


def test_the_signed_hash_alone_makes_a_stream(wire: Wire) -> None:
    data = POOL[:MIN_CHUNK]
    put = ChunkedPut(wire, KEY, mode=SIGNED, length=len(data), headers={"content-encoding": "identity"})
    put.send(wire, whole(put, [data]))
    assert wire.read().status == 200
    assert wire.request("GET", KEY).body == data


@pytest.mark.parametrize("claimed", ["UNSIGNED-PAYLOAD", UNSIGNED_TRAILER, SIGNED_TRAILER, "0" * 64])
def test_a_payload_hash_that_was_exchanged_after_signing_breaks_the_signature(wire: Wire, claimed: str) -> None:
    data = POOL[:MIN_CHUNK]
    put = ChunkedPut(wire, KEY, mode=SIGNED, length=len(data))
    del put._request.headers["x-amz-content-sha256"]
    put._request.headers["x-amz-content-sha256"] = claimed
    put.send(wire, whole(put, [data]))
    response = wire.read()
    assert (response.status, response.code) == (403, "SignatureDoesNotMatch")
    with settled(wire, response) as after:
        assert after.request("GET", KEY).body == BEFORE


# -- cut off --


@pytest.mark.parametrize("mode", [SIGNED, UNSIGNED_TRAILER])
@pytest.mark.parametrize("missing", [1, 2, 100, 150_000, 299_000])
def test_a_stream_that_is_cut_off_leaves_the_object(wire: Wire, mode: str, missing: int) -> None:
    data = [POOL[:MIN_CHUNK], POOL[: 300_000 - MIN_CHUNK]]
    with wire.again() as done:
        put = ChunkedPut(done, KEY, mode=mode, length=300_000)
        done.send(put.request(whole(put, data))[:-missing])
        done.sock.shutdown(socket.SHUT_WR)
        assert done.read().code == "IncompleteBody"
    with wire.again() as gone:
        put = ChunkedPut(gone, KEY, mode=mode, length=300_000)
        gone.send(put.request(whole(put, data))[:-missing])
        # An abrupt end: a reset in place of a FIN.
        gone.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    time.sleep(0.05)
    assert wire.request("GET", KEY).body == BEFORE
