"""The aws-chunked decoder."""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.gateway.auth import sigv4
from s3verbs.gateway.auth.payload_hash import ChunkSignatures
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.aws_chunked import MAX_CHUNK_HEADER, MAX_TRAILER_SECTION, AwsChunkedDecoder

TIMESTAMP = "20130524T000000Z"
SCOPE = "20130524/us-east-1/s3/aws4_request"
SEED = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
KEY = sigv4.signing_key("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "20130524", "us-east-1")
CHECKSUM = (b"x-amz-checksum-crc32", b"AAAAAA==")


def verifier(seed: str = SEED) -> ChunkSignatures:
    return ChunkSignatures(key=KEY, timestamp=TIMESTAMP, scope=SCOPE, seed=seed, access_key="AKID")


def unsigned(chunks: Iterable[bytes], trailers: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    stream = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return stream + b"0\r\n" + b"".join(b"%s:%s\r\n" % pair for pair in trailers) + b"\r\n"


def signed(chunks: Sequence[bytes], trailers: Sequence[tuple[bytes, bytes]] | None = None, seed: str = SEED) -> bytes:
    """A stream as a client signs it, by the published rules."""
    previous = seed
    stream = b""
    for chunk in [*chunks, b""]:
        digest = hashlib.sha256(chunk).hexdigest()
        previous = sigv4.sign(KEY, sigv4.chunk_string_to_sign(TIMESTAMP, SCOPE, previous, digest))
        stream += b"%x;chunk-signature=%s\r\n" % (len(chunk), previous.encode())
        if chunk:
            stream += chunk + b"\r\n"
    if trailers is not None:
        lines = b"".join(b"%s:%s\n" % pair for pair in sorted(trailers))
        text = sigv4.trailer_string_to_sign(TIMESTAMP, SCOPE, previous, hashlib.sha256(lines).hexdigest())
        stream += b"".join(b"%s:%s\r\n" % pair for pair in trailers)
        stream += b"x-amz-trailer-signature:%s\r\n" % sigv4.sign(KEY, text).encode()
    return stream + b"\r\n"


def decode(decoder: AwsChunkedDecoder, *pieces: bytes) -> bytes:
    return b"".join(bytes(view) for piece in pieces for view in decoder.feed(piece))


def decode_all(decoder: AwsChunkedDecoder, *pieces: bytes) -> bytes:
    payload = decode(decoder, *pieces)
    decoder.close()
    return payload


def cuts(stream: bytes, at: Iterable[int]) -> list[bytes]:
    places = [0, *sorted(at), len(stream)]
    return [stream[first:last] for first, last in pairwise(places)]


CHUNKS = [b"x" * 8192, b"y" * 8200, b"tail"]
STREAMS = {
    "unsigned": (unsigned(CHUNKS), False, False),
    "unsigned trailer": (unsigned(CHUNKS, [CHECKSUM]), False, True),
    "signed": (signed(CHUNKS), True, False),
    "signed trailer": (signed(CHUNKS, [CHECKSUM]), True, True),
    "empty": (unsigned([]), False, False),
    "empty signed trailer": (signed([], [CHECKSUM]), True, True),
}


def decoder_for(name: str) -> tuple[AwsChunkedDecoder, bytes, bytes]:
    stream, is_signed, trailer = STREAMS[name]
    payload = b"" if name.startswith("empty") else b"".join(CHUNKS)
    decoder = AwsChunkedDecoder(
        decoded_length=len(payload), verifier=verifier() if is_signed else None, trailer=trailer
    )
    return decoder, stream, payload


def interesting(stream: bytes) -> list[int]:
    """Every place around framing; the inside of the long runs only now and then."""
    return [
        place
        for place in range(len(stream) + 1)
        if stream[max(place - 3, 0) : place + 3].strip(b"xy") or place % 512 == 0
    ]


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_split_anywhere_gives_the_same_payload(name: str) -> None:
    _, stream, _ = decoder_for(name)
    for place in interesting(stream):
        decoder, _, payload = decoder_for(name)
        assert decode(decoder, stream[:place], stream[place:]) == payload
        assert decoder.finished
        decoder.close()
        assert decoder.trailers == ({"x-amz-checksum-crc32": "AAAAAA=="} if "trailer" in name else {})


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_fed_byte_by_byte(name: str) -> None:
    decoder, stream, payload = decoder_for(name)
    assert decode(decoder, *[stream[place : place + 1] for place in range(len(stream))]) == payload
    decoder.close()


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_cut_short_anywhere_is_incomplete(name: str) -> None:
    _, stream, _ = decoder_for(name)
    for place in interesting(stream)[:-1]:
        decoder, _, _ = decoder_for(name)
        decode(decoder, stream[:place])
        assert not decoder.finished
        with pytest.raises(S3Error) as error:
            decoder.close()
        assert error.value.code == "IncompleteBody"


@settings(max_examples=100, deadline=None)
@given(
    tail=st.binary(max_size=20),
    sizes=st.lists(st.integers(8192, 8300), max_size=3),
    places=st.lists(st.integers(0, 30_000), max_size=8),
    is_signed=st.booleans(),
    trailers=st.lists(
        st.sampled_from([(b"x-amz-checksum-crc32", b"a="), (b"x-amz-checksum-sha256", b"b=")]), unique=True
    ),
)
def test_any_chunking_and_any_splits(
    tail: bytes, sizes: list[int], places: list[int], is_signed: bool, trailers: list[tuple[bytes, bytes]]
) -> None:
    chunks = [bytes([index]) * size for index, size in enumerate(sizes)] + ([tail] if tail else [])
    stream = signed(chunks, trailers) if is_signed else unsigned(chunks, trailers)
    payload = b"".join(chunks)
    decoder = AwsChunkedDecoder(decoded_length=len(payload), verifier=verifier() if is_signed else None, trailer=True)
    assert decode(decoder, *cuts(stream, [place for place in places if place < len(stream)])) == payload
    decoder.close()
    assert decoder.trailers == {name.decode(): value.decode() for name, value in trailers}


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80), st.booleans(), st.booleans())
def test_any_bytes_are_decoded_or_refused_with_an_s3_error(data: bytes, is_signed: bool, trailer: bool) -> None:
    decoder = AwsChunkedDecoder(decoded_length=10, verifier=verifier() if is_signed else None, trailer=trailer)
    with pytest.raises(S3Error) as error:
        decode_all(decoder, data)
    assert error.value.code in (
        "IncompleteBody",
        "SignatureDoesNotMatch",
        "InvalidChunkSizeError",
        "MalformedTrailerError",
    )


