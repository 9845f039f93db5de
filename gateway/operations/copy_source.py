"""The source of a copy: the x-amz-copy-source header, the object it names, and its bytes as a PayloadSource."""

import asyncio
import os
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.conditions import check_copy_source
from s3verbs.gateway.http.headers import X_AMZ_COPY_SOURCE
from s3verbs.gateway.operations.base import Call
from s3verbs.gateway.operations.guard import (
    check_key,
    check_owner,
    check_version_id,
    explain,
    invalid_argument,
    no_such_version,
)
from s3verbs.gateway.storing import settle
from s3verbs.storage.errors import PayloadDamaged, StorageError
from s3verbs.storage.model import Version
from s3verbs.storage.objects import ObjectReader, Segment

MAX_COPY_BYTES = 5 << 30

_VERSION = "?versionId="


class CopySource(NamedTuple):
    """`version_id` is "" when none was given."""

    bucket: str
    key: str
    version_id: str


def parse_copy_source(value: str) -> CopySource:
    """`[/]bucket/key[?versionId=id]`, percent-encoded. A plus sign is a plus sign. Raises S3Error InvalidArgument."""
    path, mark, version_id = value.rpartition(_VERSION)
    if not mark:
        path, version_id = value, ""
    try:
        decoded = unquote_to_bytes(path.encode("utf-8", "surrogateescape")).decode("utf-8")
    except UnicodeDecodeError:
        raise invalid_argument("Invalid copy source encoding.", X_AMZ_COPY_SOURCE, value) from None
    bucket, slash, key = decoded.removeprefix("/").partition("/")
    if not bucket or not slash or not key:
        raise invalid_argument(
            "Copy Source must mention the source bucket and key: sourcebucket/sourcekey", X_AMZ_COPY_SOURCE, value
        )
    if mark and not check_version_id(version_id):
        raise no_such_version(key, version_id)
    return CopySource(bucket, key, version_id)


def find_source(call: Call, source: CopySource) -> Version:
    """The object to copy, its x-amz-copy-source-if-* conditions held.

    Raises S3Error: NoSuchBucket and NoSuchKey with the source's names, AccessDenied (the principal may not read it, or
    another owner than x-amz-source-expected-bucket-owner), PreconditionFailed, KeyTooLongError.
    """
    check_key(source.key)
    call.authorize("s3:GetObject", source.bucket, source.key)
    expected = call.request.headers.get("x-amz-source-expected-bucket-owner")
    try:
        if expected is not None:
            check_owner(call.objects.bucket(source.bucket), expected)
        version = call.objects.lookup(source.bucket, source.key)
    except StorageError as error:
        raise explain(error, call, bucket=source.bucket, key=source.key) from error
    check_copy_source(call.request.headers, version.etag, version.modified_ns)
    return version


async def open_source(call: Call, source: CopySource, version: Version) -> ObjectReader:
    """The reader of `version`. An object that was replaced since it was found is refused: what was decided about it
    (conditions, range, attributes) would not hold. Raises S3Error ConditionalRequestConflict, NoSuchKey."""
    try:
        reader = await call.objects.open(source.bucket, source.key, version)
    except StorageError as error:
        raise explain(error, call, bucket=source.bucket, key=source.key) from error
    if reader.version is not version:
        reader.close()
        raise S3Error("ConditionalRequestConflict")
    return reader


class ObjectSource:
    """A PayloadSource over [offset, offset + length) of an open object, which stays its owner's to close."""

    def __init__(self, reader: ObjectReader, offset: int, length: int) -> None:
        self.length = length
        self.trailers: Mapping[str, str] = {}
        self._segments = iter(reader.segments(offset, length))
        self._segment: Segment | None = None
        self._done = 0

    async def receive(self, into: memoryview) -> int:
        """Fill some of `into`, from memory at once and from a file on an executor thread; 0 at the end.

        `into` is not touched after the return, however this ends. Raises PayloadDamaged when a file ends early.
        """
        segment = self._segment
        while segment is None or self._done == segment.length:
            segment = self._segment = next(self._segments, None)
            self._done = 0
            if segment is None:
                return 0
        want = min(len(into), segment.length - self._done)
        if segment.data is not None:
            into[:want] = memoryview(segment.data)[self._done : self._done + want]
            count = want
        else:
            # Settled: when the copy is cancelled, its buffer and descriptor go to others at once.
            reading = asyncio.get_running_loop().run_in_executor(
                None, os.preadv, segment.fd, [into[:want]], segment.offset + self._done
            )
            count = await settle(reading)
            if count == 0:
                raise PayloadDamaged("a payload file ends before its object does")
        self._done += count
        return count
