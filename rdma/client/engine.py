"""One request's worth of bytes between a region and an object: by RDMA where it goes, by HTTP where it was declined."""

import mmap
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from s3verbs.rdma.client.answer import (
    Verdict,
    bytes_transferred,
    content_range,
    get_verdict,
    is_servers_own,
    put_verdict,
)
from s3verbs.rdma.client.attempts import Attempts, Lost
from s3verbs.rdma.client.checksums import verify
from s3verbs.rdma.client.connection import Broken, NotSent
from s3verbs.rdma.client.control import Answer, Call, Cancel, Cancelled, Control
from s3verbs.rdma.client.counters import Counters
from s3verbs.rdma.client.errors import BadAnswer, BufferTooSmall, Declined, S3Error, TokenIgnored
from s3verbs.rdma.client.exposure import Exposer
from s3verbs.rdma.client.memory import describe
from s3verbs.rdma.client.quarantine import Exposed, Quarantine
from s3verbs.rdma.client.region import Region, RegisteredMemory, new_region
from s3verbs.rdma.client.signing import UNSIGNED
from s3verbs.rdma.headers import TOKEN
from s3verbs.rdma.token import MAX_SIZE

_NEVER = threading.Event()
_DECLINES = {
    "declined": "the server has no transport for the token",
    "ignored": "the server ignores tokens",
    "anonymous": "there are no keys, and anonymous requests get no RDMA",
}


@dataclass(slots=True)
class Job:
    """A PutObject, UploadPart or GetObject without its payload headers. `repeatable`: doing it twice does no harm.
    `verify`: compare what a GET brought with the object's checksum."""

    bucket: str
    key: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    verify: bool = False


@dataclass(frozen=True, slots=True)
class PutResult:
    """`size` bytes are stored. `transport` is how they moved: "samehost", "rc", "http". `headers` are the answer's,
    with lower-case names; of the request that completed the upload, for an object of several `parts`."""

    etag: str
    size: int
    transport: str
    headers: Mapping[str, str]
    parts: int = 1

    @property
    def version_id(self) -> str | None:
        return self.headers.get("x-amz-version-id")


@dataclass(frozen=True, slots=True)
class GetResult:
    """The first `size` bytes of the region are the object's, or the range's. `verified` names the checksum that they
    were compared with, None where none was. The rest is as in PutResult."""

    etag: str
    size: int
    transport: str
    status: int
    headers: Mapping[str, str]
    verified: str | None = None
    parts: int = 1


