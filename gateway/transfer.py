"""The two payload loops: `ingest` (source -> storage) and `deliver` (storage -> sink).

Digests of payloads are computed only here, in one pass, on an executor thread while the next buffer fills.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from s3verbs.storage.model import Durability, Payload


class PayloadSource(Protocol):
    """Where a payload comes from: an HTTP body, an RDMA READ, another object.

    `length` is the number of payload bytes that will come (decoded, for aws-chunked). `trailers` is complete once
    `receive` has returned 0: lower-case names.
    """

    length: int
    trailers: Mapping[str, str]

    async def receive(self, into: memoryview) -> int:
        """Fill some of `into`; the count of bytes, 0 at the end. Raises S3Error on a malformed, short or
        wrongly signed stream; after that the source is dead."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """A payload that is in storage but not yet published: the caller owns it and must publish or reclaim it.

    `md5` is the raw MD5 of the bytes, or None where it was not asked for; `digests` maps S3 algorithm names to raw
    digests (big-endian for CRCs) and holds all that were asked for, CRC64NVME always.
    """

    length: int
    payload: Payload
    md5: bytes | None
    digests: Mapping[str, bytes]
    trailers: Mapping[str, str]


class Ingest(Protocol):
    """Read the request's payload into storage. Bound to a request by `datapath`."""

    async def __call__(self, *, algorithms: frozenset[str] = frozenset(), md5: bool = True, durability: Durability = Durability.STRICT, source: PayloadSource | None = None, limit: int = 5 << 30) -> Ingested:
        """`source` replaces the request's own body (CopyObject, UploadPartCopy).

        Verified before it returns, for the request's own body: the length, Content-MD5, x-amz-checksum-* by header and
        by trailer, x-amz-content-sha256. Raises S3Error (BadDigest, EntityTooLarge, IncompleteBody, InvalidDigest,
        MissingContentLength, XAmzContentSHA256Mismatch, InsufficientStorage, ...); nothing is kept then.
        """
