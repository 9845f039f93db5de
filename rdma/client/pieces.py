"""Objects that one request cannot move, or should not: multipart uploads and ranges, several parts at a time."""

import html
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TypeVar
from xml.sax.saxutils import escape

from s3verbs.rdma.client.answer import content_range
from s3verbs.rdma.client.checksums import digest, header
from s3verbs.rdma.client.control import Call, Cancel
from s3verbs.rdma.client.engine import Engine, GetResult, Job, PutResult
from s3verbs.rdma.client.errors import BadAnswer, BufferTooSmall, ClientError, S3Error, s3_error
from s3verbs.rdma.client.region import Region

T = TypeVar("T")

MAX_PARTS = 10_000
_ABORT_SECONDS = 10.0
_UPLOAD_ID = re.compile(r"<UploadId>([^<]+)</UploadId>")
_ETAG = re.compile(r"<ETag>([^<]+)</ETag>")
_ERROR = re.compile(r"<Error\b.*?<Code>([^<]*)</Code>(?:.*?<Message>([^<]*)</Message>)?", re.DOTALL)

_OF_COMPLETE = ("if-match", "if-none-match")
"""Headers that belong to the request that publishes the object; all others to the one that begins the upload."""


def put_parts(
    engine: Engine,
    job: Job,
    region: Region,
    part_size: int,
    *,
    checksum: str | None,
    concurrency: int,
    deadline: float,
    cancel: Cancel | None,
) -> PutResult:
    """The region as one object of parts. On an error the upload is aborted, and nothing of it is left but what the
    server could not be told any more. Raises ClientError, ValueError for more than MAX_PARTS."""
    parts = [region[start : start + part_size] for start in range(0, region.size, part_size)]
    if len(parts) > MAX_PARTS:
        raise ValueError(f"{region.size} bytes in parts of {part_size} are more than {MAX_PARTS} parts")
    begin = {name: value for name, value in job.headers.items() if name not in _OF_COMPLETE}
    publish = {name: value for name, value in job.headers.items() if name in _OF_COMPLETE}
    if checksum is not None:
        begin["x-amz-checksum-algorithm"] = checksum.upper()
    call = Call("POST", job.bucket, job.key, {"uploads": ""}, begin, length=0)
    _, document = engine.request(call, deadline, cancel, repeatable=True)
    found = _UPLOAD_ID.search(document)
    if found is None:
        raise BadAnswer("CreateMultipartUpload was answered without an upload id")
    upload = html.unescape(found[1])

    def put(number: int) -> PutResult:
        part = parts[number - 1]
        headers = {}
        if checksum is not None:
            headers[header(checksum)] = digest(checksum, part.memory.place.chunks(part.offset, part.size))
        query = {"partNumber": str(number), "uploadId": upload}
        return engine.put(Job(job.bucket, job.key, query, headers), part, deadline, cancel)

    try:
        with region.use(write=False):
            done = _all(put, range(1, len(parts) + 1), concurrency)
        return _complete(engine, job, upload, publish, done, checksum, deadline, cancel)
    except BaseException as error:
        # After an error of CompleteMultipartUpload the object may be there, and the upload is not: then this is a 404.
        abort = Call("DELETE", job.bucket, job.key, {"uploadId": upload})
        try:
            engine.request(abort, time.monotonic() + _ABORT_SECONDS, None, repeatable=True)
        except ClientError as left:
            error.add_note(f"the multipart upload {upload} could not be aborted: {left}")
        raise


