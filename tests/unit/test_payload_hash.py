"""How a payload is verified, from x-amz-content-sha256."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.gateway.auth.payload_hash import ChunkSignatures, PayloadKind, parse_payload_hash, signature_mismatch
from s3verbs.gateway.errors import S3Error


@pytest.mark.parametrize(
    ("value", "kind", "streaming", "signed_chunks", "trailer"),
    [
        ("UNSIGNED-PAYLOAD", PayloadKind.UNSIGNED, False, False, False),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", PayloadKind.STREAMING_SIGNED, True, True, False),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", PayloadKind.STREAMING_SIGNED_TRAILER, True, True, True),
        ("STREAMING-UNSIGNED-PAYLOAD-TRAILER", PayloadKind.STREAMING_UNSIGNED_TRAILER, True, False, True),
    ],
)
def test_named_modes(value: str, kind: PayloadKind, streaming: bool, signed_chunks: bool, trailer: bool) -> None:
    mode = parse_payload_hash(value)
    assert (mode.kind, mode.sha256) == (kind, None)
    assert (mode.streaming, mode.signed_chunks, mode.trailer) == (streaming, signed_chunks, trailer)


@settings(max_examples=50, deadline=None)
@given(data=st.binary(max_size=20), upper=st.booleans())
def test_a_digest_is_an_exact_mode(data: bytes, upper: bool) -> None:
    digest = hashlib.sha256(data)
    mode = parse_payload_hash(digest.hexdigest().upper() if upper else digest.hexdigest())
    assert (mode.kind, mode.sha256, mode.streaming) == (PayloadKind.EXACT, digest.digest(), False)


@pytest.mark.parametrize(
    "value",
    ["", "exact", "unsigned-payload", "STREAMING", "a" * 63, "a" * 65, "g" * 64, " " * 64, "ab " * 21 + "a", "é" * 64],
)
def test_another_value_is_an_invalid_argument(value: str) -> None:
    with pytest.raises(S3Error) as error:
        parse_payload_hash(value)
    assert error.value.code == "InvalidArgument"
    assert error.value.details == {"ArgumentName": "x-amz-content-sha256", "ArgumentValue": value}


@pytest.mark.parametrize("suffix", ["", "-TRAILER"])
def test_ecdsa_streams_are_not_implemented(suffix: str) -> None:
    with pytest.raises(S3Error) as error:
        parse_payload_hash("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD" + suffix)
    assert error.value.code == "NotImplemented"


def test_a_wrong_chunk_signature_shows_what_was_signed() -> None:
    chain = ChunkSignatures(key=b"k" * 32, timestamp="T", scope="S", seed="seed", access_key="AKID")
    with pytest.raises(S3Error) as error:
        chain.check_chunk("provided", "digest")
    details = error.value.details
    assert details["AWSAccessKeyId"] == "AKID"
    assert details["SignatureProvided"] == "provided"
    assert details["StringToSign"].splitlines() == [
        "AWS4-HMAC-SHA256-PAYLOAD",
        "T",
        "S",
        "seed",
        hashlib.sha256(b"").hexdigest(),
        "digest",
    ]


def test_a_mismatch_holds_the_canonical_request_as_text_and_bytes() -> None:
    details = signature_mismatch("AKID", "é", "sig", b"GET\n/\xff").details
    assert details["StringToSignBytes"] == "c3 a9"
    assert details["CanonicalRequest"] == "GET\n/\ufffd"
    assert details["CanonicalRequestBytes"] == "47 45 54 0a 2f ff"
