"""How a request's payload is verified, decided by the signed x-amz-content-sha256 alone.

Source: Amazon S3 API Reference, "Signature calculations for the authorization header" (values of
x-amz-content-sha256). Content-Encoding plays no part: it is not signed.
"""

from dataclasses import dataclass
from enum import Enum

from s3verbs.gateway.auth import sigv4
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.headers import X_AMZ_CONTENT_SHA256

UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"


class PayloadKind(Enum):
    """UNSIGNED: any bytes. EXACT: bytes of a known SHA-256. STREAMING_*: an aws-chunked stream."""

    UNSIGNED = "UNSIGNED-PAYLOAD"
    EXACT = "exact"
    STREAMING_SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    STREAMING_SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
    STREAMING_UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


@dataclass(frozen=True, slots=True)
class PayloadMode:
    """`sha256` is the expected digest, 32 bytes, when `kind` is EXACT, else None."""

    kind: PayloadKind
    sha256: bytes | None = None

    @property
    def streaming(self) -> bool:
        """The body is an aws-chunked stream."""
        return self.kind is not PayloadKind.UNSIGNED and self.kind is not PayloadKind.EXACT

    @property
    def signed_chunks(self) -> bool:
        return self.kind in (PayloadKind.STREAMING_SIGNED, PayloadKind.STREAMING_SIGNED_TRAILER)

    @property
    def trailer(self) -> bool:
        """The stream may end with trailers."""
        return self.kind in (PayloadKind.STREAMING_SIGNED_TRAILER, PayloadKind.STREAMING_UNSIGNED_TRAILER)


_NAMED = {kind.value: PayloadMode(kind) for kind in PayloadKind if kind is not PayloadKind.EXACT}
UNSIGNED = _NAMED[UNSIGNED_PAYLOAD]


def parse_payload_hash(value: str) -> PayloadMode:
    """The mode that an x-amz-content-sha256 value names.

    Raises S3Error: NotImplemented (the ECDSA streaming forms), InvalidArgument (neither a known name nor 64
    hexadecimal digits).
    """
    named = _NAMED.get(value)
    if named is not None:
        return named
    if len(value) == 64:
        try:
            digest = bytes.fromhex(value)
        except ValueError:
            digest = b""
        if len(digest) == 32:
            return PayloadMode(PayloadKind.EXACT, digest)
    if value.startswith("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"):
        raise S3Error("NotImplemented", "Signature Version 4A is not implemented. Please use AWS4-HMAC-SHA256.")
    raise S3Error(
        "InvalidArgument",
        "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-UNSIGNED-PAYLOAD-TRAILER, "
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER, "
        "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD, STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER "
        "or a valid sha256 value.",
        details={"ArgumentName": X_AMZ_CONTENT_SHA256, "ArgumentValue": value},
    )


class ChunkSignatures:
    """The chain of signatures of one signed stream; starts with the signature of the request's head.

    Implements `http.aws_chunked.ChunkVerifier`.
    """

    __slots__ = ("_access_key", "_key", "_previous", "_scope", "_timestamp")

    def __init__(self, *, key: bytes, timestamp: str, scope: str, seed: str, access_key: str) -> None:
        self._key = key
        self._timestamp = timestamp
        self._scope = scope
        self._previous = seed
        self._access_key = access_key

    def check_chunk(self, signature: str, payload_sha256: str) -> None:
        self._check(signature, sigv4.chunk_string_to_sign(self._timestamp, self._scope, self._previous, payload_sha256))

    def check_trailer(self, signature: str, trailer_sha256: str) -> None:
        self._check(
            signature, sigv4.trailer_string_to_sign(self._timestamp, self._scope, self._previous, trailer_sha256)
        )

    def _check(self, signature: str, text: str) -> None:
        computed = sigv4.sign(self._key, text)
        if not sigv4.equal(computed, signature):
            raise signature_mismatch(self._access_key, text, signature)
        self._previous = computed


def signature_mismatch(access_key: str, text: str, provided: str, canonical: bytes | None = None) -> S3Error:
    """SignatureDoesNotMatch with what the server signed, so that a client's author can compare."""
    details = {
        "AWSAccessKeyId": access_key,
        "StringToSign": text,
        "SignatureProvided": provided,
        "StringToSignBytes": text.encode().hex(" "),
    }
    if canonical is not None:
        details["CanonicalRequest"] = canonical.decode("utf-8", "replace")
        details["CanonicalRequestBytes"] = canonical.hex(" ")
    return S3Error("SignatureDoesNotMatch", details=details)
