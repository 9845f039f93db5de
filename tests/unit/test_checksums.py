"""Claims, digests, verification and combination of checksums."""

import contextlib
import hashlib
import itertools
import zlib
from base64 import b64encode
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.gateway import checksums
from s3verbs.gateway.checksums import ALGORITHMS, Claims, Digests
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.headers import CHECKSUM_HEADERS
from s3verbs.storage.model import Checksum, InlinePayload, Part

CHECK = b"123456789"
CHECK_VALUES = {
    "CRC32": "cbf43926",
    "CRC32C": "e3069283",
    "CRC64NVME": "ae8b14860a799888",
    "SHA1": "f7c3bc1d808e04732adf679965ccc34ca7ae3441",
    "SHA256": "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
}


def b64(raw: bytes) -> str:
    return b64encode(raw).decode()


def reflected_crc(data: bytes, polynomial: int, bits: int) -> int:
    """The textbook bit-by-bit CRC, to judge the native ones by."""
    mask = (1 << bits) - 1
    crc = mask
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (polynomial if crc & 1 else 0)
    return crc ^ mask


def reference(algorithm: str, data: bytes) -> bytes:
    match algorithm:
        case "CRC32":
            return zlib.crc32(data).to_bytes(4, "big")
        case "CRC32C":
            return reflected_crc(data, 0x82F63B78, 32).to_bytes(4, "big")
        case "CRC64NVME":
            return reflected_crc(data, 0x9A6C9329AC4BC9B5, 64).to_bytes(8, "big")
        case "SHA1":
            return hashlib.sha1(data).digest()
        case _:
            return hashlib.sha256(data).digest()


def digest(algorithm: str, data: bytes) -> bytes:
    running = Digests(frozenset((algorithm,)), md5=False)
    running.update(memoryview(data))
    return running.results()[algorithm]


def refused(headers: Mapping[str, str]) -> tuple[str, str]:
    with pytest.raises(S3Error) as caught:
        Claims.from_headers(headers)
    return caught.value.code, caught.value.message


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_check_value_of_each_algorithm(algorithm: str) -> None:
    assert digest(algorithm, CHECK).hex() == CHECK_VALUES[algorithm]
    assert reference(algorithm, CHECK).hex() == CHECK_VALUES[algorithm]


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_one_pass_in_any_pieces_equals_the_reference(data: bytes, cuts: list[int]) -> None:
    running = Digests(frozenset(ALGORITHMS), md5=True)
    view = memoryview(bytearray(data))
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, stop in itertools.pairwise(edges):
        running.update(view[start:stop])
    assert running.results() == {name: reference(name, data) for name in ALGORITHMS}
    assert running.md5() == hashlib.md5(data).digest()


def test_only_what_was_asked_for_is_computed() -> None:
    running = Digests(frozenset(("CRC32C",)), md5=False)
    running.update(memoryview(CHECK))
    assert list(running.results()) == ["CRC32C"]
    assert running.md5() is None


def test_the_payload_hash_is_computed_once_and_reported() -> None:
    running = Digests(frozenset(), md5=False, sha256=True)
    running.update(memoryview(CHECK))
    assert running.results() == {"SHA256": hashlib.sha256(CHECK).digest()}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_checksum_header_is_claimed(algorithm: str) -> None:
    raw = reference(algorithm, CHECK)
    claims = Claims.from_headers({CHECKSUM_HEADERS[algorithm]: b64(raw), "x-amz-sdk-checksum-algorithm": algorithm})
    assert claims == Claims(None, {algorithm: raw}, "", algorithm)
    assert claims.algorithms == {algorithm}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_trailer_is_claimed(algorithm: str) -> None:
    claims = Claims.from_headers({"x-amz-trailer": CHECKSUM_HEADERS[algorithm]})
    assert claims == Claims(None, {}, algorithm, algorithm)
    assert claims.algorithms == {algorithm}


def test_a_request_without_checksums_claims_nothing() -> None:
    assert Claims.from_headers({"host": "h", "x-amz-checksum-mode": "ENABLED"}) == Claims()


def test_an_algorithm_alone_is_known_from_its_header() -> None:
    assert Claims.from_headers({"x-amz-checksum-algorithm": "sha256"}).algorithm == "SHA256"


def test_content_md5_is_decoded() -> None:
    raw = hashlib.md5(CHECK).digest()
    assert Claims.from_headers({"content-md5": b64(raw)}).md5 == raw