class Engine:
    """Any thread. The caller has checked that the bytes of one call fit into a token."""

    def __init__(
        self,
        control: Control,
        exposer: Exposer,
        quarantine: Quarantine,
        counters: Counters,
        *,
        fallback: bool,
        tries: int,
    ) -> None:
        self._control = control
        self._exposer = exposer
        self._quarantine = quarantine
        self._counters = counters
        self._fallback = fallback
        self._tries = tries
        self._endpoint_ignores_tokens = False
        """The last GET or PUT with a token said so. Then a PUT goes over HTTP at once, as one with a token would store
        an empty object; GETs, which lose nothing, go on asking."""

    def put(self, job: Job, region: Region, deadline: float, cancel: Cancel | None) -> PutResult:
        """Store the region's bytes. Raises ClientError; docstring of `errors`."""
        with region.use(write=False):
            if self._is_staged(region):
                return self._put_staged(job, region, deadline, cancel)
            attempts = self._attempts(deadline, cancel)
            while True:
                try:
                    return self._put_once(job, region, deadline, cancel)
                except NotSent as error:
                    attempts.not_sent(error)
                except Lost as error:
                    attempts.lost(error, repeatable=job.repeatable)
                except _Refused as refused:
                    attempts.refused(refused.error, cured=refused.cured)

    def get(self, job: Job, region: Region, deadline: float, cancel: Cancel | None) -> GetResult:
        """Fill the region. Raises ClientError; docstring of `errors`."""
        with region.use(write=True):
            if self._is_staged(region):
                return self._get_staged(job, region, deadline, cancel)
            attempts = self._attempts(deadline, cancel)
            while True:
                try:
                    result = self._get_once(job, region, deadline, cancel)
                    break
                except NotSent as error:
                    attempts.not_sent(error)
                except Lost as error:
                    attempts.lost(error, repeatable=True)
                except _Refused as refused:
                    attempts.refused(refused.error, cured=refused.cured)
            if job.verify and result.status == 200:
                chunks = region.memory.place.chunks(region.offset, result.size)
                return replace(result, verified=verify(result.headers, chunks))
            return result

    def request(
        self, call: Call, deadline: float, cancel: Cancel | None, *, repeatable: bool
    ) -> tuple[Mapping[str, str], str]:
        """A request without a payload, as multipart uploads need: (headers, document) of a 2xx."""
        attempts = self._attempts(deadline, cancel)
        while True:
            try:
                with self._send(call, None, None, deadline, cancel) as answer:
                    if not 200 <= answer.status < 300:
                        raise self._refusal(answer)
                    try:
                        return answer.headers, answer.document()
                    except Broken as error:
                        raise Lost(str(error), safe=True, timeout=error.timeout) from error
            except NotSent as error:
                attempts.not_sent(error)
            except Lost as error:
                attempts.lost(error, repeatable=repeatable)
            except _Refused as refused:
                attempts.refused(refused.error, cured=refused.cured)

    def _attempts(self, deadline: float, cancel: Cancel | None) -> Attempts:
        return Attempts(self._tries, deadline, cancel.event if cancel is not None else _NEVER)

    def _put_once(self, job: Job, region: Region, deadline: float, cancel: Cancel | None) -> PutResult:
        if self._endpoint_ignores_tokens and region.size and not self._exposer.is_http:
            self._decline("ignored")
            return self._put_http(job, region, deadline, cancel)
        minted = self._mint(region)
        if minted is None:
            return self._put_http(job, region, deadline, cancel)
        exposed, token = minted
        headers = {**job.headers, TOKEN: token, "x-amz-content-sha256": UNSIGNED}
        call = Call("PUT", job.bucket, job.key, job.query, headers, length=0)
        with self._send(call, region.memory, exposed, deadline, cancel) as answer:
            verdict = put_verdict(answer.status, answer.headers, region.size)
            if verdict is Verdict.MOVED:
                self._counters.moved(exposed.transport, region.size)
                return PutResult(answer.headers.get("etag", ""), region.size, exposed.transport, answer.headers)
            if verdict is Verdict.ERROR:
                raise self._refusal(answer, region.memory, minted)
        if verdict is Verdict.IGNORED:
            self._endpoint_ignores_tokens = True
            self._counters.declined("ignored")
            raise TokenIgnored(
                f"the server does not speak RDMA: it ignored the token and stored an "
                f"EMPTY object at {job.bucket}/{job.key}; use transport='http' with it"
            )
        self._exposer.rest(token)
        self._decline("declined")
        return self._put_http(job, region, deadline, cancel)

    def _put_http(self, job: Job, region: Region, deadline: float, cancel: Cancel | None) -> PutResult:
        size = region.size
        body = _Body(region) if size else ()
        call = Call("PUT", job.bucket, job.key, job.query, job.headers, body, length=size)
        with self._send(call, None, None, deadline, cancel) as answer:
            if not 200 <= answer.status < 300:
                raise self._refusal(answer)
            self._counters.moved("http", size)
            return PutResult(answer.headers.get("etag", ""), size, "http", answer.headers)

    def _get_once(self, job: Job, region: Region, deadline: float, cancel: Cancel | None) -> GetResult:
        minted = self._mint(region)
        if minted is None:
            return self._get_http(job, region, deadline, cancel)
        exposed, token = minted
        headers = {**job.headers, TOKEN: token, "x-amz-content-sha256": UNSIGNED}
        call = Call("GET", job.bucket, job.key, job.query, headers)
        with self._send(call, region.memory, exposed, deadline, cancel) as answer:
            verdict = get_verdict(answer.status, answer.headers, answer.length, region.size)
            if verdict is Verdict.ERROR:
                raise self._refusal(answer, region.memory, minted)
            self._endpoint_ignores_tokens = verdict is Verdict.IGNORED_BODY
            if verdict is Verdict.MOVED:
                self._require_range(job, answer)
                moved = bytes_transferred(answer.headers)
                self._counters.moved(exposed.transport, moved)
                etag = answer.headers.get("etag", "")
                return GetResult(etag, moved, exposed.transport, answer.status, answer.headers)
            if verdict is not Verdict.IGNORED_BODY:
                self._exposer.rest(token)
            self._decline("ignored" if verdict is Verdict.IGNORED_BODY else "declined")
            if verdict is not Verdict.DECLINED:
                return self._take_body(job, region, answer)
        return self._get_http(job, region, deadline, cancel)

    def _get_http(self, job: Job, region: Region, deadline: float, cancel: Cancel | None) -> GetResult:
        call = Call("GET", job.bucket, job.key, job.query, job.headers)
        with self._send(call, None, None, deadline, cancel) as answer:
            if not 200 <= answer.status < 300:
                raise self._refusal(answer)
            return self._take_body(job, region, answer)

    def _take_body(self, job: Job, region: Region, answer: Answer) -> GetResult:
        self._require_range(job, answer)
        length = answer.length
        if length is not None and length > region.size:
            raise BufferTooSmall(f"the answer has {length} bytes, the region {region.size}")
        wanted = region.size if length is None else length
        try:
            moved = region.memory.place.fill(region.offset, wanted, answer.read_into)
            if length is None and moved == wanted and answer.read_into(memoryview(bytearray(1))):
                raise BufferTooSmall(f"the answer has more than the {region.size} bytes of the region")
        except Broken as error:
            raise Lost(str(error), safe=True, timeout=error.timeout) from error
        selected = content_range(answer.headers)
        if selected is not None and moved != selected[1] - selected[0]:
            raise BadAnswer(f"the body has {moved} bytes, Content-Range says {selected[1] - selected[0]}")
        self._counters.moved("http", moved)
        return GetResult(answer.headers.get("etag", ""), moved, "http", answer.status, answer.headers)

    @staticmethod
    def _require_range(job: Job, answer: Answer) -> None:
        if "range" in job.headers and "content-range" not in answer.headers:
            raise BadAnswer("a range was asked for, and the answer does not say which bytes it has")

    def _mint(self, region: Region) -> tuple[Exposed, str] | None:
        """None: HTTP."""
        if not 0 < region.size <= MAX_SIZE or self._exposer.is_http:
            return None
        if not self._control.can_sign():
            self._decline("anonymous")
            return None
        minted = region.memory.token(region.offset, region.size)
        if minted is None:
            self._decline("no_transport" if self._exposer.transport() is None else "memory")
        return minted

    def _decline(self, reason: str) -> None:
        """Count it. Raises Declined where HTTP is not wanted."""
        self._counters.declined(reason)
        if not self._fallback:
            raise Declined(_DECLINES.get(reason) or self._exposer.why_http)
        self._counters.fell_back()

    def _send(
        self,
        call: Call,
        memory: RegisteredMemory | None,
        exposed: Exposed | None,
        deadline: float,
        cancel: Cancel | None,
    ) -> Answer:
        """Raises NotSent, Lost, BadAnswer. Without an answer the server may be at work still: the memory that the token
        showed it is taken back first, whatever ended the wait, KeyboardInterrupt included."""
        try:
            return self._control.exchange(call, deadline, cancel)
        except (NotSent, Cancelled):
            raise
        except Broken as error:
            safe = memory is None or exposed is None or memory.take_back(exposed)
            raise Lost(str(error), safe=safe, timeout=error.timeout) from error
        except BaseException:
            if memory is not None and exposed is not None:
                memory.take_back(exposed)
            raise

    def _refusal(
        self, answer: Answer, memory: RegisteredMemory | None = None, minted: tuple[Exposed, str] | None = None
    ) -> Exception:
        error = answer.error()
        if minted is not None and answer.status == 503:
            self._exposer.rest(minted[1])
        if not is_servers_own(answer.status, answer.headers, error.code):
            safe = memory is None or minted is None or memory.take_back(minted[0])
            return Lost(f"something on the way to the server answered {answer.status}", safe=safe, said=error)
        cured = (error.code == "ExpiredToken" and self._control.reload_keys()) or (
            error.code == "RequestTimeTooSkewed" and self._control.follow_clock(answer)
        )
        return _Refused(error, cured=cured)

    def _is_staged(self, region: Region) -> bool:
        """GPU memory that the transport does not take, while it would take a copy of it in host memory."""
        if region.memory.gpu is None or not region.size or self._exposer.is_http:
            return False
        return self._exposer.transport() is not None and region.memory.exposed() is None

    def _put_staged(self, job: Job, region: Region, deadline: float, cancel: Cancel | None) -> PutResult:
        copy = mmap.mmap(-1, region.size)
        filled = 0
        for chunk in region.memory.place.chunks(region.offset, region.size):
            copy[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
        with self._staging(copy) as host:
            return self.put(job, host, deadline, cancel)

    def _get_staged(self, job: Job, region: Region, deadline: float, cancel: Cancel | None) -> GetResult:
        copy = mmap.mmap(-1, region.size)
        with self._staging(copy) as host:
            result = self.get(job, host, deadline, cancel)
            taken = 0

            def take(view: memoryview) -> int:
                nonlocal taken
                view[:] = memoryview(copy)[taken : taken + len(view)]
                taken += len(view)
                return len(view)

            region.memory.place.fill(region.offset, result.size, take)
            return result

    def _staging(self, copy: mmap.mmap) -> Region:
        return new_region(RegisteredMemory(describe(copy), self._exposer, self._quarantine), self._quarantine)


class _Refused(Exception):
    """An S3Error, and whether its cause was removed."""

    def __init__(self, error: S3Error, *, cured: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.cured = cured


class _Body:
    """A region's bytes, from the start at each iteration."""

    def __init__(self, region: Region) -> None:
        self._region = region

    def __iter__(self) -> Iterator[memoryview]:
        return self._region.memory.place.chunks(self._region.offset, self._region.size)
