"""S3's checksums: names, headers, what a request claims, one-pass computation, and how parts combine.

Sources: Amazon S3 User Guide, "Checking object integrity"; CRC64NVME as in the NVM Express specification.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from s3verbs.storage.model import Checksum, Part

ALGORITHMS = ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256")


@dataclass(frozen=True, slots=True)
class Claims:
    """What a request says about its payload. Raw digests; `trailer` is the algorithm whose value comes in the
    trailer, or ""; `algorithm` the one the request names or implies (header, trailer or sdk header), or ""."""

    md5: bytes | None = None
    checksums: Mapping[str, bytes] = field(default_factory=dict)
    trailer: str = ""
    algorithm: str = ""

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> "Claims":
        """Raises S3Error: InvalidDigest (bad Content-MD5), InvalidRequest (bad or several checksums)."""
        ...


class Digests:
    """Running digests of one payload. `update` is native code and releases the GIL where the library does."""

    def __init__(self, algorithms: frozenset[str], *, md5: bool, sha256: bool = False) -> None: ...

    def update(self, chunk: memoryview) -> None: ...

    def md5(self) -> bytes | None: ...

    def results(self) -> dict[str, bytes]:
        """Raw digest by algorithm name."""
        ...


def full_object(algorithm: str, digest: bytes) -> Checksum: ...


def default_kind(algorithm: str) -> str:
    """The checksum type of a multipart upload that names only an algorithm: CRC64NVME is FULL_OBJECT, others COMPOSITE."""
    ...


def check_kind(algorithm: str, kind: str) -> None:
    """Raises S3Error InvalidRequest where AWS does not allow the type for the algorithm."""
    ...


def combine(algorithm: str, kind: str, parts: Sequence[Part]) -> Checksum:
    """The checksum of a completed upload from its parts' checksums, by CRC combination or as a digest of digests."""
    ...
