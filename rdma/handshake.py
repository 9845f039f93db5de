"""What the two ends of a reliable connection say to each other in rdma_cm's private data. Pure.

Source: docs/wire-format.md, the RC extension. The server connects and shows the nonce that it got in a token; the
client answers with a proof that it knows it too. So a stolen rkey is of no use, and no stranger's service is spoken to.
"""

import hmac

NONCE_SIZE = 16
PROOF_SIZE = 16

_MAGIC = b"S3RV\x01"
"""Protocol and version."""


def request(nonce: bytes) -> bytes:
    """The private data of a connect request."""
    return _MAGIC + nonce


def reply(nonce: bytes) -> bytes:
    """The private data of an accept."""
    return _MAGIC + hmac.digest(nonce, b"accept", "sha256")[:PROOF_SIZE]


def is_request(data: bytes, nonce: bytes) -> bool:
    """Whether a connect request shows the nonce. What follows it is padding of rdma_cm."""
    return _begins(data, request(nonce))


def is_reply(data: bytes, nonce: bytes) -> bool:
    """Whether an accept proves that the peer knows the nonce."""
    return _begins(data, reply(nonce))


def _begins(data: bytes, expected: bytes) -> bool:
    return hmac.compare_digest(data[: len(expected)], expected)
