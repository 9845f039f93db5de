"""ETags of completed uploads."""

import dataclasses
import hashlib
import re

from hypothesis import given
from hypothesis import strategies as st

from s3verbs.gateway import etag
from s3verbs.storage.model import InlinePayload, Part


def part(number: int, data: bytes) -> Part:
    return Part(number, InlinePayload(bytes(16), len(data), data), hashlib.md5(data).hexdigest(), 0)


def test_an_upload_of_two_known_parts_has_the_etag_that_amazon_s3_gives() -> None:
    parts = [part(1, bytes(5 << 20)), part(2, b"")]
    digests = hashlib.md5(bytes(5 << 20)).digest() + hashlib.md5(b"").digest()
    assert etag.multipart(parts) == hashlib.md5(digests).hexdigest() + "-2"


def test_one_part_is_not_the_plain_md5() -> None:
    assert etag.multipart([part(1, b"hello")]) == "62109206880d38a4010a98e11243924a-1"


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=20))
def test_the_suffix_counts_the_parts_and_order_matters(chunks: list[bytes]) -> None:
    parts = [part(number, data) for number, data in enumerate(chunks, 1)]
    value = etag.multipart(parts)
    assert value.endswith(f"-{len(chunks)}")
    assert len(value.partition("-")[0]) == 32
    if chunks != chunks[::-1]:
        assert etag.multipart(parts[::-1]) != value


def test_a_payload_with_an_md5_has_it_as_its_etag() -> None:
    assert etag.single(hashlib.md5(b"x").digest(), b"\0" * 8, 1) == hashlib.md5(b"x").hexdigest()


def test_a_payload_without_an_md5_has_an_etag_that_cannot_be_taken_for_one() -> None:
    made = etag.single(None, bytes.fromhex("0123456789abcdef"), 4096)
    assert made == "0123456789abcdef0000000000001000-1"
    assert re.fullmatch("[0-9a-f]{32}", made) is None


def test_parts_without_md5s_combine_like_any_others() -> None:
    parts = [
        dataclasses.replace(part(number, b""), etag=f"0123456789abcdef000000000000100{number}-1") for number in (0, 1)
    ]
    joined = bytes.fromhex("0123456789abcdef00000000000010000123456789abcdef0000000000001001")
    assert etag.multipart(parts) == f"{hashlib.md5(joined).hexdigest()}-2"
