"""Section 4, GET: the server writes the object into the client's memory. Needs a transport."""

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from conformance.rdma import case
from conformance.rdma.case import Case, moving
from conformance.rdma.expect import DECLINED, MALFORMED, NOT_SIGNED, REPLY, Expected, moved, served_over_http
from conformance.rdma.trial import CONTENT, CUOBJ, DIALECTS, Dialect, Trial
from conformance.rdma.wire import Signing

_SIZES = (1, 4096, (64 << 10) + 1, 1 << 20, (3 << 20) + 5)
_TOO_LARGE = Expected(400, "InvalidArgument", {REPLY: None}, why="the selected range is larger than the token's size")

Run = Callable[[Trial, Dialect], None]


def _whole(size: int) -> Run:
    def run(trial: Trial, dialect: Dialect) -> None:
        data = secrets.token_bytes(size)
        key, buffer = trial.key(), trial.buffer(size)
        etag = trial.ok("PUT", key, body=data).headers.get("etag", "")
        answer = trial.send("GET", key, headers={dialect.header: buffer.token()})
        moved(200, size, etag=etag).check(answer)
        buffer.check_filled(data)

    return run


def _roomy(trial: Trial, dialect: Dialect) -> None:
    """A token larger than the object: only the object's bytes change."""
    key, buffer = trial.store(), trial.buffer(3 * len(CONTENT))
    moved(200, len(CONTENT)).check(trial.send("GET", key, headers={dialect.header: buffer.token(1001)}))
    buffer.check_filled(CONTENT, 1001)


def _range(name: str, first: int, last: int) -> Run:
    """`name` is the Range header of the bytes from `first` to `last`."""

    def run(trial: Trial, dialect: Dialect) -> None:
        length = last - first + 1
        key, buffer = trial.store(), trial.buffer(length)
        answer = trial.send("GET", key, headers={dialect.header: buffer.token(), "Range": name})
        moved(206, length, content_range=f"bytes {first}-{last}/{len(CONTENT)}").check(answer)
        buffer.check_filled(CONTENT[first : last + 1])

    return run


def _range_of_large(trial: Trial, dialect: Dialect) -> None:
    """Ranges that are aligned to nothing, put together again."""
    data = secrets.token_bytes((5 << 20) + 77)
    key, buffer = trial.store(data), trial.buffer(len(data))
    step = (1 << 20) + 4099
    for first in range(0, len(data), step):
        length = min(step, len(data) - first)
        headers = {dialect.header: buffer.token(first, length), "Range": f"bytes={first}-{first + length - 1}"}
        moved(206, length).check(trial.send("GET", key, headers=headers))
    buffer.check_filled(data)


def _parts(trial: Trial, dialect: Dialect) -> None:
    pieces = [secrets.token_bytes(5 << 20), secrets.token_bytes(12_345)]
    key = trial.key()
    upload = trial.upload(key)
    etags = [
        trial.ok("PUT", key, query={"partNumber": str(number), "uploadId": upload}, body=data).headers.get("etag", "")
        for number, data in enumerate(pieces, 1)
    ]
    trial.complete(key, upload, etags)
    total = sum(map(len, pieces))
    for number, data in enumerate(pieces, 1):
        buffer = trial.buffer(len(data))
        first = 0 if number == 1 else len(pieces[0])
        answer = trial.send("GET", key, query={"partNumber": str(number)}, headers={dialect.header: buffer.token()})
        content_range = f"bytes {first}-{first + len(data) - 1}/{total}"
        moved(206, len(data), content_range=content_range, x_amz_mp_parts_count="2").check(answer)
        buffer.check_filled(data)
    buffer = trial.buffer(200_000)
    first = len(pieces[0]) - 190_000
    headers = {dialect.header: buffer.token(), "Range": f"bytes={first}-{first + 199_999}"}
    moved(206, 200_000).check(trial.send("GET", key, headers=headers))
    buffer.check_filled(b"".join(pieces)[first : first + 200_000])


def _conditions(trial: Trial, dialect: Dialect) -> None:
    """Decided before a byte moves."""
    key, buffer = trial.key(), trial.buffer(len(CONTENT))
    etag = trial.ok("PUT", key, body=CONTENT).headers.get("etag", "")
    token = {dialect.header: buffer.token()}
    Expected(304, headers={REPLY: None}, body=b"").check(
        trial.send("GET", key, headers={**token, "If-None-Match": etag})
    )
    Expected(412, "PreconditionFailed", {REPLY: None}).check(
        trial.send("GET", key, headers={**token, "If-Match": '"another"'})
    )
    buffer.check_untouched()
    moved(200, len(CONTENT)).check(trial.send("GET", key, headers={**token, "If-Match": etag}))
    buffer.check_filled(CONTENT)


def _too_large(trial: Trial, dialect: Dialect) -> None:
    key, buffer = trial.store(), trial.buffer(len(CONTENT))
    token = {dialect.header: buffer.token(0, len(CONTENT) - 1)}
    _TOO_LARGE.check(trial.send("GET", key, headers=token))
    _TOO_LARGE.check(trial.send("GET", key, query={"partNumber": "1"}, headers=token))
    small = {dialect.header: buffer.token(0, 10)}
    _TOO_LARGE.check(trial.send("GET", key, headers={**small, "Range": "bytes=5-15"}))
    buffer.check_untouched()
    moved(206, 10).check(trial.send("GET", key, headers={**small, "Range": "bytes=5-14"}))
    buffer.check_filled(CONTENT[5:15])