@pytest.mark.parametrize("value", ["", "not base64!", "YWJyYWNhZGFicmE=", "25f9e794323b453885f5181f1b624d0b", "\udce9"])
def test_a_content_md5_that_is_not_base64_of_16_bytes_is_an_invalid_digest(value: str) -> None:
    with pytest.raises(S3Error) as caught:
        Claims.from_headers({"content-md5": value})
    assert (caught.value.code, caught.value.details) == ("InvalidDigest", {"Content-MD5": value})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("value", ["", "AA", "!!!!", "AAAA", "bad\u00e9"])
def test_a_checksum_of_the_wrong_form_is_refused(algorithm: str, value: str) -> None:
    header = CHECKSUM_HEADERS[algorithm]
    assert refused({header: value}) == ("BadDigest", f"Value for {header} header is invalid.")


CRC32 = {"x-amz-checksum-crc32": "y/Q5Jg=="}
CRC32C = {"x-amz-checksum-crc32c": "4waSgw=="}
MULTIPLE = "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed."
ORPHAN = (
    "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer headers were found."
)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        (CRC32 | CRC32C, MULTIPLE),
        ({"x-amz-trailer": "x-amz-checksum-crc32,x-amz-checksum-sha1"}, MULTIPLE),
        (CRC32 | {"x-amz-trailer": "x-amz-checksum-crc32c"}, "Expecting a single x-amz-checksum- header"),
        ({"x-amz-checksum-md4": "AAAA"}, "The algorithm type you specified in x-amz-checksum- header is invalid."),
        ({"x-amz-trailer": "x-amz-checksum-md4"}, "The value specified in the x-amz-trailer header is not supported"),
        ({"x-amz-trailer": "x-amz-meta-a"}, "The value specified in the x-amz-trailer header is not supported"),
        ({"x-amz-trailer": ""}, "The value specified in the x-amz-trailer header is not supported"),
        ({"x-amz-sdk-checksum-algorithm": "CRC32"}, ORPHAN),
        (CRC32 | {"x-amz-sdk-checksum-algorithm": "SHA1"}, "Value for x-amz-sdk-checksum-algorithm header is invalid."),
        (CRC32 | {"x-amz-sdk-checksum-algorithm": "MD4"}, "Value for x-amz-sdk-checksum-algorithm header is invalid."),
        (
            {"x-amz-checksum-algorithm": "MD4"},
            "Checksum algorithm provided is unsupported. Please try again with any of the valid types: "
            "[CRC32, CRC32C, CRC64NVME, SHA1, SHA256]",
        ),
    ],
)
def test_contradicting_headers_are_an_invalid_request(headers: dict[str, str], message: str) -> None:
    assert refused(headers) == ("InvalidRequest", message)


@given(
    st.dictionaries(
        st.sampled_from([*CHECKSUM_HEADERS.values(), "content-md5", "x-amz-trailer", "x-amz-sdk-checksum-algorithm"]),
        st.text(max_size=50),
    )
)
def test_any_header_values_give_claims_or_an_s3_error(headers: dict[str, str]) -> None:
    with contextlib.suppress(S3Error):
        claims = Claims.from_headers(headers)
        assert set(claims.checksums) <= claims.algorithms <= set(ALGORITHMS)


def outcome(claims: Claims, trailers: Mapping[str, str] | None = None, data: bytes = CHECK) -> tuple[str, str] | None:
    running = Digests(claims.algorithms, md5=True)
    running.update(memoryview(data))
    try:
        checksums.verify(claims, running.results(), running.md5(), trailers or {})
    except S3Error as error:
        return error.code, error.message
    return None


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_header_is_verified_against_the_payload(algorithm: str) -> None:
    claims = Claims.from_headers({CHECKSUM_HEADERS[algorithm]: b64(reference(algorithm, CHECK))})
    wrong = ("BadDigest", f"The {algorithm} you specified did not match the calculated checksum.")
    assert outcome(claims) is None
    assert outcome(claims, data=b"other") == wrong


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_trailer_is_verified_against_the_payload(algorithm: str) -> None:
    header = CHECKSUM_HEADERS[algorithm]
    claims = Claims.from_headers({"x-amz-trailer": header})
    good = {header: b64(reference(algorithm, CHECK))}
    wrong = ("BadDigest", f"The {algorithm} you specified did not match the calculated checksum.")
    assert outcome(claims, good) is None
    assert outcome(claims, good, b"other") == wrong
    assert outcome(claims, {header: "AAA"}) == ("BadDigest", f"Value for {header} trailing header is invalid.")


