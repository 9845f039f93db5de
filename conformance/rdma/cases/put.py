"""Section 4, PUT and UploadPart: the server pulls the payload from the client's memory. Needs a transport."""

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from conformance.rdma import case
from conformance.rdma.case import Case, moving
from conformance.rdma.checksums import NAMES, checksum
from conformance.rdma.expect import DECLINED, MALFORMED, NOT_SIGNED, REPLY, Expected, moved, require
from conformance.rdma.trial import CONTENT, CUOBJ, DIALECTS, Dialect, Trial
from conformance.rdma.wire import EMPTY_SHA256, Answer, Signing

_SIZES = (1, 4096, (64 << 10) + 1, 1 << 20, (3 << 20) + 5)
_PART = 5 << 20
_BAD_DIGEST = Expected(400, "BadDigest", {REPLY: None})
_FAILED = Expected(412, "PreconditionFailed", {REPLY: None})


Run = Callable[[Trial, Dialect], None]


def _stored(trial: Trial, key: str, data: bytes, answer: Answer) -> None:
    """Raises Failed unless `answer` says that `data` moved and the object is there."""
    moved(200, len(data)).check(answer)
    require("etag" in answer.headers, "an ETag", answer)
    trial.holds(key, data)


def _whole(size: int) -> Run:
    def run(trial: Trial, dialect: Dialect) -> None:
        data, key = secrets.token_bytes(size), trial.key()
        buffer = trial.buffer(size, data)
        answer = trial.send("PUT", key, headers={dialect.header: buffer.token()})
        _stored(trial, key, data, answer)
        buffer.check_untouched()
        head = trial.ok("HEAD", key).headers
        require(head.get("etag") == answer.headers["etag"], f"HEAD's ETag {answer.headers['etag']}", head.get("etag"))

    return run


def _slice(trial: Trial, dialect: Dialect) -> None:
    """Size and place of what is stored are the token's, not the registered region's."""
    data, key = secrets.token_bytes(100_000), trial.key()
    buffer = trial.buffer(len(data), data)
    answer = trial.send("PUT", key, headers={dialect.header: buffer.token(4097, 50_001)})
    _stored(trial, key, data[4097 : 4097 + 50_001], answer)


def _upper_case(trial: Trial, dialect: Dialect) -> None:
    key, buffer = trial.key(), trial.buffer(len(CONTENT), CONTENT)
    token = buffer.token()
    fields = token[:81].upper() + token[81:]
    _stored(trial, key, CONTENT, trial.send("PUT", key, headers={dialect.header: fields}))


def _metadata(trial: Trial, dialect: Dialect) -> None:
    key, buffer = trial.key(), trial.buffer(len(CONTENT), CONTENT)
    headers = {dialect.header: buffer.token(), "x-amz-meta-colour": "blue", "Content-Type": "application/x-tensor"}
    _stored(trial, key, CONTENT, trial.send("PUT", key, headers=headers))
    head = trial.ok("HEAD", key).headers
    seen = {name: head.get(name) for name in ("x-amz-meta-colour", "content-type")}
    wanted = {"x-amz-meta-colour": "blue", "content-type": "application/x-tensor"}
    require(seen == wanted, wanted, seen)


def _default_checksum(trial: Trial, dialect: Dialect) -> None:
    key, buffer = trial.key(), trial.buffer(len(CONTENT), CONTENT)
    answer = trial.send("PUT", key, headers={dialect.header: buffer.token()})
    value = checksum("x-amz-checksum-crc64nvme", CONTENT)
    moved(200, len(CONTENT), x_amz_checksum_crc64nvme=value).check(answer)


def _right_checksum(name: str) -> Run:
    def run(trial: Trial, dialect: Dialect) -> None:
        data, key = secrets.token_bytes(50_000), trial.key()
        value = checksum(name, data)
        answer = trial.send("PUT", key, headers={dialect.header: trial.buffer(len(data), data).token(), name: value})
        _stored(trial, key, data, answer)
        if name.startswith("x-amz-"):
            moved(200, len(data), **{name: value}).check(answer)

    return run


def _wrong_checksum(name: str) -> Run:
    """Nothing is stored, and an object that was there before stays as it was."""

    def run(trial: Trial, dialect: Dialect) -> None:
        data, key, old = secrets.token_bytes(50_000), trial.key(), trial.store()
        headers = {dialect.header: trial.buffer(len(data), data).token(), name: checksum(name, data[1:])}
        _BAD_DIGEST.check(trial.send("PUT", key, headers=headers))
        trial.absent(key)
        _BAD_DIGEST.check(trial.send("PUT", old, headers=headers))
        trial.holds(old, CONTENT)

    return run


def _overwrite(trial: Trial, dialect: Dialect) -> None:
    data, key = secrets.token_bytes(200_000), trial.store()
    _stored(trial, key, data, trial.send("PUT", key, headers={dialect.header: trial.buffer(len(data), data).token()}))