def test_payload_is_given_as_views_of_what_was_fed() -> None:
    decoder = AwsChunkedDecoder(decoded_length=9000, verifier=None, trailer=True)
    stream = unsigned([b"a" * 9000])
    (view,) = decoder.feed(stream)
    assert view.obj is stream


def test_the_published_chunked_example() -> None:
    # "Example: PUT object", transferring payload in multiple chunks: 65 KiB of "a" in chunks of 64 KiB.
    signatures = (
        b"ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
        b"0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
        b"b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
    )
    stream = b"".join(
        b"%x;chunk-signature=%s\r\n%s\r\n" % (size, signature, b"a" * size)
        for size, signature in zip((65536, 1024, 0), signatures, strict=True)
    )
    assert len(stream) == 66824
    decoder = AwsChunkedDecoder(decoded_length=66560, verifier=verifier(), trailer=False)
    assert decode(decoder, stream) == b"a" * 66560
    assert decoder.finished


def test_the_published_trailer_example() -> None:
    # "Example: PUT object", including trailing headers.
    seed = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
    signatures = (
        b"b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
        b"1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
        b"2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
    )
    stream = b""
    for size, signature in zip((65536, 1024, 0), signatures, strict=True):
        stream += b"%x;chunk-signature=%s\r\n" % (size, signature)
        stream += b"a" * size + b"\r\n" if size else b""
    stream += b"x-amz-checksum-crc32c:sOO8/Q==\r\n"
    stream += b"x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n"
    decoder = AwsChunkedDecoder(decoded_length=66560, verifier=verifier(seed), trailer=True)
    assert decode(decoder, stream) == b"a" * 66560
    assert decoder.finished
    assert decoder.trailers == {"x-amz-checksum-crc32c": "sOO8/Q=="}


SIGNED = signed([b"hello"])
SIGNED_TRAILER = signed([b"hello"], [CHECKSUM])
UNSIGNED = unsigned([b"hello"], [CHECKSUM])
FINAL_SIGNATURE = SIGNED.rindex(b"=") + 1
BAD = b"0" * 64

