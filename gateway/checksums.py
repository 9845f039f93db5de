"""S3's checksums: names, headers, what a request claims, one-pass computation, and how parts combine.

Sources: Amazon S3 User Guide, "Checking object integrity"; CRC64NVME as in the NVM Express specification. Error
messages are those that Amazon S3 answers.
"""

import hashlib
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from awscrt import checksums as crt  # type: ignore[import-untyped,unused-ignore]

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.headers import CHECKSUM_HEADERS
from s3verbs.storage.model import Checksum, Part

ALGORITHMS = ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256")

FULL_OBJECT = "FULL_OBJECT"
COMPOSITE = "COMPOSITE"

SIZES: Mapping[str, int] = {"CRC32": 4, "CRC32C": 4, "CRC64NVME": 8, "SHA1": 20, "SHA256": 32}
"""Bytes of a raw digest."""

_BY_HEADER = {header: name for name, header in CHECKSUM_HEADERS.items()}
_PREFIX = "x-amz-checksum-"
_NOT_VALUES = frozenset({"x-amz-checksum-algorithm", "x-amz-checksum-mode", "x-amz-checksum-type"})
_KINDS: Mapping[str, tuple[str, ...]] = {
    "CRC32": (COMPOSITE, FULL_OBJECT),
    "CRC32C": (COMPOSITE, FULL_OBJECT),
    "CRC64NVME": (FULL_OBJECT,),
    "SHA1": (COMPOSITE,),
    "SHA256": (COMPOSITE,),
}

_CRC: Mapping[str, Callable[[Any, int], int]] = {
    "CRC32": crt.crc32,
    "CRC32C": crt.crc32c,
    "CRC64NVME": crt.crc64nvme,
}
_CRC_COMBINE: Mapping[str, Callable[[int, int, int], int]] = {
    "CRC32": crt.combine_crc32,
    "CRC32C": crt.combine_crc32c,
    "CRC64NVME": crt.combine_crc64nvme,
}
_SHA: Mapping[str, Callable[..., Any]] = {"SHA1": hashlib.sha1, "SHA256": hashlib.sha256}


def _invalid(message: str) -> S3Error:
    return S3Error("InvalidRequest", message)


def _no_checksum(message: str) -> S3Error:
    """Of a value that is no checksum of its algorithm, and so matches no payload. Amazon S3 has the message, but
    InvalidRequest for its code, where Ceph has BadDigest as for any other value that does not match."""
    return S3Error("BadDigest", message)


def decode(algorithm: str, value: str) -> bytes | None:
    """The raw digest that `value` is the base64 of; None when it is not base64 or has the wrong length."""
    return _decode(value, SIZES[algorithm])


def _decode(value: str, size: int) -> bytes | None:
    try:
        raw = a2b_base64(value, strict_mode=True)
    except ValueError:
        return None
    return raw if len(raw) == size else None


@dataclass(frozen=True, slots=True)
class Claims:
    """What a request says about its payload. Raw digests; `trailer` is the algorithm whose value comes in the
    trailer, or ""; `algorithm` the one the request names or implies (header, trailer or sdk header), or ""."""

    md5: bytes | None = None
    checksums: Mapping[str, bytes] = field(default_factory=dict)
    trailer: str = ""
    algorithm: str = ""

    @property
    def algorithms(self) -> frozenset[str]:
        """What must be computed to verify the claims."""
        if self.trailer:
            return frozenset((self.trailer,))
        return frozenset(self.checksums)

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> "Claims":
        """Raises S3Error: InvalidDigest (bad Content-MD5), BadDigest (a value that is no checksum), InvalidRequest
        (several checksums, an unknown algorithm).

        Not for CompleteMultipartUpload, whose checksum header speaks of the object: see `verify_object`.
        """
        md5 = None
        if (sent_md5 := headers.get("content-md5")) is not None:
            md5 = _decode(sent_md5, 16)
            if md5 is None:
                raise S3Error("InvalidDigest", details={"Content-MD5": sent_md5})

        named = [name for name in headers if name.startswith(_PREFIX) and name not in _NOT_VALUES]
        if len(named) > 1:
            raise _invalid("Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.")
        trailer = _trailer(headers["x-amz-trailer"]) if "x-amz-trailer" in headers else ""
        if named and trailer:
            raise _invalid("Expecting a single x-amz-checksum- header")

        claimed = ""
        values: dict[str, bytes] = {}
        if named:
            claimed = _BY_HEADER.get(named[0], "")
            if not claimed:
                raise _invalid("The algorithm type you specified in x-amz-checksum- header is invalid.")
            raw = decode(claimed, headers[named[0]])
            if raw is None:
                raise _no_checksum(f"Value for {named[0]} header is invalid.")
            values[claimed] = raw
        claimed = claimed or trailer

        sdk = headers.get("x-amz-sdk-checksum-algorithm", "").upper()
        if sdk and not claimed:
            raise _invalid(
                "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer "
                "headers were found."
            )
        if sdk and sdk != claimed:
            raise _invalid("Value for x-amz-sdk-checksum-algorithm header is invalid.")
        return cls(md5, values, trailer, claimed or requested_algorithm(headers))


