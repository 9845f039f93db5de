"""Requests that no client would send: a well-formed answer or a clean close, never a 500, and nothing in the log."""

import socket
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from s3verbs.gateway.error_codes import ERROR_CODES
from tests.integration.endpoint import BUCKET, Endpoint, Wire, run
from tests.robustness.server_load import Value, begin_upload, continue_upload

EXAMPLES = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    data: Path = tmp_path_factory.mktemp("fuzz") / "data"
    options = (
        "--body-timeout",
        "1",
        "--header-timeout",
        "1",
        "--keep-alive-timeout",
        "1",
        "--domain",
        "s3.example.com",
    )
    with Endpoint(data, *options, workers=2) as running:
        workers = running.worker_pids
        with running.connect() as wire:
            assert wire.request("PUT", f"/{BUCKET}/k", b"may be replaced").status == 200
            assert wire.request("PUT", f"/{BUCKET}/kept", b"kept").status == 200
        yield running
        with running.connect() as wire:
            assert wire.request("GET", f"/{BUCKET}/kept").body == b"kept"
        assert [line for line in running.errors.splitlines() if " INFO " not in line] == []
        assert running.worker_pids == workers
        assert running.stop() == 0
        checked = run("admin", "check", "--read-payloads", "--data", str(data))
        assert checked.returncode == 0, checked.stdout
        assert checked.stdout.endswith("clean\n")


@pytest.fixture(scope="module")
def upload(endpoint: Endpoint) -> str:
    """The id of an upload that is open, with a part."""
    with endpoint.connect() as wire:
        opened = begin_upload(wire, "assembled", Value(1, (100,), multipart=True))
        assert opened is not None
        assert continue_upload(wire, opened) is None
    return opened.id


def conversation(endpoint: Endpoint, data: bytes) -> bytes:
    """All that the server says to these bytes and the end of the stream."""
    with endpoint.connect(timeout=10) as wire:
        said = b""
        try:
            wire.send(data)
            wire.sock.shutdown(socket.SHUT_WR)
            while piece := wire.sock.recv(1 << 16):
                said += piece
        except (ConnectionResetError, BrokenPipeError):
            # It need not read on after an answer that closes.
            pass
        return said


def check(said: bytes, method: str = "GET") -> list[int]:
    """The statuses of what the server said. A reset may have cut the last answer off."""
    statuses = []
    while said:
        head, end, said = said.partition(b"\r\n\r\n")
        if not end:
            break
        line, *fields = head.split(b"\r\n")
        version, status, reason = line.split(b" ", 2)
        assert version == b"HTTP/1.1"
        assert reason
        statuses.append(int(status))
        assert statuses[-1] != 500, head
        if status == b"100":
            assert not fields
            continue
        headers = {}
        for field in fields:
            name, colon, value = field.partition(b": ")
            assert colon
            assert name.replace(b"-", b"").isalnum()
            assert not any(byte < 32 or byte == 127 for byte in value), head
            assert name.lower() not in headers, head
            headers[name.lower()] = value
        assert headers[b"x-amz-request-id"]
        length = int(headers.get(b"content-length", b"0"))
        if (method == "HEAD" and (not said or said.startswith(b"HTTP/1.1 "))) or status in (b"204", b"304"):
            continue
        body, said = said[:length], said[length:]
        if headers.get(b"content-type") == b"application/xml" and len(body) == length and length:
            document = ET.fromstring(body)
            if document.tag == "Error":
                assert document.findtext("Code") in ERROR_CODES
    return statuses


# -- bytes --

METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "get", "M-SEARCH", "PRI")
TARGETS = (
    "/",
    "*",
    "//",
    "/b",
    "/b/",
    "/b/k",
    f"/{BUCKET}/k",
    "/b/k?uploads",
    "http://h/b/k",
    "/%",
    "/b/%00",
    "/?a&&=",
    "h:1",
)
NAMES = ("Host", "Content-Length", "Transfer-Encoding", "Connection", "Expect", "Upgrade", "Authorization", "Range")
VALUES = (
    "0",
    "5",
    "-1",
    "chunked",
    "gzip, chunked",
    "close",
    "keep-alive, upgrade",
    "upgrade",
    "websocket",
    "h2c",
    "100-continue",
    "s3.example.com",
    "a.s3.example.com",
    "bytes=0-",
    "AWS4-HMAC-SHA256 Credential=a/b/c/d/aws4_request, SignedHeaders=host, Signature=0",
    "AWS4-HMAC-SHA256 ,,,=,=",
    "AWS a:b",
)
printable = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="\x7f"), max_size=40)
lines = st.tuples(
    st.one_of(st.sampled_from(NAMES), st.from_regex(r"[!-~]{1,20}", fullmatch=True)),
    st.one_of(st.sampled_from(VALUES), printable),
).map(lambda pair: f"{pair[0]}: {pair[1]}".encode())


