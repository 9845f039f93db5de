"""The aws-chunked content coding: an incremental decoder without I/O.

    chunk    = hex-size [ ";chunk-signature=" 64-hex ] CRLF bytes CRLF      size 0 ends the data and has no bytes
    trailer  = *( name ":" value CRLF ) [ "x-amz-trailer-signature:" 64-hex CRLF ]
    stream   = *chunk last-chunk [ trailer ] CRLF

Source: Amazon S3 API Reference, "Signature calculations for the authorization header: transferring payload in
multiple chunks" and "... including trailing headers". Every framing error is IncompleteBody, as AWS answers it.
"""

import hashlib
from enum import Enum
from typing import Protocol

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.headers import X_AMZ_TRAILER_SIGNATURE

MIN_CHUNK_SIZE = 8 * 1024
"""Bytes that every chunk of data but the last must have."""

MAX_CHUNK_HEADER = 1024
"""Bytes of a chunk's header line."""

MAX_TRAILER_SECTION = 8 * 1024
"""Bytes of all trailer lines."""

_SIGNATURE_EXTENSION = b"chunk-signature="
_HEX_DIGITS = b"0123456789abcdefABCDEF"
_MAX_SIZE_DIGITS = 16
_TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class ChunkVerifier(Protocol):
    """Checks the signatures of a stream in order. Both raise S3Error SignatureDoesNotMatch."""

    def check_chunk(self, signature: str, payload_sha256: str) -> None:
        """The next chunk's signature, from the hex SHA-256 of its bytes. The last chunk, of no bytes, included."""

    def check_trailer(self, signature: str, trailer_sha256: str) -> None:
        """The trailer's signature, from the hex SHA-256 of its lines `name:value` LF, sorted by name."""


class _Expect(Enum):
    HEADER = "chunk header"
    DATA = "chunk data"
    DATA_END = "line end after chunk data"
    TRAILER = "trailer line"
    NOTHING = "nothing more"
    FAILED = "failed"


