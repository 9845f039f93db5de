"""aws-chunked requests as bytes, signed with botocore's signer; every piece can be bent before it is sent."""

import hashlib
from collections.abc import Mapping
from typing import Any

from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.integration.endpoint import ACCESS_KEY, SECRET_KEY, Signer, Wire

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


class ChunkedPut:
    """One PUT. Pieces are signed in the order in which they are made, so a stream can be made whole and then cut."""

    def __init__(
        self, wire: Wire, path: str, *, mode: str, length: int | str | None, headers: Mapping[str, str] | None = None
    ) -> None:
        """`length` is x-amz-decoded-content-length, None leaves it out."""
        self.mode = mode
        self._path = path
        fields = {"x-amz-content-sha256": mode, "content-encoding": "aws-chunked", **(headers or {})}
        if length is not None:
            fields["x-amz-decoded-content-length"] = str(length)
        self._signer = Signer(Credentials(ACCESS_KEY, SECRET_KEY), "s3", "us-east-1")
        self._request = AWSRequest("PUT", f"http://127.0.0.1:{wire.port}{path}", headers=fields)
        self._signer.payload_hash = mode
        self._host = f"127.0.0.1:{wire.port}"
        self._signer.add_auth(self._request)
        self.signature = str(self._request.headers["Authorization"]).rpartition("=")[2]

    def send(self, wire: Wire, body: bytes, *, http_chunks: int = 0) -> None:
        wire.send(self.request(body, http_chunks=http_chunks))

    def request(self, body: bytes, *, http_chunks: int = 0) -> bytes:
        """`http_chunks` is the size of HTTP's own chunks; without it the body is framed by Content-Length."""
        framing = "Transfer-Encoding: chunked" if http_chunks else f"Content-Length: {len(body)}"
        lines = [f"PUT {self._path} HTTP/1.1", f"Host: {self._host}", framing]
        lines += [f"{name}: {value}" for name, value in self._request.headers.items() if name.lower() != "host"]
        if http_chunks:
            pieces = [body[start : start + http_chunks] for start in range(0, len(body), http_chunks)]
            body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body

    # -- pieces --

    def chunk(self, data: bytes, *, size: bytes | None = None, sign: bool = True) -> bytes:
        """One chunk with its header and line ends; the last one is `chunk(b"")`, without its empty trailer."""
        extension = b""
        if self.mode != UNSIGNED_TRAILER and sign:
            extension = b";chunk-signature=" + self._sign_next(
                "AWS4-HMAC-SHA256-PAYLOAD", EMPTY_SHA256, hashlib.sha256(data).hexdigest()
            )
        header = (b"%x" % len(data) if size is None else size) + extension + b"\r\n"
        return header + data + b"\r\n" if data else header

    def trailer(self, lines: Mapping[str, str], *, sign: bool = True) -> bytes:
        """Trailer lines, their signature, and the empty line that ends the stream."""
        text = "".join(f"{name}:{value}\r\n" for name, value in lines.items()).encode()
        if self.mode == SIGNED_TRAILER and sign:
            canonical = "".join(f"{name}:{value}\n" for name, value in sorted(lines.items()))
            digest = hashlib.sha256(canonical.encode()).hexdigest()
            text += b"x-amz-trailer-signature:" + self._sign_next("AWS4-HMAC-SHA256-TRAILER", digest) + b"\r\n"
        return text + b"\r\n"

    def _sign_next(self, kind: str, *hashes: str) -> bytes:
        timestamp: Any = self._request.context["timestamp"]
        scope = self._signer.credential_scope(self._request)
        text = "\n".join((kind, timestamp, scope, self.signature, *hashes))
        self.signature = self._signer.signature(text, self._request)
        return self.signature.encode()