def _complete(
    engine: Engine,
    job: Job,
    upload: str,
    headers: Mapping[str, str],
    done: Sequence[PutResult],
    checksum: str | None,
    deadline: float,
    cancel: Cancel | None,
) -> PutResult:
    rows = []
    for number, part in enumerate(done, 1):
        row = f"<PartNumber>{number}</PartNumber><ETag>{escape(part.etag)}</ETag>"
        if checksum is not None and header(checksum) in part.headers:
            name = f"Checksum{checksum.upper()}"
            row += f"<{name}>{escape(part.headers[header(checksum)])}</{name}>"
        rows.append(f"<Part>{row}</Part>")
    namespace = "http://s3.amazonaws.com/doc/2006-03-01/"
    document = f'<CompleteMultipartUpload xmlns="{namespace}">{"".join(rows)}</CompleteMultipartUpload>'.encode()
    call = Call("POST", job.bucket, job.key, {"uploadId": upload}, headers, [memoryview(document)], len(document))
    answered, text = engine.request(call, deadline, cancel, repeatable=False)
    failed = _ERROR.search(text)
    if failed is not None:
        raise s3_error(500, html.unescape(failed[1]), html.unescape(failed[2] or ""))
    etag = _ETAG.search(text)
    if etag is None:
        raise BadAnswer("CompleteMultipartUpload was answered without an ETag")
    size = sum(part.size for part in done)
    return PutResult(html.unescape(etag[1]), size, _transports(done), answered, len(done))


def get_parts(
    engine: Engine,
    job: Job,
    region: Region,
    part_size: int,
    selected: tuple[int, int | None],
    *,
    concurrency: int,
    deadline: float,
    cancel: Cancel | None,
) -> GetResult:
    """Bytes [start, stop) of the object, stop None for its end, in ranges of `part_size`. All are of one version of the
    object: PreconditionFailed when it is replaced meanwhile. Raises ClientError."""
    start, stop = selected
    end = start + part_size if stop is None else min(start + part_size, stop)
    try:
        first = engine.get(_ranged(job, start, end), region[:part_size], deadline, cancel)
    except S3Error as error:
        # An empty object has no range.
        if error.status == 416 and start == 0 and stop is None:
            return engine.get(job, region[:part_size], deadline, cancel)
        raise
    told = content_range(first.headers)
    if told is None or told[2] is None:
        raise BadAnswer("the answer to a range does not say how many bytes the object has")
    last = told[2] if stop is None else min(stop, told[2])
    if last - start > region.size:
        raise BufferTooSmall(f"{last - start} bytes were selected, the region has {region.size}")
    same = replace(job, headers={**job.headers, "if-match": first.etag})

    def get(offset: int) -> GetResult:
        stop_here = min(offset + part_size, last)
        part = region[offset - start : stop_here - start]
        result = engine.get(_ranged(same, offset, stop_here), part, deadline, cancel)
        if result.size != part.size:
            raise BadAnswer(f"a range of {part.size} bytes was answered with {result.size}")
        return result

    with region.use(write=True):
        rest = _all(get, range(start + first.size, last, part_size), concurrency)
    parts = [first, *rest]
    size = sum(part.size for part in parts)
    return GetResult(first.etag, size, _transports(parts), first.status, first.headers, parts=len(parts))


def _ranged(job: Job, start: int, stop: int) -> Job:
    return replace(job, headers={**job.headers, "range": f"bytes={start}-{stop - 1}"}, verify=False)


def _transports(parts: Sequence[PutResult | GetResult]) -> str:
    """One name, or several joined with "+" where some parts were declined."""
    return "+".join(sorted({part.transport for part in parts}))


def _all(function: Callable[[int], T], numbers: Sequence[int], concurrency: int) -> list[T]:
    """Call it for each, several at a time. After the first error no more are begun; those that run are waited for."""
    if len(numbers) < 2:
        return [function(number) for number in numbers]
    with ThreadPoolExecutor(min(concurrency, len(numbers)), "s3verbs-part") as threads:
        calls = [threads.submit(function, number) for number in numbers]
        try:
            wait(calls, return_when=FIRST_EXCEPTION)
        finally:
            for call in calls:
                call.cancel()
        wait(calls)
    for call in calls:
        if not call.cancelled() and (error := call.exception()) is not None:
            raise error
    return [call.result() for call in calls]