# name: (stream, signed, trailer, code); the payload declared is 5 bytes
MALFORMED = {
    "size is no number": (b"z\r\nhello\r\n0\r\n\r\n", False, True, "IncompleteBody"),
    "no size": (b"\r\nhello\r\n0\r\n\r\n", False, True, "IncompleteBody"),
    "negative size": (b"-5\r\nhello\r\n0\r\n\r\n", False, True, "IncompleteBody"),
    "size with a sign": (b"+5\r\nhello\r\n0\r\n\r\n", False, True, "IncompleteBody"),
    "size with a prefix": (b"0x5\r\nhello\r\n0\r\n\r\n", False, True, "IncompleteBody"),
    "size with an underscore": (b"0_5\r\nhello\r\n0\r\n\r\n", False, True, "IncompleteBody"),
    "size with white space": (b" 5\r\nhello\r\n0\r\n\r\n", False, True, "IncompleteBody"),
    "size of 17 digits": (b"00000000000000005\r\nhello\r\n0\r\n\r\n", False, True, "IncompleteBody"),
    "huge size": (b"ffffffffffffffff\r\nhello\r\n0\r\n\r\n", False, True, "IncompleteBody"),
    "endless size": (b"0" * 5000, False, True, "IncompleteBody"),
    "endless extension": (b"5;" + b"a" * MAX_CHUNK_HEADER + b"\r\nhello\r\n0\r\n\r\n", False, True, "IncompleteBody"),
    "header ended by a bare line feed": (b"5\nhello\r\n0\r\n\r\n", False, True, "IncompleteBody"),
    "no line end after data": (b"5\r\nhello0\r\n\r\n", False, True, "IncompleteBody"),
    "bare line feed after data": (b"5\r\nhello\n0\r\n\r\n", False, True, "IncompleteBody"),
    "data longer than its chunk": (b"5\r\nhello!\r\n0\r\n\r\n", False, True, "IncompleteBody"),
    "data shorter than its chunk": (b"5\r\nhell\r\n0\r\n\r\n", False, True, "IncompleteBody"),
    "chunk longer than the payload": (b"6\r\nhello!\r\n0\r\n\r\n", False, True, "IncompleteBody"),
    "payload shorter than declared": (unsigned([b"hell"]), False, True, "IncompleteBody"),
    "no chunk at all": (b"0\r\n\r\n", False, True, "IncompleteBody"),
    "nothing": (b"", False, True, "IncompleteBody"),
    "no last chunk": (b"5\r\nhello\r\n", False, True, "IncompleteBody"),
    "last chunk without its end": (b"5\r\nhello\r\n0\r\n", False, True, "IncompleteBody"),
    "bytes after the end": (UNSIGNED + b"x", False, True, "IncompleteBody"),
    "a second stream": (UNSIGNED + UNSIGNED, False, True, "IncompleteBody"),
    "small chunk before another": (b"1\r\nh\r\n4\r\nello\r\n0\r\n\r\n", False, True, "InvalidChunkSizeError"),
    "trailer without a colon": (unsigned([b"hello"])[:-2] + b"x-amz\r\n\r\n", False, True, "MalformedTrailerError"),
    "trailer without a name": (unsigned([b"hello"], [(b"", b"v")]), False, True, "MalformedTrailerError"),
    "trailer name with a space": (unsigned([b"hello"], [(b"a b", b"v")]), False, True, "MalformedTrailerError"),
    "trailer value with a control character": (
        unsigned([b"hello"], [(b"a", b"\0")]),
        False,
        True,
        "MalformedTrailerError",
    ),
    "trailer twice": (unsigned([b"hello"], [CHECKSUM, CHECKSUM]), False, True, "MalformedTrailerError"),
    "trailer too long": (
        unsigned([b"hello"], [(b"a", b"v" * MAX_TRAILER_SECTION)]),
        False,
        True,
        "MalformedTrailerError",
    ),
    "trailer without an end": (unsigned([b"hello"])[:-2] + b"v" * 9000, False, True, "MalformedTrailerError"),
    "too many trailers": (
        unsigned([b"hello"], [(b"a%d" % number, b"v" * 90) for number in range(100)]),
        False,
        True,
        "MalformedTrailerError",
    ),
    "trailer ended by a bare line feed": (UNSIGNED[:-2] + b"\n", False, True, "MalformedTrailerError"),
    "trailer where none is announced": (signed([b"hello"])[:-2] + b"a:b\r\n\r\n", True, False, "MalformedTrailerError"),
    "trailer signature in an unsigned stream": (
        unsigned([b"hello"], [(b"x-amz-trailer-signature", BAD)]),
        False,
        True,
        "MalformedTrailerError",
    ),
    "trailer after its signature": (SIGNED_TRAILER[:-2] + b"a:b\r\n\r\n", True, True, "MalformedTrailerError"),
    "chunk without a signature": (b"5\r\nhello\r\n0\r\n\r\n", True, False, "SignatureDoesNotMatch"),
    "chunk with an empty signature": (
        b"5;chunk-signature=\r\nhello\r\n0\r\n\r\n",
        True,
        False,
        "SignatureDoesNotMatch",
    ),
    "chunk with another extension": (b"5;name=value\r\nhello\r\n0\r\n\r\n", True, False, "SignatureDoesNotMatch"),
    "chunk signature wrong": (
        b"5;chunk-signature=" + BAD + b"\r\nhello\r\n0\r\n\r\n",
        True,
        False,
        "SignatureDoesNotMatch",
    ),
    "chunk signature not ASCII": (
        b"5;chunk-signature=" + b"\xff" * 64 + b"\r\nhello\r\n0\r\n\r\n",
        True,
        False,
        "SignatureDoesNotMatch",
    ),
    "chunk data changed": (SIGNED.replace(b"hello", b"jello"), True, False, "SignatureDoesNotMatch"),
    "chunk signature in upper case": (SIGNED[:20] + SIGNED[20:].upper(), True, False, "SignatureDoesNotMatch"),
    "last chunk without a signature": (
        SIGNED[: SIGNED.index(b"0;chunk")] + b"0\r\n\r\n",
        True,
        False,
        "SignatureDoesNotMatch",
    ),
    "last chunk signature wrong": (SIGNED[:FINAL_SIGNATURE] + BAD + b"\r\n\r\n", True, False, "SignatureDoesNotMatch"),
    "signed chunks of another request": (signed([b"hello"], seed=BAD.decode()), True, False, "SignatureDoesNotMatch"),
    "trailer signature missing": (SIGNED + b"", True, True, "SignatureDoesNotMatch"),
    "trailer stripped of its signature": (
        SIGNED[:-2] + b"x-amz-checksum-crc32:AAAAAA==\r\n\r\n",
        True,
        True,
        "SignatureDoesNotMatch",
    ),
    "trailer signature wrong": (
        SIGNED_TRAILER[: SIGNED_TRAILER.rindex(b":") + 1] + BAD + b"\r\n\r\n",
        True,
        True,
        "SignatureDoesNotMatch",
    ),
    "trailer value changed": (SIGNED_TRAILER.replace(b"AAAAAA==", b"AAAAAQ=="), True, True, "SignatureDoesNotMatch"),
    "trailer removed": (
        SIGNED_TRAILER.replace(b"x-amz-checksum-crc32:AAAAAA==\r\n", b""),
        True,
        True,
        "SignatureDoesNotMatch",
    ),
}


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "bytes"])
@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_stream(name: str, whole: bool) -> None:
    stream, is_signed, trailer, code = MALFORMED[name]
    decoder = AwsChunkedDecoder(decoded_length=5, verifier=verifier() if is_signed else None, trailer=trailer)
    with pytest.raises(S3Error) as error:
        decode_all(decoder, *([stream] if whole else [stream[place : place + 1] for place in range(len(stream))]))
    assert error.value.code == code
    assert not decoder.finished
    with pytest.raises(S3Error, match=r"Content-Length"):
        decoder.feed(UNSIGNED)


