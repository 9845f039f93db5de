"""Section 3: signed headers, two tokens at once, payload declarations, bodies, the agent, and who ignores a token."""

from collections.abc import Callable, Iterator
from typing import Any

from conformance.rdma import case
from conformance.rdma.case import Case, declined, one_request
from conformance.rdma.expect import BYTES_TRANSFERRED, MALFORMED, NOT_SIGNED, REPLY, Expected, require
from conformance.rdma.token import unroutable
from conformance.rdma.trial import CONTENT, CUOBJ, DIALECTS, NIXL, Dialect, Operation, Trial
from conformance.rdma.wire import EMPTY_SHA256, STREAMING_SIGNED, STREAMING_UNSIGNED, UNSIGNED_PAYLOAD, Answer, Signing

_TOKEN = unroutable()[""]
_WRITES = (Operation.PUT, Operation.PART)
_ANONYMOUS = Expected(403, "AccessDenied", {REPLY: None}, why="no RDMA without a signature")
_CHUNKED = {"Content-Encoding": "aws-chunked", "x-amz-decoded-content-length": "4"}


def _signing(dialect: Dialect, operation: Operation) -> Iterator[Case]:
    token = {dialect.header: _TOKEN}
    unsigned = frozenset({dialect.header})

    def row(name: str, expected: Expected, **options: Any) -> Case:
        return one_request(case.HEADERS, name, dialect, operation, token, expected, **options)

    yield row("token not signed", NOT_SIGNED, unsigned=unsigned)
    yield row("token not signed, presigned URL", NOT_SIGNED, unsigned=unsigned, signing=Signing.QUERY)
    yield row("token signed, presigned URL", declined(dialect, operation), signing=Signing.QUERY)
    yield row("anonymous", _ANONYMOUS, signing=Signing.NONE)
    for form in (UNSIGNED_PAYLOAD, EMPTY_SHA256):
        name = "x-amz-content-sha256 " + (form if form == UNSIGNED_PAYLOAD else "of no bytes")
        yield row(name, declined(dialect, operation), payload_hash=form)


def _agents(dialect: Dialect, operation: Operation) -> Iterator[Case]:
    for agent in ("cuobj", "carrier-pigeon"):
        headers = {dialect.header: _TOKEN, "x-amz-rdma-agent": agent}
        expected = declined(dialect, operation)
        yield one_request(case.HEADERS, f"agent {agent}", dialect, operation, headers, expected)


def _bodies(dialect: Dialect, operation: Operation) -> Iterator[Case]:
    token = {dialect.header: _TOKEN}

    def row(name: str, body: bytes, headers: dict[str, str], **options: Any) -> Case:
        return one_request(case.HEADERS, name, dialect, operation, headers, MALFORMED, body=body, **options)

    yield row("a body", b"x" * 100, token)
    yield row("a body, Transfer-Encoding: chunked", b"x" * 100, token, chunked=True)
    yield row(
        "aws-chunked, unsigned", b"4\r\nabcd\r\n0\r\n\r\n", {**token, **_CHUNKED}, payload_hash=STREAMING_UNSIGNED
    )
    signature = b";chunk-signature=" + b"0" * 64
    stream = b"4" + signature + b"\r\nabcd\r\n0" + signature + b"\r\n\r\n"
    yield row("aws-chunked, signed", stream, {**token, **_CHUNKED}, payload_hash=STREAMING_SIGNED)
    empty = {**_CHUNKED, "x-amz-decoded-content-length": "0"}
    yield row("aws-chunked stream of no bytes", b"0\r\n\r\n", {**token, **empty}, payload_hash=STREAMING_UNSIGNED)


def _ordinary(answer: Answer, status: int) -> None:
    Expected(status, headers={REPLY: None, BYTES_TRANSFERRED: None}, why="the token is ignored").check(answer)


def _head(trial: Trial, headers: dict[str, str]) -> None:
    answer = trial.send("HEAD", trial.store(), headers=headers)
    _ordinary(answer, 200)
    length = answer.headers.get("content-length")
    require(length == str(len(CONTENT)), f"content-length: {len(CONTENT)}", f"content-length: {length}")