def test_a_promised_trailer_that_does_not_come_is_malformed() -> None:
    claims = Claims.from_headers({"x-amz-trailer": "x-amz-checksum-crc32"})
    for trailers in ({}, CRC32C, CRC32 | CRC32C):
        found = outcome(claims, trailers)
        assert found is not None
        assert found[0] == "MalformedTrailerError"


def test_a_checksum_trailer_that_was_not_promised_is_malformed_and_others_are_ignored() -> None:
    found = outcome(Claims(), CRC32)
    assert found is not None
    assert found[0] == "MalformedTrailerError"
    assert outcome(Claims(), {"x-amz-trailer-signature": "00"}) is None


def test_a_wrong_content_md5_shows_both_digests() -> None:
    claims = Claims.from_headers({"content-md5": "1B2M2Y8AsgTpgAmY7PhCfg=="})
    with pytest.raises(S3Error) as caught:
        checksums.verify(claims, {}, hashlib.md5(CHECK).digest(), {})
    assert caught.value.code == "BadDigest"
    assert caught.value.message == "The Content-MD5 you specified did not match what we received."
    assert list(caught.value.details.items()) == [
        ("ExpectedDigest", "d41d8cd98f00b204e9800998ecf8427e"),
        ("CalculatedDigest", "JfnnlDI7RTiF9RgfG2JNCw=="),
    ]


def test_types_that_aws_allows_and_refuses() -> None:
    allowed = {
        ("CRC32", "COMPOSITE"),
        ("CRC32", "FULL_OBJECT"),
        ("CRC32C", "COMPOSITE"),
        ("CRC32C", "FULL_OBJECT"),
        ("CRC64NVME", "FULL_OBJECT"),
        ("SHA1", "COMPOSITE"),
        ("SHA256", "COMPOSITE"),
    }
    for algorithm in ALGORITHMS:
        checksums.check_kind(algorithm, "")
        checksums.check_kind(algorithm, checksums.default_kind(algorithm))
        for kind in ("COMPOSITE", "FULL_OBJECT"):
            if (algorithm, kind) in allowed:
                checksums.check_kind(algorithm, kind)
                continue
            with pytest.raises(S3Error) as caught:
                checksums.check_kind(algorithm, kind)
            assert caught.value.code == "InvalidRequest"
            assert caught.value.message == (
                f"The {kind} checksum type cannot be used with the {algorithm.lower()} checksum algorithm."
            )


@pytest.mark.parametrize(
    ("algorithm", "kind", "message"),
    [
        (
            "",
            "COMPOSITE",
            "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.",
        ),
        ("CRC32", "WHOLE", "Value for x-amz-checksum-type header is invalid."),
    ],
)
def test_a_type_that_stands_alone_or_is_unknown(algorithm: str, kind: str, message: str) -> None:
    with pytest.raises(S3Error) as caught:
        checksums.check_kind(algorithm, kind)
    assert (caught.value.code, caught.value.message) == ("InvalidRequest", message)


def test_the_default_types() -> None:
    assert {name: checksums.default_kind(name) for name in ALGORITHMS} == {
        "CRC32": "COMPOSITE",
        "CRC32C": "COMPOSITE",
        "CRC64NVME": "FULL_OBJECT",
        "SHA1": "COMPOSITE",
        "SHA256": "COMPOSITE",
    }


def parts_of(algorithm: str, chunks: list[bytes]) -> list[Part]:
    return [
        Part(
            number,
            InlinePayload(bytes(16), len(data), data),
            hashlib.md5(data).hexdigest(),
            0,
            checksums.full_object(algorithm, reference(algorithm, data)),
        )
        for number, data in enumerate(chunks, 1)
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=6), st.sampled_from(["CRC32", "CRC32C", "CRC64NVME"]))
def test_a_full_object_checksum_equals_that_of_the_joined_bytes(chunks: list[bytes], algorithm: str) -> None:
    combined = checksums.combine(algorithm, "FULL_OBJECT", parts_of(algorithm, chunks))
    assert combined == checksums.full_object(algorithm, reference(algorithm, b"".join(chunks)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=6), st.sampled_from(["CRC32", "CRC32C", "SHA1", "SHA256"]))