def test_a_chunk_beyond_the_declared_length_is_refused_before_its_data() -> None:
    decoder = AwsChunkedDecoder(decoded_length=5, verifier=None, trailer=True)
    with pytest.raises(S3Error) as error:
        decoder.feed(b"6\r\n")
    assert error.value.code == "IncompleteBody"


def test_a_small_chunk_is_named() -> None:
    decoder = AwsChunkedDecoder(decoded_length=8195, verifier=verifier(), trailer=False)
    with pytest.raises(S3Error) as error:
        decoder.feed(signed([b"x" * 8191, b"four"]))
    assert error.value.details == {"Chunk": "2", "BadChunkSize": "8191"}


def test_trailer_lines_may_end_with_a_bare_line_feed_as_in_the_documentation() -> None:
    decoder = AwsChunkedDecoder(decoded_length=5, verifier=None, trailer=True)
    assert decode(decoder, b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\n\r\n") == b"hello"
    assert decoder.trailers == {"x-amz-checksum-crc32": "AAAAAA=="}


def test_unknown_extensions_of_unsigned_chunks_are_ignored() -> None:
    decoder = AwsChunkedDecoder(decoded_length=5, verifier=None, trailer=True)
    assert decode(decoder, b"5;a=b\r\nhello\r\n0;c\r\n\r\n") == b"hello"
    decoder.close()