def _head_of_nothing(trial: Trial, headers: dict[str, str]) -> None:
    _ordinary(trial.send("HEAD", trial.key(), headers=headers), 404)


def _delete(trial: Trial, headers: dict[str, str]) -> None:
    key = trial.store()
    _ordinary(trial.send("DELETE", key, headers=headers), 204)
    trial.absent(key)


def _list(trial: Trial, headers: dict[str, str]) -> None:
    key = trial.store()
    answer = trial.send("GET", query={"list-type": "2", "prefix": key}, headers=headers)
    _ordinary(answer, 200)
    require(key.encode() in answer.body, "the key in the listing", f"a document of {len(answer.body)} bytes without it")


def _head_bucket(trial: Trial, headers: dict[str, str]) -> None:
    _ordinary(trial.send("HEAD", headers=headers), 200)


def _copy(trial: Trial, headers: dict[str, str]) -> None:
    source, key = trial.store(), trial.key()
    _ordinary(trial.send("PUT", key, headers={**headers, "x-amz-copy-source": f"/{trial.bucket}/{source}"}), 200)
    trial.holds(key, CONTENT)


def _copy_part(trial: Trial, headers: dict[str, str]) -> None:
    source, key = trial.store(), trial.key()
    query = {"partNumber": "1", "uploadId": trial.upload(key)}
    fields = {**headers, "x-amz-copy-source": f"/{trial.bucket}/{source}"}
    _ordinary(trial.send("PUT", key, query=query, headers=fields), 200)


def _multipart(trial: Trial, headers: dict[str, str]) -> None:
    """The requests around the parts: create, list, complete."""
    key = trial.key()
    upload, begun = trial.begin_upload(key, headers)
    _ordinary(begun, 200)
    query = {"uploadId": upload}
    etag = trial.ok("PUT", key, query={"partNumber": "1", **query}, body=CONTENT).headers.get("etag", "")
    _ordinary(trial.send("GET", key, query=query, headers=headers), 200)
    part = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
    document = f"<CompleteMultipartUpload>{part}</CompleteMultipartUpload>".encode()
    _ordinary(trial.send("POST", key, query=query, headers=headers, body=document), 200)
    trial.holds(key, CONTENT)


def _abort(trial: Trial, headers: dict[str, str]) -> None:
    key = trial.key()
    _ordinary(trial.send("DELETE", key, query={"uploadId": trial.upload(key)}, headers=headers), 204)


_Check = Callable[[Trial, dict[str, str]], None]

_OTHERS: dict[str, _Check] = {
    "HeadObject": _head,
    "HeadObject of a missing key": _head_of_nothing,
    "DeleteObject": _delete,
    "ListObjectsV2": _list,
    "HeadBucket": _head_bucket,
    "CopyObject": _copy,
    "UploadPartCopy": _copy_part,
    "multipart: create, list, complete": _multipart,
    "AbortMultipartUpload": _abort,
}


def _ignored(dialect: Dialect) -> Iterator[Case]:
    for word, text in (("a token", _TOKEN), ("what is no token", "token")):
        for name, check in _OTHERS.items():

            def run(trial: Trial, check: _Check = check, text: str = text) -> None:
                check(trial, {dialect.header: text})

            yield Case(case.HEADERS, f"{name} ignores {word}, {dialect.header}", run, dialect)


def _both(operation: Operation) -> Case:
    headers = {CUOBJ.header: _TOKEN, NIXL.header: _TOKEN}
    row = one_request(case.HEADERS, "both token headers", CUOBJ, operation, headers, MALFORMED)
    return Case(row.section, row.name, row.run, NIXL)


def _cases() -> Iterator[Case]:
    for dialect in DIALECTS:
        for operation in Operation:
            yield from _signing(dialect, operation)
            yield from _agents(dialect, operation)
        for operation in _WRITES:
            yield from _bodies(dialect, operation)
        headers = {dialect.header: _TOKEN}
        yield one_request(case.HEADERS, "a body", dialect, Operation.GET, headers, MALFORMED, body=b"x" * 100)
        yield from _ignored(dialect)
    for operation in Operation:
        yield _both(operation)


CASES = tuple(_cases())
