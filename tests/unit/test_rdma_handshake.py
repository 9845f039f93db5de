"""Private data of RC connections."""

import hashlib
import hmac

from hypothesis import given
from hypothesis import strategies as st

from s3verbs.rdma import handshake

nonces = st.binary(min_size=16, max_size=16)


def test_wire_form() -> None:
    nonce = bytes(range(16))
    assert handshake.request(nonce) == b"S3RV\x01" + nonce
    assert handshake.reply(nonce) == b"S3RV\x01" + hmac.new(nonce, b"accept", hashlib.sha256).digest()[:16]


@given(nonces, st.integers(0, 200))
def test_each_side_recognizes_the_other_through_padding(nonce: bytes, zeros: int) -> None:
    assert handshake.is_request(handshake.request(nonce) + bytes(zeros), nonce)
    assert handshake.is_reply(handshake.reply(nonce) + bytes(zeros), nonce)


@given(nonces, st.binary(max_size=60))
def test_anything_else_is_refused(nonce: bytes, data: bytes) -> None:
    assert handshake.is_request(data, nonce) == (data[:21] == handshake.request(nonce))
    assert handshake.is_reply(data, nonce) == (data[:21] == handshake.reply(nonce))


@given(nonces, st.integers(0, 20), st.integers(1, 255))
def test_one_wrong_byte_is_refused(nonce: bytes, position: int, flip: int) -> None:
    for data, accepts in (
        (handshake.request(nonce), handshake.is_request),
        (handshake.reply(nonce), handshake.is_reply),
    ):
        wrong = bytearray(data)
        wrong[position] ^= flip
        assert not accepts(bytes(wrong), nonce)


@given(nonces)
def test_an_echo_is_no_proof(nonce: bytes) -> None:
    assert not handshake.is_reply(handshake.request(nonce), nonce)
