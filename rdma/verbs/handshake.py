"""The private data of an RC connection: each side shows the other that it knows the nonce of the token. Pure.

    request   S3RV | version 1 | nonce, 16 bytes
    accept    S3RV | version 1 | HMAC-SHA-256(nonce, "accept"), first 16 bytes

Source: docs/wire-format.md. What a peer sends may be followed by zeros: rdma_cm pads private data.
"""

import hmac

NONCE_LENGTH = 16
_HEAD = b"S3RV\x01"
_LENGTH = len(_HEAD) + NONCE_LENGTH


def request(nonce: bytes) -> bytes:
    """Private data of the connect request. Raises ValueError when the nonce is not 16 bytes."""
    if len(nonce) != NONCE_LENGTH:
        raise ValueError("a nonce is 16 bytes")
    return _HEAD + nonce


def asks_for(private_data: bytes, nonce: bytes) -> bool:
    """Whether a connect request is from someone who has a token with this nonce. Constant time."""
    return hmac.compare_digest(private_data[:_LENGTH], request(nonce))


def answer(nonce: bytes) -> bytes:
    """Private data of the accept."""
    return _HEAD + hmac.digest(nonce, b"accept", "sha256")[:16]


def proves(private_data: bytes, nonce: bytes) -> bool:
    """Whether an accept is from the listener that made up the nonce. Constant time."""
    return hmac.compare_digest(private_data[:_LENGTH], answer(nonce))
