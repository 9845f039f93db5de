"""Messages between a same-host client and the gateway."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3verbs.rdma.samehost import protocol
from s3verbs.rdma.samehost.protocol import MalformedMessage, Message, Refusal, decode, encode

serials = st.integers(0, 2**32 - 1)
words = st.integers(0, 2**64 - 1)
nonces = st.binary(min_size=16, max_size=16)
texts = st.text(max_size=100)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(protocol.Hello, serials),
    st.builds(protocol.Challenge, serials, nonces),
    st.builds(protocol.Proof, serials, nonces),
    st.builds(protocol.Session, serials, nonces, st.integers(0, 2**32 - 1)),
    st.builds(protocol.Register, serials, words, words),
    st.builds(protocol.Registered, serials, words),
    st.builds(protocol.Unregister, serials, words),
    st.builds(protocol.Unregistered, serials, words),
    st.builds(protocol.Refused, serials, st.sampled_from(Refusal), texts),
    st.builds(protocol.Ended, serials),
)


@given(messages)
def test_what_is_encoded_is_decoded(message: Message) -> None:
    packet = encode(message)
    assert len(packet) <= protocol.MAX_MESSAGE
    assert decode(packet) == message


@given(messages, st.data())
def test_a_changed_packet_is_malformed_or_another_message(message: Message, data: st.DataObject) -> None:
    packet = bytearray(encode(message))
    at = data.draw(st.integers(0, len(packet) - 1))
    packet[at] ^= data.draw(st.integers(1, 255))
    try:
        changed = decode(bytes(packet))
    except MalformedMessage:
        return
    assert changed != message
    assert encode(changed) == packet


@given(messages, st.binary(min_size=1, max_size=20))
def test_no_message_with_another_length_is_taken(message: Message, more: bytes) -> None:
    packet = encode(message)
    if not isinstance(message, protocol.Refused):
        with pytest.raises(MalformedMessage):
            decode(packet + more)
        with pytest.raises(MalformedMessage):
            decode(packet[: -len(more)])


@given(st.binary(max_size=600))
def test_any_bytes_are_a_message_or_malformed(packet: bytes) -> None:
    for begin in (b"", protocol.MAGIC + bytes((protocol.VERSION,))):
        with contextlib.suppress(MalformedMessage):
            assert encode(decode(begin + packet)) == begin + packet


def test_the_bytes_are_those_of_the_document() -> None:
    assert encode(protocol.Hello(7)) == b"S3SH\x01\x01\x00\x00\x07\x00\x00\x00"
    assert encode(protocol.Register(1, 0x1000, 0x2000)) == (
        b"S3SH\x01\x05\x00\x00\x01\x00\x00\x00" + b"\x00\x10" + bytes(6) + b"\x00\x20" + bytes(6)
    )
    assert encode(protocol.Refused(2, Refusal.FULL, "no")) == b"S3SH\x01\x09\x00\x00\x02\x00\x00\x00\x03\x00no"


def test_a_long_text_is_cut_at_a_character() -> None:
    packet = encode(protocol.Refused(0, Refusal.FULL, "x" + "€" * 300))
    refused = decode(packet)
    assert isinstance(refused, protocol.Refused)
    assert refused.text == "x" + "€" * 166


@pytest.mark.parametrize(
    "message",
    [
        protocol.Proof(0, b"short"),
        protocol.Session(0, b"", 1),
        protocol.Register(0, 1 << 64, 1),
        protocol.Register(0, -1, 1),
        protocol.Hello(1 << 32),
    ],
)
def test_what_does_not_fit_is_not_encoded(message: Message) -> None:
    with pytest.raises(ValueError, match=r"."):
        encode(message)