class AwsChunkedDecoder:
    """Decodes one stream of `decoded_length` payload bytes.

    With a `verifier` every chunk must be signed, and with `trailer` too the trailer. A signature follows its chunk's
    bytes, so bytes that were given out are verified only when `finished` is true: publish nothing before that.
    """

    def __init__(self, *, decoded_length: int, verifier: ChunkVerifier | None, trailer: bool) -> None:
        self.trailers: dict[str, str] = {}
        self._verifier = verifier
        self._trailer = trailer
        self._expect = _Expect.HEADER
        self._remaining = decoded_length
        self._chunk_left = 0
        self._chunk_size = 0
        self._chunks = 0
        self._line = b""
        self._trailer_bytes = 0
        self._trailer_signature: str | None = None
        self._signature = ""
        self._hash = hashlib.sha256()

    @property
    def finished(self) -> bool:
        """The whole stream was read and, where it is signed, verified. `trailers` is complete: lower-case names."""
        return self._expect is _Expect.NOTHING

    def feed(self, data: bytes) -> list[memoryview]:
        """Payload bytes in order, as views of `data`: nothing is copied.

        Raises S3Error, after which the decoder is dead: IncompleteBody (framing, lengths, bytes after the end),
        InvalidChunkSizeError, MalformedTrailerError, SignatureDoesNotMatch.
        """
        try:
            return self._decode(data)
        except S3Error:
            self._expect = _Expect.FAILED
            raise

    def close(self) -> None:
        """The body has ended. Raises S3Error IncompleteBody when the stream has not."""
        if self._expect is not _Expect.NOTHING:
            self._expect = _Expect.FAILED
            raise _incomplete()

    def _decode(self, data: bytes) -> list[memoryview]:
        views: list[memoryview] = []
        view = memoryview(data)
        end = len(data)
        position = 0
        while position < end:
            expect = self._expect
            if expect is _Expect.DATA:
                stop = min(position + self._chunk_left, end)
                piece = view[position:stop]
                views.append(piece)
                self._chunk_left -= stop - position
                position = stop
                if self._verifier is not None:
                    self._hash.update(piece)
                if not self._chunk_left:
                    self._check_chunk()
                    self._expect = _Expect.DATA_END
                continue
            if expect is _Expect.NOTHING or expect is _Expect.FAILED:
                raise _incomplete()
            limit = (
                2
                if expect is _Expect.DATA_END
                else MAX_CHUNK_HEADER
                if expect is _Expect.HEADER
                else MAX_TRAILER_SECTION
            )
            newline = data.find(b"\n", position, position + limit + 1)
            if newline < 0:
                self._line += data[position:]
                if len(self._line) > limit:
                    raise _incomplete() if expect is not _Expect.TRAILER else _malformed_trailer()
                break
            line = self._line + data[position:newline] if self._line else data[position:newline]
            self._line = b""
            position = newline + 1
            if expect is _Expect.HEADER:
                self._read_header(line)
            elif expect is _Expect.DATA_END:
                if line != b"\r":
                    raise _incomplete()
                self._expect = _Expect.HEADER
            else:
                self._read_trailer_line(line)
        return views

    def _read_header(self, line: bytes) -> None:
        digits, _, extension = line.removesuffix(b"\r").partition(b";")
        if not line.endswith(b"\r") or len(line) > MAX_CHUNK_HEADER:
            raise _incomplete()
        if not digits or len(digits) > _MAX_SIZE_DIGITS or digits.translate(None, _HEX_DIGITS):
            raise _incomplete()
        size = int(digits, 16)
        self._chunks += 1
        if size and self._chunks > 1 and self._chunk_size < MIN_CHUNK_SIZE:
            raise S3Error(
                "InvalidChunkSizeError", details={"Chunk": str(self._chunks), "BadChunkSize": str(self._chunk_size)}
            )
        if size > self._remaining:
            raise _incomplete()
        if self._verifier is not None:
            if not extension.startswith(_SIGNATURE_EXTENSION):
                raise S3Error("SignatureDoesNotMatch")
            self._signature = extension[len(_SIGNATURE_EXTENSION) :].decode("latin-1")
        self._chunk_size = self._chunk_left = size
        self._remaining -= size
        if size:
            self._expect = _Expect.DATA
            return
        self._check_chunk()
        if self._remaining:
            raise _incomplete()
        self._expect = _Expect.TRAILER

    def _check_chunk(self) -> None:
        if self._verifier is not None:
            self._verifier.check_chunk(self._signature, self._hash.hexdigest())
            self._hash = hashlib.sha256()

    def _read_trailer_line(self, line: bytes) -> None:
        if line == b"\r":
            self._end()
            return
        self._trailer_bytes += len(line)
        if self._trailer_bytes > MAX_TRAILER_SECTION:
            raise _malformed_trailer()
        # AWS's own examples end trailer lines with a bare line feed, so the carriage return is optional here.
        raw_name, colon, raw_value = line.removesuffix(b"\r").partition(b":")
        if (
            not colon
            or not raw_name
            or raw_name.translate(None, _TOKEN)
            or not self._trailer
            or self._trailer_signature is not None
        ):
            raise _malformed_trailer()
        name = raw_name.decode("ascii").lower()
        value = raw_value.strip(b" \t").decode("latin-1")
        if name in self.trailers or not (value.isascii() and value.isprintable()):
            raise _malformed_trailer()
        if name == X_AMZ_TRAILER_SIGNATURE:
            if self._verifier is None:
                raise _malformed_trailer()
            self._trailer_signature = value
        else:
            self.trailers[name] = value

    def _end(self) -> None:
        if self._verifier is not None and self._trailer:
            if self._trailer_signature is None:
                raise S3Error("SignatureDoesNotMatch")
            lines = "".join(f"{name}:{value}\n" for name, value in sorted(self.trailers.items()))
            self._verifier.check_trailer(self._trailer_signature, hashlib.sha256(lines.encode("ascii")).hexdigest())
        self._expect = _Expect.NOTHING


def _incomplete() -> S3Error:
    return S3Error("IncompleteBody")


def _malformed_trailer() -> S3Error:
    return S3Error("MalformedTrailerError")