def _empty(trial: Trial, dialect: Dialect) -> None:
    key, buffer = trial.store(b""), trial.buffer(100)
    moved(200, 0).check(trial.send("GET", key, headers={dialect.header: buffer.token()}))
    buffer.check_untouched()


def _nothing_to_send(trial: Trial, dialect: Dialect) -> None:
    key, buffer = trial.store(), trial.buffer(len(CONTENT))
    token = {dialect.header: buffer.token()}
    Expected(404, "NoSuchKey", {REPLY: None}).check(trial.send("GET", trial.key(), headers=token))
    Expected(416, "InvalidRange", {REPLY: None}).check(
        trial.send("GET", key, headers={**token, "Range": f"bytes={len(CONTENT)}-"})
    )
    buffer.check_untouched()


def _headers(trial: Trial, dialect: Dialect) -> None:
    """What an ordinary GET returns, a GET by RDMA returns too."""
    key = trial.store(x_amz_meta_colour="blue", content_type="application/x-tensor")
    buffer = trial.buffer(len(CONTENT))
    mode = {"x-amz-checksum-mode": "ENABLED"}
    ordinary = trial.ok("GET", key, headers=mode).headers
    answer = trial.send("GET", key, headers={**mode, dialect.header: buffer.token()})
    wanted = ("etag", "last-modified", "content-type", "x-amz-meta-colour", "accept-ranges", "x-amz-version-id")
    same = {
        name.replace("-", "_"): value
        for name, value in ordinary.items()
        if name in wanted or name.startswith("x-amz-checksum-")
    }
    moved(200, len(CONTENT), **same).check(answer)


def _agents(trial: Trial, dialect: Dialect) -> None:
    key, buffer = trial.store(), trial.buffer(len(CONTENT))
    headers = {dialect.header: buffer.token(), "x-amz-rdma-agent": "carrier-pigeon"}
    expected = served_over_http(CONTENT) if dialect.reads_bodies else DECLINED
    expected.check(trial.send("GET", key, headers=headers))
    buffer.check_untouched()
    headers["x-amz-rdma-agent"] = "cuobj"
    moved(200, len(CONTENT)).check(trial.send("GET", key, headers=headers))
    buffer.check_filled(CONTENT)


def _refused(trial: Trial, dialect: Dialect) -> None:
    """What is refused with a token that goes nowhere is refused with a live one too."""
    key, buffer = trial.store(), trial.buffer(len(CONTENT))
    token = buffer.token()
    headers = {dialect.header: token}
    NOT_SIGNED.check(trial.send("GET", key, headers=headers, unsigned={dialect.header}))
    Expected(403, "AccessDenied").check(trial.send("GET", key, headers=headers, signing=Signing.NONE))
    MALFORMED.check(trial.send("GET", key, headers=dict.fromkeys((each.header for each in DIALECTS), token)))
    buffer.check_untouched()


def _presigned(trial: Trial, dialect: Dialect) -> None:
    key, buffer = trial.store(), trial.buffer(len(CONTENT))
    answer = trial.send("GET", key, headers={dialect.header: buffer.token()}, signing=Signing.QUERY)
    moved(200, len(CONTENT)).check(answer)
    buffer.check_filled(CONTENT)


def _others(trial: Trial, dialect: Dialect) -> None:
    """A live token on HEAD moves nothing."""
    key, buffer = trial.store(), trial.buffer(len(CONTENT))
    answer = trial.send("HEAD", key, headers={dialect.header: buffer.token()})
    Expected(200, headers={REPLY: None, "content-length": str(len(CONTENT))}).check(answer)
    buffer.check_untouched()


def _many(trial: Trial, dialect: Dialect) -> None:
    """32 GETs at once into neighbouring slices of one region."""
    size = (128 << 10) + 13
    datas = [secrets.token_bytes(size) for _ in range(4)]
    keys = [trial.store(data) for data in datas]
    buffer = trial.buffer(32 * size)

    def fetch(number: int) -> None:
        token = buffer.token(number * size, size)
        moved(200, size).check(trial.send("GET", keys[number % 4], headers={dialect.header: token}))

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(fetch, range(32)))
    buffer.check_filled(b"".join(datas[number % 4] for number in range(32)))


_LAST = len(CONTENT) - 1
_RANGES = (
    ("bytes=0-0", 0, 0),
    ("bytes=100-1099", 100, 1099),
    ("bytes=4000-", 4000, _LAST),
    ("bytes=-1", _LAST, _LAST),
    (f"bytes=-{2 * len(CONTENT)}", 0, _LAST),
    ("bytes=4090-9999999", 4090, _LAST),
)


def _cases() -> Iterator[Case]:
    for size in _SIZES:
        yield from moving(case.SUCCESS, DIALECTS, f"GET of {size} bytes", _whole(size))
    for name, first, last in _RANGES:
        yield from moving(case.SUCCESS, DIALECTS, f"GET, {name}", _range(name, first, last))
    for name, run in {
        "GET into a larger buffer": _roomy,
        "GET of a large object by ranges": _range_of_large,
        "GET, partNumber, and a range over two parts": _parts,
        "GET, conditions": _conditions,
        "GET of more than the token's size": _too_large,
        "GET of an empty object": _empty,
        "GET with nothing to send": _nothing_to_send,
        "GET, headers of an ordinary GET": _headers,
        "GET, agents": _agents,
        "GET, refused with a live token": _refused,
        "HEAD with a live token": _others,
    }.items():
        yield from moving(case.SUCCESS, DIALECTS, name, run)
    yield from moving(case.SUCCESS, [CUOBJ], "GET, presigned URL", _presigned)
    yield from moving(case.LIMITS, [CUOBJ], "32 GETs in flight", _many)


CASES = tuple(_cases())