def requested_algorithm(headers: Mapping[str, str]) -> str:
    """What x-amz-checksum-algorithm asks for (CreateMultipartUpload, CopyObject), or "". Raises InvalidRequest."""
    name = headers.get("x-amz-checksum-algorithm", "").upper()
    if name and name not in SIZES:
        raise _invalid(
            "Checksum algorithm provided is unsupported. Please try again with any of the valid types: "
            "[CRC32, CRC32C, CRC64NVME, SHA1, SHA256]"
        )
    return name


def _trailer(value: str) -> str:
    names = [name for part in value.split(",") if (name := part.strip().lower())]
    if not names or any(name not in _BY_HEADER for name in names):
        raise _invalid("The value specified in the x-amz-trailer header is not supported")
    if len(names) > 1:
        raise _invalid("Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.")
    return _BY_HEADER[names[0]]


class Digests:
    """Running digests of one payload. `update` is native code and releases the GIL where the library does.

    `algorithms` are names of ALGORITHMS; `md5` adds the MD5 for an ETag or Content-MD5, `sha256` the SHA256 of
    x-amz-content-sha256, which `results` then holds as well. Not for use by two threads at once.
    """

    __slots__ = ("_crcs", "_hashes", "_md5")

    def __init__(self, algorithms: frozenset[str], *, md5: bool, sha256: bool = False) -> None:
        wanted = algorithms | {"SHA256"} if sha256 else algorithms
        self._crcs = {name: 0 for name in ALGORITHMS if name in wanted and name in _CRC}
        self._hashes = {
            name: _SHA[name](usedforsecurity=False) for name in ALGORITHMS if name in wanted and name in _SHA
        }
        self._md5 = hashlib.md5(usedforsecurity=False) if md5 else None

    def update(self, chunk: memoryview) -> None:
        """Add the bytes of `chunk`, which is only read and only during the call."""
        crcs = self._crcs
        for name, value in crcs.items():
            crcs[name] = _CRC[name](chunk, value)
        for digest in self._hashes.values():
            digest.update(chunk)
        if self._md5 is not None:
            self._md5.update(chunk)

    def md5(self) -> bytes | None:
        return self._md5.digest() if self._md5 is not None else None

    def results(self) -> dict[str, bytes]:
        """Raw digest by algorithm name."""
        found = {name: value.to_bytes(SIZES[name], "big") for name, value in self._crcs.items()}
        for name, digest in self._hashes.items():
            found[name] = digest.digest()
        return found


def verify(claims: Claims, digests: Mapping[str, bytes], md5: bytes | None, trailers: Mapping[str, str]) -> None:
    """Compare what a request claimed with what was computed; `digests` must hold `claims.algorithms`, `md5` be set
    when `claims.md5` is.

    Raises S3Error: BadDigest (a difference, or a trailer's value that is no such checksum), MalformedTrailerError (the
    promised trailer is absent, or another checksum came).
    """
    if claims.md5 is not None and claims.md5 != md5:
        raise S3Error(
            "BadDigest",
            "The Content-MD5 you specified did not match what we received.",
            # Amazon S3 shows what the client sent in hex and what it computed in base64.
            details={"ExpectedDigest": claims.md5.hex(), "CalculatedDigest": _b64(md5 or b"")},
        )
    expected = claims.checksums
    promised = CHECKSUM_HEADERS[claims.trailer] if claims.trailer else ""
    for name in trailers:
        if name.startswith(_PREFIX) and name != promised:
            raise S3Error("MalformedTrailerError")
    if promised:
        if promised not in trailers:
            raise S3Error("MalformedTrailerError")
        raw = decode(claims.trailer, trailers[promised])
        if raw is None:
            raise _no_checksum(f"Value for {promised} trailing header is invalid.")
        expected = {claims.trailer: raw}
    for algorithm, claimed in expected.items():
        if digests[algorithm] != claimed:
            raise _bad_digest(algorithm)


