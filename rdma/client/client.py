"""s3verbs.Client: put objects from memory and get them into memory, by RDMA where it goes and by HTTP where not."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import s3verbs
from s3verbs.rdma.client.checksums import digest, header
from s3verbs.rdma.client.control import Cancel, Control
from s3verbs.rdma.client.counters import Counters, Snapshot
from s3verbs.rdma.client.credentials import ChainKeys, GivenKeys, KeySource
from s3verbs.rdma.client.cuda import CudaDriver, CudaError, Driver, owner_device
from s3verbs.rdma.client.engine import Engine, GetResult, Job, PutResult
from s3verbs.rdma.client.errors import BufferRefused, ClientError, NotModified, RegionClosed
from s3verbs.rdma.client.exposure import Exposer
from s3verbs.rdma.client.huge_pages import prefer_huge_pages
from s3verbs.rdma.client.memory import Described, describe
from s3verbs.rdma.client.pieces import get_parts, put_parts
from s3verbs.rdma.client.quarantine import Quarantine
from s3verbs.rdma.client.region import Region, RegisteredMemory, is_process, new_region
from s3verbs.rdma.client.requests import ByteRange, checksum_headers, get_headers, put_headers, split_range
from s3verbs.rdma.client.signing import Keys
from s3verbs.rdma.client.transport import ClientTransport
from s3verbs.rdma.token import MAX_SIZE

T = TypeVar("T")

PART_SIZE = 512 << 20
"""Bytes of a part of an object that does not fit into one token, unless told otherwise."""


class Client:
    """One endpoint. Any thread; a process that was forked from this one needs a client of its own.

    `endpoint` is http(s)://host[:port]; buckets are addressed in the path. Without `access_key` and `secret_key` the
    keys are those of botocore's default chain; without any, requests are anonymous, and those never get RDMA.

    `transport`: "auto" takes the same host's, else RC over RDMA devices, else HTTP, and logs why once. "samehost", "rc"
    and "http" pin one: TransportMissing when it cannot be used. `fallback=False` raises Declined instead of using HTTP.
    `timeout` is the deadline of one operation in seconds, retries included; `max_attempts` how often one request is
    tried. `verify`: TLS authorities: True, False, or a path.

    Objects larger than `part_size`, or than a token can tell (4 GiB - 1), are moved in parts, `concurrency` at a time.
    Of aput_from and aget_into `max_in_flight` run at a time; more wait. `socket_path` and `devices` are for gateways
    and RDMA devices that are not found by themselves.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        access_key: str | None = None,
        secret_key: str | None = None,
        session_token: str | None = None,
        region: str = "us-east-1",
        transport: str | ClientTransport = "auto",
        fallback: bool = True,
        timeout: float = 60.0,
        verify: bool | str = True,
        max_attempts: int = 3,
        part_size: int | None = None,
        concurrency: int = 8,
        max_in_flight: int = 32,
        socket_path: str | None = None,
        devices: Sequence[str] = (),
        driver: Driver | None = None,
    ) -> None:
        """`driver` stands in for the GPU's. Raises TransportMissing, ValueError."""
        if (access_key is None) != (secret_key is None):
            raise ValueError("access_key and secret_key belong together")
        if timeout <= 0 or min(max_attempts, concurrency, max_in_flight) < 1:
            raise ValueError("timeout must be positive, max_attempts, concurrency and max_in_flight at least 1")
        if part_size is not None and not 0 < part_size <= MAX_SIZE:
            raise ValueError(f"part_size must be from 1 to {MAX_SIZE}")
        keys: KeySource = ChainKeys()
        if access_key is not None and secret_key is not None:
            keys = GivenKeys(Keys(access_key, secret_key, session_token))
        self._control = Control(endpoint, keys, region, verify=verify, user_agent=f"s3verbs/{s3verbs.__version__}")
        self._exposer = Exposer(
            transport, self._control.host, self._control.port, socket_path=socket_path, devices=devices
        )
        self._quarantine = Quarantine()
        self._counters = Counters()
        self._engine = Engine(
            self._control, self._exposer, self._quarantine, self._counters, fallback=fallback, tries=max_attempts
        )
        self._timeout = timeout
        self._split_above = part_size or MAX_SIZE
        self._part_size = part_size or PART_SIZE
        self._concurrency = concurrency
        self._max_in_flight = max_in_flight
        self._driver = driver
        self._lock = threading.Lock()
        self._memories: set[RegisteredMemory] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False
        self._pid = os.getpid()

    def register(self, buffer: object) -> Region:
        """Expose contiguous memory: a buffer (bytearray, mmap, numpy; read-only ones can only be put from), DLPack
        (torch, on a CPU or a GPU), or `__cuda_array_interface__`. The region keeps it alive and in place until it is
        closed.

        GPU memory: work on it that is still queued must be synchronized before put_from. Raises BufferRefused,
        TransportMissing.
        """
        if not is_process(self._pid):
            raise RegionClosed("this process was forked from the client's: it needs a client of its own")
        memory, driver = self._on_its_device(describe(buffer))
        if memory.gpu is None and memory.writable:
            prefer_huge_pages(memory.address, memory.size)
        registered = RegisteredMemory(memory, self._exposer, self._quarantine, driver, self._released)
        with self._lock:
            if self._closed:
                raise RegionClosed("the client is closed")
            self._memories.add(registered)
        self._quarantine.start()
        try:
            registered.exposed()
        except BaseException:
            registered.close()
            raise
        return new_region(registered, self._quarantine)

    def put_from(
        self,
        bucket: str,
        key: str,
        region: Region,
        *,
        checksum: str | Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        cancel: Cancel | None = None,
    ) -> PutResult:
        """Store the region's bytes as an object. On return they are stored, and the memory is the caller's again.

        `checksum`: "crc32", "crc32c", "crc64nvme", "sha1" or "sha256" is computed here and compared by the server; a
        mapping has S3's base64 of known ones. `headers` has any others that S3 knows (cache-control, x-amz-tagging,
        ...). Raises ClientError, ValueError.
        """
        fields = put_headers(
            metadata=metadata,
            content_type=content_type,
            if_match=if_match,
            if_none_match=if_none_match,
            headers=headers,
        )
        repeatable = if_match is None and if_none_match is None
        with self._operation(region, timeout) as deadline:
            if region.size <= self._split_above:
                fields |= self._checksum(checksum, region)
                job = Job(bucket, _key(key), {}, fields, repeatable)
                return self._engine.put(job, region, deadline, cancel)
            if checksum is not None and not isinstance(checksum, str):
                raise ValueError(
                    "an object of several parts has no checksum that can be known before: name an algorithm"
                )
            return put_parts(
                self._engine,
                Job(bucket, _key(key), {}, fields, repeatable),
                region,
                self._part_size,
                checksum=checksum,
                concurrency=self._concurrency,
                deadline=deadline,
                cancel=cancel,
            )

    def put_part_from(
        self,
        bucket: str,
        key: str,
        region: Region,
        *,
        upload_id: str,
        part_number: int,
        checksum: str | Mapping[str, str] | None = None,
        timeout: float | None = None,
        cancel: Cancel | None = None,
    ) -> PutResult:
        """UploadPart of an upload that somebody else began and will complete. Raises as put_from, ValueError for a part
        that does not fit into one token."""
        if region.size > MAX_SIZE:
            raise ValueError("a part has at most 4 GiB - 1 bytes")
        with self._operation(region, timeout) as deadline:
            query = {"partNumber": str(part_number), "uploadId": upload_id}
            job = Job(bucket, _key(key), query, self._checksum(checksum, region))
            return self._engine.put(job, region, deadline, cancel)

    def get_into(
        self,
        bucket: str,
        key: str,
        region: Region,
        range: ByteRange | None = None,
        *,
        part_number: int | None = None,
        if_match: str | None = None,
        if_none_match: str | None = None,
        version_id: str | None = None,
        verify_checksum: bool = False,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        cancel: Cancel | None = None,
    ) -> GetResult:
        """Fill the region, from its beginning, with an object, a `range` of it, or one of its parts.

        `range` is (start, stop), or an HTTP range. `verify_checksum` compares a whole object with the checksum that the
        server has of it; `GetResult.verified` says by which, if it had one. On return every byte is in place; after an
        error the region's bytes are undefined. Raises ClientError, ValueError.
        """
        fields = get_headers(
            selected=range,
            if_match=if_match,
            if_none_match=if_none_match,
            verify=verify_checksum,
            headers=headers,
        )
        query = {}
        if part_number is not None:
            query["partNumber"] = str(part_number)
        if version_id is not None:
            query["versionId"] = version_id
        job = Job(bucket, _key(key), query, fields, verify=verify_checksum)
        with self._operation(region, timeout) as deadline:
            if region.size <= self._split_above:
                return self._engine.get(job, region, deadline, cancel)
            selected = split_range(range) if part_number is None else None
            if selected is None:
                return self._engine.get(job, region[:MAX_SIZE], deadline, cancel)
            return get_parts(
                self._engine,
                job,
                region,
                self._part_size,
                selected,
                concurrency=self._concurrency,
                deadline=deadline,
                cancel=cancel,
            )

    async def aput_from(self, bucket: str, key: str, region: Region, **options: Any) -> PutResult:
        """`put_from` for an event loop; the same options. See aget_into for cancellation."""
        return await self._on_thread(partial(self.put_from, bucket, key, region, **options))

    async def aget_into(
        self, bucket: str, key: str, region: Region, range: ByteRange | None = None, **options: Any
    ) -> GetResult:
        """`get_into` for an event loop; the same options. When the task is cancelled the request is abandoned: this
        returns when the memory was taken back from the server, or is in quarantine."""
        return await self._on_thread(partial(self.get_into, bucket, key, region, range, **options))

    @property
    def transport(self) -> str:
        """What new regions are exposed by: "samehost", "rc", "http"."""
        return self._exposer.name

    @property
    def why_http(self) -> str:
        """Why not by RDMA; "" when it is."""
        return self._exposer.why_http

    def counters(self) -> Snapshot:
        """What moved how, until now."""
        return self._counters.snapshot(self._quarantine.bytes)

    def close(self) -> bool:
        """Close all regions, after the operations that use them have ended, and all connections. True: no server can
        touch memory of this client any more. False: some is in quarantine; a thread goes on until it is not."""
        if not is_process(self._pid):
            return False
        with self._lock:
            self._closed = True
            memories, threads = list(self._memories), self._threads
        if threads is not None:
            threads.shutdown()
        safe = True
        for memory in memories:
            safe = memory.close() and safe
        self._control.close()
        return self._quarantine.finish(self._exposer.close) and safe

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _operation(self, region: Region, timeout: float | None) -> "_Operation":
        if not region.memory.belongs_to(self._exposer):
            raise ValueError("the region is another client's")
        seconds = self._timeout if timeout is None else timeout
        if seconds <= 0:
            raise ValueError("timeout must be positive")
        return _Operation(self._counters, time.monotonic() + seconds)

    @staticmethod
    def _checksum(checksum: str | Mapping[str, str] | None, region: Region) -> dict[str, str]:
        if checksum is None:
            return {}
        if not isinstance(checksum, str):
            return checksum_headers(checksum)
        with region.use(write=False):
            return {header(checksum): digest(checksum, region.memory.place.chunks(region.offset, region.size))}

    def _on_its_device(self, memory: Described) -> tuple[Described, Driver | None]:
        if memory.gpu is None:
            return memory, None
        with self._lock:
            if self._driver is None:
                try:
                    self._driver = CudaDriver()
                except CudaError as error:
                    raise BufferRefused(f"this is GPU memory, and there is no driver for it: {error}") from error
            driver = self._driver
        ordinal = owner_device(driver, memory.address, memory.gpu)
        return Described(memory.address, memory.size, memory.owner, memory.writable, ordinal), driver

    def _released(self, memory: RegisteredMemory) -> None:
        with self._lock:
            self._memories.discard(memory)

    async def _on_thread(self, operation: Callable[..., T]) -> T:
        with self._lock:
            if self._closed:
                raise RegionClosed("the client is closed")
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._max_in_flight, "s3verbs-client")
            threads = self._threads
        cancel = Cancel()
        running = asyncio.get_running_loop().run_in_executor(threads, partial(operation, cancel=cancel))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            cancel.now()
            while not running.done():
                try:
                    await asyncio.wait((running,))
                except asyncio.CancelledError:
                    continue
            if not running.cancelled():
                running.exception()
            raise


class _Operation:
    """Counts an operation that fails; gives its deadline."""

    __slots__ = ("_counters", "_deadline")

    def __init__(self, counters: Counters, deadline: float) -> None:
        self._counters = counters
        self._deadline = deadline

    def __enter__(self) -> float:
        return self._deadline

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, ClientError) and not isinstance(error, NotModified):
            self._counters.failed(error)


def _key(key: str) -> str:
    if not key:
        raise ValueError("an object's key is not empty")
    return key
