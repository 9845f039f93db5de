"""Signature Version 4, by Amazon's published examples (credentials and dates are theirs)."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.gateway.auth import sigv4
from s3verbs.gateway.http.target import parse_query

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
TIMESTAMP = "20130524T000000Z"
SCOPE = "20130524/us-east-1/s3/aws4_request"
HOST = "examplebucket.s3.amazonaws.com"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def signature(method: str, path: str, query: str, headers: dict[str, str], payload_hash: str) -> str:
    canonical = sigv4.canonical_request(
        method, path, sigv4.canonical_query(parse_query(query)), headers, sorted(headers), payload_hash
    )
    key = sigv4.signing_key(SECRET, "20130524", "us-east-1")
    return sigv4.sign(key, sigv4.string_to_sign(TIMESTAMP, SCOPE, canonical))


@pytest.mark.parametrize(
    ("method", "path", "query", "headers", "payload_hash", "expected"),
    [
        (
            "GET",
            "/test.txt",
            "",
            {"host": HOST, "range": "bytes=0-9", "x-amz-content-sha256": EMPTY, "x-amz-date": TIMESTAMP},
            EMPTY,
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "PUT",
            "/test%24file.text",
            "",
            {
                "date": "Fri, 24 May 2013 00:00:00 GMT",
                "host": HOST,
                "x-amz-content-sha256": hashlib.sha256(b"Welcome to Amazon S3.").hexdigest(),
                "x-amz-date": TIMESTAMP,
                "x-amz-storage-class": "REDUCED_REDUNDANCY",
            },
            "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        (
            "GET",
            "/",
            "lifecycle",
            {"host": HOST, "x-amz-content-sha256": EMPTY, "x-amz-date": TIMESTAMP},
            EMPTY,
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            "GET",
            "/",
            "prefix=J&max-keys=2",
            {"host": HOST, "x-amz-content-sha256": EMPTY, "x-amz-date": TIMESTAMP},
            EMPTY,
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
        (
            "PUT",
            "/examplebucket/chunkObject.txt",
            "",
            {
                "content-encoding": "aws-chunked",
                "content-length": "66824",
                "host": "s3.amazonaws.com",
                "x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
                "x-amz-date": TIMESTAMP,
                "x-amz-decoded-content-length": "66560",
                "x-amz-storage-class": "REDUCED_REDUNDANCY",
            },
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
            "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
        ),
        (
            "PUT",
            "/examplebucket/chunkObject.txt",
            "",
            {
                "content-encoding": "aws-chunked",
                "host": "s3.amazonaws.com",
                "x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
                "x-amz-date": TIMESTAMP,
                "x-amz-decoded-content-length": "66560",
                "x-amz-storage-class": "REDUCED_REDUNDANCY",
                "x-amz-trailer": "x-amz-checksum-crc32c",
            },
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
            "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
        ),
    ],
)
def test_published_examples(
    method: str, path: str, query: str, headers: dict[str, str], payload_hash: str, expected: str
) -> None:
    assert signature(method, path, query, headers, payload_hash) == expected


def test_the_published_presigned_example() -> None:
    query = (
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
        "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
    )
    found = signature("GET", "/test.txt", query, {"host": HOST}, "UNSIGNED-PAYLOAD")
    assert found == "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"


def test_a_canonical_query_is_sorted_by_encoded_name_and_value() -> None:
    pairs = (("b", "2"), ("a", "2"), ("a", "1"), ("A", ""), ("a b", "é~"), ("X-Amz-Signature", "s"))
    assert sigv4.canonical_query(pairs, without="X-Amz-Signature") == "A=&a=1&a=2&a%20b=%C3%A9~&b=2"
    assert sigv4.canonical_query(()) == ""


def test_header_values_are_trimmed_of_repeated_white_space_and_absent_ones_are_empty() -> None:
    canonical = sigv4.canonical_request(
        "GET", "/", "", {"a": "b  c", "b": "d\te", "host": "h"}, ("a", "b", "host", "zz"), "UNSIGNED-PAYLOAD"
    )
    assert canonical == b"GET\n/\n\na:b c\nb:d e\nhost:h\nzz:\n\na;b;host;zz\nUNSIGNED-PAYLOAD"


def test_header_bytes_are_signed_as_they_came() -> None:
    canonical = sigv4.canonical_request("GET", "/", "", {"a": "é\udce9"}, ("a",), "x")
    assert b"a:\xc3\xa9\xe9\n" in canonical


@settings(max_examples=100, deadline=None)
@given(st.text(), st.text(st.characters(codec="ascii"), max_size=64))
def test_equal_takes_any_text(provided: str, computed: str) -> None:
    assert sigv4.equal(computed, provided) == (computed == provided)
    assert sigv4.equal(computed, computed)