def _bad_digest(algorithm: str) -> S3Error:
    return S3Error("BadDigest", f"The {algorithm} you specified did not match the calculated checksum.")


def _b64(raw: bytes) -> str:
    return b64encode(raw).decode("ascii")


def full_object(algorithm: str, digest: bytes) -> Checksum:
    return Checksum(algorithm, FULL_OBJECT, _b64(digest))


def default_kind(algorithm: str) -> str:
    """The checksum type of a multipart upload that names only an algorithm: CRC64NVME is FULL_OBJECT, the others
    COMPOSITE."""
    return _KINDS[algorithm][0]


def check_kind(algorithm: str, kind: str) -> None:
    """Judge x-amz-checksum-algorithm and x-amz-checksum-type together; "" stands for an absent header.

    Raises S3Error InvalidRequest where AWS does not allow the type for the algorithm, for a type without an
    algorithm, and for an unknown type.
    """
    if not kind:
        return
    if kind not in (FULL_OBJECT, COMPOSITE):
        raise _invalid("Value for x-amz-checksum-type header is invalid.")
    if not algorithm:
        raise _invalid("The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.")
    if kind not in _KINDS[algorithm]:
        raise _invalid(f"The {kind} checksum type cannot be used with the {algorithm.lower()} checksum algorithm.")


def combine(algorithm: str, kind: str, parts: Sequence[Part]) -> Checksum:
    """The checksum of a completed upload from its parts' checksums, by CRC combination or as a digest of digests.

    `parts` are in order and not empty; "" is the algorithm's default type. Raises S3Error InvalidRequest when a part
    has no checksum of the algorithm or the type is not allowed for it.
    """
    kind = kind or default_kind(algorithm)
    check_kind(algorithm, kind)
    digests = [_part_digest(algorithm, part) for part in parts]
    if kind == COMPOSITE:
        whole = Digests(frozenset((algorithm,)), md5=False)
        whole.update(memoryview(b"".join(digests)))
        return Checksum(algorithm, COMPOSITE, f"{_b64(whole.results()[algorithm])}-{len(parts)}")
    join = _CRC_COMBINE[algorithm]
    value = 0
    for part, digest in zip(parts, digests, strict=True):
        value = join(value, int.from_bytes(digest, "big"), part.size)
    return full_object(algorithm, value.to_bytes(SIZES[algorithm], "big"))


def _part_digest(algorithm: str, part: Part) -> bytes:
    actual = part.checksum.algorithm if part.checksum is not None else "null"
    raw = decode(algorithm, part.checksum.value) if part.checksum is not None and actual == algorithm else None
    if raw is None:
        raise _invalid(
            f"Checksum Type mismatch occurred, expected checksum Type: {algorithm.lower()}, "
            f"actual checksum Type: {actual.lower()}"
        )
    return raw


def verify_object(headers: Mapping[str, str], actual: Checksum | None) -> None:
    """Compare the checksum headers of a CompleteMultipartUpload request with the completed object's checksum.

    Composite values may come with or without their `-N` suffix. Raises S3Error: InvalidRequest (several headers, an
    unknown algorithm, another type than the upload's), BadDigest (a difference, or a value that is no checksum).
    """
    named = [name for name in headers if name.startswith(_PREFIX) and name not in _NOT_VALUES]
    if len(named) > 1:
        raise _invalid("Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.")
    kind = headers.get("x-amz-checksum-type", "")
    if kind and kind not in (FULL_OBJECT, COMPOSITE):
        raise _invalid("Value for x-amz-checksum-type header is invalid.")
    if kind and actual is not None and kind != actual.kind:
        raise _invalid(
            f"The upload was created using the {actual.kind} checksum mode. "
            "The complete request must use the same checksum mode."
        )
    if not named:
        return
    algorithm = _BY_HEADER.get(named[0], "")
    if not algorithm:
        raise _invalid("The algorithm type you specified in x-amz-checksum- header is invalid.")
    value, _, count = headers[named[0]].partition("-")
    if decode(algorithm, value) is None or (count and not count.isdecimal()):
        raise _no_checksum(f"Value for {named[0]} header is invalid.")
    # Amazon S3 names the upload's algorithm here, whichever was sent, and in lower case.
    mismatch = _bad_digest((actual.algorithm if actual is not None else algorithm).lower())
    if actual is None or actual.algorithm != algorithm:
        raise mismatch
    expected, _, parts = actual.value.partition("-")
    if value != expected or (count and count != parts):
        raise mismatch