def test_a_composite_checksum_is_a_digest_of_digests(chunks: list[bytes], algorithm: str) -> None:
    combined = checksums.combine(algorithm, "COMPOSITE", parts_of(algorithm, chunks))
    digests = b"".join(reference(algorithm, data) for data in chunks)
    assert combined == Checksum(algorithm, "COMPOSITE", f"{b64(reference(algorithm, digests))}-{len(chunks)}")


def test_a_composite_value_that_amazon_s3_gave() -> None:
    values = [
        "lcKa6Boe7a167tUCN5C4OaFygGSYD8MBnBARTrdL+1w=",
        "gHjhbUT4oo2tSCtSZJdlKi+jeNXJT+VImqdPXsXvkOc=",
        "4l9PQ3zOPZ0oGFvknFX+J4zZwE4WMzO+l3r8XrbWOeM=",
    ]
    parts = [
        Part(number, InlinePayload(bytes(16), 0), "", 0, Checksum("SHA256", "FULL_OBJECT", value))
        for number, value in enumerate(values, 1)
    ]
    expected = Checksum("SHA256", "COMPOSITE", "rVWtNbadtsaKXJAcgWPWjifHzJaXde/iV4jaJAOdivc=-3")
    assert checksums.combine("SHA256", "COMPOSITE", parts) == expected


def test_an_upload_that_named_no_type_has_the_default_one() -> None:
    assert checksums.combine("CRC64NVME", "", parts_of("CRC64NVME", [b"x"])).kind == "FULL_OBJECT"
    assert checksums.combine("CRC32", "", parts_of("CRC32", [b"x"])).kind == "COMPOSITE"


def test_a_part_without_the_checksum_cannot_be_combined() -> None:
    bare = Part(1, InlinePayload(bytes(16), 1, b"x"), "", 0)
    other = parts_of("SHA1", [b"x"])[0]
    for part, actual in ((bare, "null"), (other, "sha1")):
        with pytest.raises(S3Error) as caught:
            checksums.combine("CRC32", "FULL_OBJECT", [part])
        assert caught.value.code == "InvalidRequest"
        assert caught.value.message.endswith(f"expected checksum Type: crc32, actual checksum Type: {actual}")


COMPLETED = Checksum("CRC32", "COMPOSITE", "y/Q5Jg==-2")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-amz-checksum-crc32": "y/Q5Jg==-2"},
        {"x-amz-checksum-crc32": "y/Q5Jg=="},
        {"x-amz-checksum-type": "COMPOSITE"},
    ],
)
def test_a_completed_checksum_that_agrees(headers: dict[str, str]) -> None:
    checksums.verify_object(headers, COMPLETED)


@pytest.mark.parametrize(
    ("headers", "actual", "code"),
    [
        ({"x-amz-checksum-crc32": "y/Q5Jg==-3"}, COMPLETED, "BadDigest"),
        ({"x-amz-checksum-crc32": "AAAAAA==-2"}, COMPLETED, "BadDigest"),
        ({"x-amz-checksum-crc32c": "y/Q5Jg=="}, COMPLETED, "BadDigest"),
        ({"x-amz-checksum-crc32": "y/Q5Jg=="}, None, "BadDigest"),
        ({"x-amz-checksum-crc32": "y/Q5Jg==-x"}, COMPLETED, "BadDigest"),
        ({"x-amz-checksum-crc32": "y/Q5"}, COMPLETED, "BadDigest"),
        ({"x-amz-checksum-md4": "y/Q5"}, COMPLETED, "InvalidRequest"),
        (CRC32 | CRC32C, COMPLETED, "InvalidRequest"),
        ({"x-amz-checksum-type": "FULL_OBJECT"}, COMPLETED, "InvalidRequest"),
        ({"x-amz-checksum-type": "WHOLE"}, None, "InvalidRequest"),
    ],
)
def test_a_completed_checksum_that_does_not(headers: dict[str, str], actual: Checksum | None, code: str) -> None:
    with pytest.raises(S3Error) as caught:
        checksums.verify_object(headers, actual)
    assert caught.value.code == code


def test_a_wrong_completed_checksum_names_the_algorithm_of_the_upload() -> None:
    for headers in ({"x-amz-checksum-sha1": b64(bytes(20))}, {"x-amz-checksum-crc32": "AAAAAA==-2"}):
        with pytest.raises(S3Error) as caught:
            checksums.verify_object(headers, COMPLETED)
        assert caught.value.message == "The crc32 you specified did not match the calculated checksum."
