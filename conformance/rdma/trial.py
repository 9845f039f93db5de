"""What one case works with: its own keys and uploads, cleaned up afterwards, and the three operations with payload."""

import re
import secrets
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import Any

from conformance.rdma.expect import Failed, require
from conformance.rdma.lanes import Exposure, Lane
from conformance.rdma.memory import Memory
from conformance.rdma.wire import Answer, Server

CONTENT = secrets.token_bytes(4096)
"""What an object holds before a case touches it."""


@dataclass(frozen=True)
class Dialect:
    """`reads_bodies`: its clients take the object from the body of a declined GET; the others only ever look at the
    status, so that a 2xx tells them that their buffer is filled."""

    name: str
    header: str
    reads_bodies: bool


CUOBJ = Dialect("cuobj", "x-amz-rdma-token", reads_bodies=True)
NIXL = Dialect("nixl", "x-rdma-info", reads_bodies=False)
DIALECTS = (CUOBJ, NIXL)


class Operation(Enum):
    """The operations that have an RDMA path."""

    GET = "GetObject"
    PUT = "PutObject"
    PART = "UploadPart"


class Buffer:
    """Exposed memory, and what must hold of it."""

    def __init__(self, memory: Memory, exposure: Exposure) -> None:
        self.memory = memory
        self.exposure = exposure
        self._before = memory.read()

    def token(self, offset: int = 0, size: int | None = None) -> str:
        return self.exposure.token(offset, self.memory.size - offset if size is None else size)

    def check_guards(self) -> None:
        require(self.memory.guards_intact, "memory around the buffer untouched", "a changed byte outside the buffer")

    def check_untouched(self) -> None:
        """Raises Failed when a byte in or around the buffer changed since it was exposed."""
        require(self.memory.read() == self._before, "the buffer untouched", "a changed byte in the buffer")
        self.check_guards()

    def check_filled(self, data: bytes, offset: int = 0) -> None:
        """Raises Failed unless `data` is at `offset` and every other byte is as it was."""
        now = self.memory.read()
        if now[offset : offset + len(data)] != data:
            raise Failed(f"{len(data)} bytes of the object in the buffer", "other bytes")
        rest = now[:offset] + now[offset + len(data) :]
        before = self._before[:offset] + self._before[offset + len(data) :]
        require(rest == before, "the rest of the buffer untouched", "a changed byte beside the object's")
        self.check_guards()

    def close(self) -> None:
        self.exposure.close()
        self.memory.close()


class Trial:
    """One case's view of the server. `lane` is the transport under test, None in cases that need none."""

    def __init__(self, server: Server, bucket: str, prefix: str, lane: Lane | None = None) -> None:
        self.server = server
        self.bucket = bucket
        self._prefix = prefix
        self._lane = lane
        self._keys: list[str] = []
        self._uploads: list[tuple[str, str]] = []
        self._buffers: list[Buffer] = []

    @property
    def lane(self) -> Lane:
        assert self._lane is not None
        return self._lane

    # -- plain S3 --

    def send(self, method: str, key: str = "", **options: Any) -> Answer:
        """`Server.send` on a key of the bucket, or on the bucket."""
        return self.server.send(method, f"/{self.bucket}/{key}" if key else f"/{self.bucket}", **options)

    def ok(self, method: str, key: str = "", status: int = 200, **options: Any) -> Answer:
        """An ordinary request that has to succeed before the case can say anything. Raises Failed."""
        answer = self.send(method, key, **options)
        require(answer.status == status, f"{status} to an ordinary {method} without a token", answer)
        return answer

    def key(self) -> str:
        """A key that no object has, deleted after the case."""
        self._keys.append(f"{self._prefix}{secrets.token_hex(8)}")
        return self._keys[-1]

    def store(self, data: bytes = CONTENT, **headers: str) -> str:
        """An object, over HTTP; its key. Header names are given with "_" for "-"."""
        key = self.key()
        self.ok("PUT", key, body=data, headers={name.replace("_", "-"): value for name, value in headers.items()})
        return key

    def upload(self, key: str) -> str:
        """A new multipart upload, aborted after the case; its id."""
        return self.begin_upload(key, {})[0]

    def begin_upload(self, key: str, headers: Mapping[str, str]) -> tuple[str, Answer]:
        """As `upload`, with headers of the case's; also the answer."""
        answer = self.ok("POST", key, query={"uploads": ""}, headers=headers)
        found = re.search(rb"<UploadId>([^<]+)</UploadId>", answer.body)
        if found is None:
            raise Failed("an upload id", answer)
        self._uploads.append((key, found[1].decode()))
        return self._uploads[-1][1], answer

    def complete(self, key: str, upload: str, etags: list[str]) -> Answer:
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>" for number, etag in enumerate(etags, 1)
        )
        document = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        return self.ok("POST", key, query={"uploadId": upload}, body=document)

    def holds(self, key: str, data: bytes) -> None:
        """Raises Failed unless an ordinary GET returns exactly `data`."""
        answer = self.send("GET", key)
        if answer.status != 200 or answer.body != data:
            same = "other content" if len(answer.body) == len(data) else f"{len(answer.body)} bytes"
            raise Failed(f"an object of {len(data)} bytes over HTTP, as it was sent", f"{answer.status}, {same}")

    def absent(self, key: str) -> None:
        """Raises Failed when the key has an object."""
        answer = self.send("HEAD", key)
        require(answer.status == 404, "nothing stored", f"an object of {answer.headers.get('content-length')} bytes")

    def no_part(self, key: str, upload: str) -> None:
        """Raises Failed when the upload has a part."""
        answer = self.ok("GET", key, query={"uploadId": upload})
        require(b"<Part>" not in answer.body, "no part stored", "a part in the upload")

    # -- memory --

    def buffer(self, size: int, content: bytes = b"") -> "Buffer":
        """Memory that the server can reach, taken back after the case."""
        memory = Memory(size, content)
        try:
            self._buffers.append(Buffer(memory, self.lane.expose(memory)))
        except BaseException:
            memory.close()
            raise
        return self._buffers[-1]

    def close(self) -> None:
        """Takes memory back, aborts uploads and deletes keys, whatever the case left of them."""
        for buffer in self._buffers:
            buffer.close()
        for key, upload in self._uploads:
            self.send("DELETE", key, query={"uploadId": upload})
        for key in self._keys:
            self.send("DELETE", key)


class Attempt:
    """One request of an RDMA operation on an object or upload of its own, and what must hold when it is refused."""

    def __init__(self, trial: Trial, operation: Operation) -> None:
        self._trial = trial
        self._operation = operation
        self.key = trial.store() if operation is Operation.GET else trial.key()
        self._upload = trial.upload(self.key) if operation is Operation.PART else ""

    def send(self, headers: Mapping[str, str], *, unsigned: AbstractSet[str] = frozenset(), **options: Any) -> Answer:
        query = {"partNumber": "1", "uploadId": self._upload} if self._upload else None
        method = "GET" if self._operation is Operation.GET else "PUT"
        return self._trial.send(method, self.key, query=query, headers=headers, unsigned=unsigned, **options)

    def check_untouched(self) -> None:
        """Raises Failed when the request stored something or changed the object."""
        if self._operation is Operation.GET:
            self._trial.holds(self.key, CONTENT)
        elif self._operation is Operation.PUT:
            self._trial.absent(self.key)
        else:
            self._trial.no_part(self.key, self._upload)