@st.composite
def raw_requests(draw: st.DrawFn) -> tuple[str, bytes]:
    """A request that is mostly one, with a byte or two wrong, or cut off."""
    method = draw(st.one_of(st.sampled_from(METHODS), st.from_regex(r"[!-~]{1,12}", fullmatch=True)))
    target = draw(st.one_of(st.sampled_from(TARGETS), printable.map(lambda text: "/" + text)))
    version = draw(st.sampled_from(("HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "")))
    fields = [b"Host: s3.example.com", *draw(st.lists(lines, max_size=6))]
    end = draw(st.sampled_from((b"\r\n", b"\r\n", b"\r\n", b"\n")))
    body = draw(st.one_of(st.just(b""), st.binary(max_size=60), st.just(b"5\r\nabcde\r\n0\r\n\r\n")))
    data = f"{method} {target} {version}".encode() + end + end.join(fields) + end + end + body
    if draw(st.booleans()):
        data = data[: draw(st.integers(0, len(data)))]
    if draw(st.booleans()) and data:
        at = draw(st.integers(0, len(data) - 1))
        data = data[:at] + draw(st.binary(min_size=1, max_size=3)) + data[at + 1 :]
    return method, data


@EXAMPLES
@given(request=raw_requests())
def test_bytes_that_resemble_a_request_get_an_answer_or_a_close(endpoint: Endpoint, request: tuple[str, bytes]) -> None:
    method, data = request
    check(conversation(endpoint, data), method)


@EXAMPLES
@given(data=st.lists(raw_requests().map(lambda request: request[1]), max_size=5).map(b"".join))
def test_a_stream_of_such_requests_never_brings_a_500(endpoint: Endpoint, data: bytes) -> None:
    assert b"HTTP/1.1 500" not in conversation(endpoint, data)


# -- signed: past the door --


def words(text: str) -> list[str]:
    return text.split(",")


QUERIES = words(
    "uploads,uploadId,partNumber,list-type,prefix,delimiter,max-keys,marker,continuation-token,start-after,encoding-type,"
    "fetch-owner,versionId,versions,tagging,acl,cors,policy,location,delete,select,restore,attributes,torrent,object-lock,"
    "retention,legal-hold,lifecycle,response-content-type,response-expires,response-content-disposition,key-marker,"
    "upload-id-marker,max-uploads,max-parts,part-number-marker,x-id,X-Amz-Expires,X-Amz-Signature,max-buckets"
)
HEADERS = words(
    "range,if-match,if-none-match,if-modified-since,if-unmodified-since,if-range,content-md5,content-type,content-encoding,"
    "content-disposition,content-language,cache-control,expires,x-amz-meta-a,x-amz-meta-,x-amz-copy-source,"
    "x-amz-copy-source-range,x-amz-copy-source-if-match,x-amz-copy-source-if-modified-since,x-amz-checksum-crc32,"
    "x-amz-checksum-crc64nvme,x-amz-checksum-sha256,x-amz-checksum-md5,x-amz-checksum-algorithm,x-amz-checksum-type,"
    "x-amz-checksum-mode,x-amz-sdk-checksum-algorithm,x-amz-trailer,x-amz-mp-object-size,x-amz-tagging,"
    "x-amz-tagging-directive,x-amz-metadata-directive,x-amz-storage-class,x-amz-acl,x-amz-grant-read,"
    "x-amz-server-side-encryption,x-amz-website-redirect-location,x-amz-object-lock-mode,x-amz-expected-bucket-owner,"
    "x-amz-request-payer,x-amz-date,x-amz-security-token,x-amz-rdma-token,x-rdma-info,x-amz-decoded-content-length,"
    "x-amz-object-attributes,x-amz-bucket-object-lock-enabled,x-amz-object-ownership,x-amz-write-offset-bytes,expect,"
    "x-amz-content-sha256,authorization,date,te,user-agent,origin"
)
hostile = st.one_of(
    st.sampled_from(
        (
            "",
            "0",
            "1",
            "-1",
            "10001",
            "99999999999999999999",
            "1e3",
            "*",
            '"',
            '""',
            'W/"a"',
            "bytes=-",
            "bytes=5-1",
            "bytes=0-0,2-3",
            "bytes=-0",
            "url",
            "/",
            "a=b&a=c",
            "Mon, 31 Feb 2025 00:00:00 GMT",
            "Thu, 01 Jan 9999 99:99:99 GMT",
            "=?UTF-8?B?AAAA?=",
            "CRC32",
            "COMPOSITE",
            "AAAAAA==",
            "REPLACE",
            "UNSIGNED-PAYLOAD",
            "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
            f"/{BUCKET}/k",
            f"{BUCKET}/k?versionId=null",
            "100-continue",
            "\ud7ff",
            "\U0010ffff",
        )
    ),
    printable,
    st.integers(-(1 << 65), 1 << 65).map(str),
)
keys = st.one_of(
    st.just("k"),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30).map(lambda text: "fuzz/" + text),
    st.sampled_from(
        ("/", "//", "../..", "fuzz/\0", "x" * 1025, "\u20ac" * 341, "fuzz/%", "%2F", "+", " ", "fuzz/\x7f")
    ),
)
documents = st.one_of(
    st.just(b""),
    st.binary(max_size=50),
    st.sampled_from(
        (
            b"<Delete><Object><Key>fuzz/a</Key></Object></Delete>",
            b"<Delete><Object><Key></Key></Object></Delete>",
            b"<Delete/>",
            b"<Delete><Object><Key>a</Key><VersionId>x</VersionId><ETag>y</ETag><Size>z</Size></Object></Delete>",
            b"<CompleteMultipartUpload/>",
            b"<CompleteMultipartUpload><Part><PartNumber>x</PartNumber><ETag/></Part></CompleteMultipartUpload>",
            b"<CompleteMultipartUpload><Part><PartNumber>99999999999999999999</PartNumber><ETag>a</ETag></Part>"
            b"</CompleteMultipartUpload>",
            b"<CreateBucketConfiguration><LocationConstraint>\xff</LocationConstraint></CreateBucketConfiguration>",
            b"<!DOCTYPE a [<!ENTITY b 'c'>]><Delete><Object><Key>&b;</Key></Object></Delete>",
            b"<Delete>" * 300,
            b"<?xml version='1.0' encoding='UTF-16'?><Delete/>",
            "<Delete><Object><Key>\ufffe</Key></Object></Delete>".encode(),
        )
    ),
)


LISTING = ("prefix", "delimiter", "encoding-type", "max-keys", "marker", "start-after", "continuation-token")
OBJECT, PLACE = f"/{BUCKET}/KEY", f"/{BUCKET}"
SHAPES = (
    ("GET", "/", ("max-buckets", "prefix", "continuation-token")),
    ("GET", PLACE, LISTING),
    ("GET", PLACE + "?list-type=2", (*LISTING, "fetch-owner")),
    ("GET", PLACE + "?uploads=", (*LISTING, "key-marker", "upload-id-marker", "max-uploads")),
    ("GET", PLACE + "?location=", ()),
    ("HEAD", PLACE, ()),
    ("PUT", "/fuzz-bucket", ()),
    ("DELETE", "/fuzz-bucket", ()),
    ("POST", PLACE + "?delete=", ()),
    ("GET", OBJECT, ("partNumber", "versionId", "response-expires", "response-content-disposition")),
    ("HEAD", OBJECT, ("partNumber", "versionId", "response-content-type")),
    ("PUT", OBJECT, ("x-id",)),
    ("DELETE", f"/{BUCKET}/fuzz/KEY", ("versionId",)),
    ("POST", OBJECT + "?uploads=", ()),
    ("PUT", PLACE + "/assembled?uploadId=UPLOAD&partNumber=1", ("partNumber", "x-id")),
    ("PUT", PLACE + "/assembled?uploadId=UPLOAD", ("partNumber",)),
    ("GET", PLACE + "/assembled?uploadId=UPLOAD", ("max-parts", "part-number-marker", "encoding-type")),
    ("POST", PLACE + "/assembled?uploadId=UPLOAD", ()),
    ("DELETE", OBJECT + "?uploadId=UPLOAD", ()),
    ("GET", "/KEY", QUERIES),
    ("POST", OBJECT, QUERIES),
    ("PUT", OBJECT, QUERIES),
)


@st.composite
def signed_requests(draw: st.DrawFn) -> tuple[str, str, dict[str, str], bytes]:
    """One of the operations, with parameters, headers and a document that may be anything."""
    method, path, names = draw(st.sampled_from(SHAPES))
    path = path.replace("KEY", quote(draw(keys), safe="/"))
    pairs = draw(st.lists(st.tuples(st.sampled_from(names), hostile), max_size=3)) if names else []
    if pairs:
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in pairs)
        path += ("&" if "?" in path else "?") + query
    headers = dict(draw(st.lists(st.tuples(st.sampled_from(HEADERS), hostile), max_size=4)))
    return method, path, headers, draw(documents)


@EXAMPLES
@given(request=signed_requests())
def test_signed_requests_with_hostile_values_never_bring_a_500(
    endpoint: Endpoint, upload: str, request: tuple[str, str, dict[str, str], bytes]
) -> None:
    method, path, headers, body = request
    with endpoint.connect() as wire:
        data = sign(wire, method, path.replace("UPLOAD", upload), headers, body)
    check(conversation(endpoint, data), method)


def sign(wire: Wire, method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
    """Signed with the headers as they are, but for those that signing sets itself."""
    spoiled = {name: headers[name] for name in ("authorization", "x-amz-date", "date") if name in headers}
    kept = {name: value for name, value in headers.items() if name not in spoiled}
    data = wire.signed(method, path, body, **kept)
    if not body and method in ("GET", "HEAD", "DELETE"):
        return data
    head, _, rest = data.partition(b"\r\n\r\n")
    extra = "".join(f"\r\n{name}: {value}" for name, value in spoiled.items()).encode()
    return head + extra + b"\r\n\r\n" + rest