def _create_only(trial: Trial, dialect: Dialect) -> None:
    """If-None-Match: * stores once."""
    data, key = secrets.token_bytes(5000), trial.key()
    headers = {dialect.header: trial.buffer(len(data), data).token(), "If-None-Match": "*"}
    _stored(trial, key, data, trial.send("PUT", key, headers=headers))
    other = {**headers, dialect.header: trial.buffer(len(CONTENT), CONTENT).token()}
    _FAILED.check(trial.send("PUT", key, headers=other))
    trial.holds(key, data)


def _if_match(trial: Trial, dialect: Dialect) -> None:
    data, key = secrets.token_bytes(5000), trial.key()
    etag = trial.ok("PUT", key, body=CONTENT).headers.get("etag", "")
    token = trial.buffer(len(data), data).token()
    _FAILED.check(trial.send("PUT", key, headers={dialect.header: token, "If-Match": '"another"'}))
    trial.holds(key, CONTENT)
    _stored(trial, key, data, trial.send("PUT", key, headers={dialect.header: token, "If-Match": etag}))


def _one_of_many(trial: Trial, dialect: Dialect) -> None:
    """Eight create-only PUTs of one key at once: one is stored."""
    key = trial.key()
    tokens = [trial.buffer(9000, bytes([number]) * 9000).token() for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        answers = list(
            threads.map(
                lambda token: trial.send("PUT", key, headers={dialect.header: token, "If-None-Match": "*"}), tokens
            )
        )
    statuses = sorted(answer.status for answer in answers)
    winners = [number for number, answer in enumerate(answers) if answer.status == 200]
    others = all(answer.status in (409, 412) for answer in answers if answer.status != 200)
    require(len(winners) == 1 and others, "one 200, all others 412 or 409", statuses)
    trial.holds(key, bytes([winners[0]]) * 9000)


def _empty_sha256(trial: Trial, dialect: Dialect) -> None:
    key, headers = trial.key(), {dialect.header: trial.buffer(len(CONTENT), CONTENT).token()}
    _stored(trial, key, CONTENT, trial.send("PUT", key, headers=headers, payload_hash=EMPTY_SHA256))


def _presigned(trial: Trial, dialect: Dialect) -> None:
    key, headers = trial.key(), {dialect.header: trial.buffer(len(CONTENT), CONTENT).token()}
    _stored(trial, key, CONTENT, trial.send("PUT", key, headers=headers, signing=Signing.QUERY))


def _expect_continue(trial: Trial, dialect: Dialect) -> None:
    key = trial.key()
    headers = {dialect.header: trial.buffer(len(CONTENT), CONTENT).token(), "Expect": "100-continue"}
    _stored(trial, key, CONTENT, trial.send("PUT", key, headers=headers))


def _agents(trial: Trial, dialect: Dialect) -> None:
    key, token = trial.key(), trial.buffer(len(CONTENT), CONTENT).token()
    headers = {dialect.header: token, "x-amz-rdma-agent": "carrier-pigeon"}
    DECLINED.check(trial.send("PUT", key, headers=headers))
    trial.absent(key)
    headers["x-amz-rdma-agent"] = "cuobj"
    _stored(trial, key, CONTENT, trial.send("PUT", key, headers=headers))


def _refused(trial: Trial, dialect: Dialect) -> None:
    """What is refused with a token that goes nowhere is refused with a live one too."""
    key, token = trial.key(), trial.buffer(len(CONTENT), CONTENT).token()
    headers = {dialect.header: token}
    NOT_SIGNED.check(trial.send("PUT", key, headers=headers, unsigned={dialect.header}))
    Expected(403, "AccessDenied").check(trial.send("PUT", key, headers=headers, signing=Signing.NONE))
    MALFORMED.check(trial.send("PUT", key, headers=headers, body=CONTENT))
    MALFORMED.check(trial.send("PUT", key, headers=dict.fromkeys((each.header for each in DIALECTS), token)))
    trial.absent(key)


def _put_part(trial: Trial, dialect: Dialect, key: str, upload: str, number: int, data: bytes) -> str:
    buffer = trial.buffer(len(data), data)
    query = {"partNumber": str(number), "uploadId": upload}
    answer = trial.send("PUT", key, query=query, headers={dialect.header: buffer.token()})
    moved(200, len(data)).check(answer)
    buffer.check_untouched()
    return answer.headers.get("etag", "")


def _mixed_parts(trial: Trial, dialect: Dialect) -> None:
    """Parts by RDMA and by HTTP make one object, which is read back both ways."""
    pieces = [secrets.token_bytes(_PART), secrets.token_bytes(_PART + 3), secrets.token_bytes(_PART), b"the last one"]
    key = trial.key()
    upload = trial.upload(key)
    etags = []
    for number, data in enumerate(pieces, 1):
        if number % 2:
            query = {"partNumber": str(number), "uploadId": upload}
            etags.append(trial.ok("PUT", key, query=query, body=data).headers.get("etag", ""))
        else:
            etags.append(_put_part(trial, dialect, key, upload, number, data))
    trial.complete(key, upload, etags)
    whole = b"".join(pieces)
    trial.holds(key, whole)
    buffer = trial.buffer(len(whole))
    moved(200, len(whole)).check(trial.send("GET", key, headers={dialect.header: buffer.token()}))
    buffer.check_filled(whole)


def _part_again(trial: Trial, dialect: Dialect) -> None:
    """The last write of a part number counts."""
    key, data = trial.key(), secrets.token_bytes(70_000)
    upload = trial.upload(key)
    _put_part(trial, dialect, key, upload, 1, CONTENT)
    trial.complete(key, upload, [_put_part(trial, dialect, key, upload, 1, data)])
    trial.holds(key, data)


def _part_checksum(trial: Trial, dialect: Dialect) -> None:
    key, name = trial.key(), "x-amz-checksum-crc32"
    upload = trial.upload(key)
    query = {"partNumber": "1", "uploadId": upload}
    headers = {dialect.header: trial.buffer(len(CONTENT), CONTENT).token(), name: checksum(name, b"else")}
    _BAD_DIGEST.check(trial.send("PUT", key, query=query, headers=headers))
    trial.no_part(key, upload)
    headers[name] = checksum(name, CONTENT)
    moved(200, len(CONTENT)).check(trial.send("PUT", key, query=query, headers=headers))


def _no_such_upload(trial: Trial, dialect: Dialect) -> None:
    key, headers = trial.key(), {dialect.header: trial.buffer(len(CONTENT), CONTENT).token()}
    upload = trial.upload(key)
    trial.ok("DELETE", key, 204, query={"uploadId": upload})
    query = {"partNumber": "1", "uploadId": upload}
    Expected(404, "NoSuchUpload", {REPLY: None}).check(trial.send("PUT", key, query=query, headers=headers))


def _no_such_bucket(trial: Trial, dialect: Dialect) -> None:
    headers = {dialect.header: trial.buffer(len(CONTENT), CONTENT).token()}
    answer = trial.server.send("PUT", f"/no-such-bucket-{secrets.token_hex(8)}/key", headers=headers)
    Expected(404, "NoSuchBucket", {REPLY: None}).check(answer)


def _many(trial: Trial, dialect: Dialect) -> None:
    """32 PUTs at once, each whole and in its own place."""
    datas = [secrets.token_bytes((256 << 10) + number) for number in range(32)]
    work = [(trial.key(), data, trial.buffer(len(data), data)) for data in datas]
    with ThreadPoolExecutor(16) as threads:
        answers = list(
            threads.map(lambda each: trial.send("PUT", each[0], headers={dialect.header: each[2].token()}), work)
        )
    for (key, data, buffer), answer in zip(work, answers, strict=True):
        _stored(trial, key, data, answer)
        buffer.check_untouched()


def _cases() -> Iterator[Case]:
    for size in _SIZES:
        yield from moving(case.SUCCESS, DIALECTS, f"PUT of {size} bytes", _whole(size))
    for name in NAMES:
        yield from moving(case.SUCCESS, [CUOBJ], f"PUT, {name} right", _right_checksum(name))
        yield from moving(case.SUCCESS, [CUOBJ], f"PUT, {name} wrong", _wrong_checksum(name))
    for name, run in {
        "PUT of a slice of the region": _slice,
        "PUT, upper-case token": _upper_case,
        "PUT with metadata": _metadata,
        "PUT without a checksum answers CRC64NVME": _default_checksum,
        "PUT over an object": _overwrite,
        "PUT, If-None-Match: *": _create_only,
        "PUT, If-Match": _if_match,
        "PUT, If-None-Match: *, eight at once": _one_of_many,
        "PUT, x-amz-content-sha256 of no bytes": _empty_sha256,
        "PUT, presigned URL": _presigned,
        "PUT, Expect: 100-continue": _expect_continue,
        "PUT, agents": _agents,
        "PUT to a missing bucket": _no_such_bucket,
        "UploadPart, by RDMA and by HTTP in turn": _mixed_parts,
        "UploadPart, the same number twice": _part_again,
        "UploadPart, checksum wrong, then right": _part_checksum,
        "UploadPart to an aborted upload": _no_such_upload,
    }.items():
        yield from moving(case.SUCCESS, [CUOBJ], name, run)
    yield from moving(case.SUCCESS, DIALECTS, "PUT, refused with a live token", _refused)
    yield from moving(case.LIMITS, [CUOBJ], "32 PUTs in flight", _many)


CASES = tuple(_cases())
