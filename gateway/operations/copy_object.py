"""CopyObject. Source: Amazon S3 API Reference, CopyObject."""

from collections.abc import Mapping

from s3verbs.gateway.checksums import requested_algorithm
from s3verbs.gateway.documents import CopyObjectResult
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.conditions import write_condition
from s3verbs.gateway.http.headers import (
    X_AMZ_COPY_SOURCE,
    X_AMZ_METADATA_DIRECTIVE,
    X_AMZ_STORAGE_CLASS,
    X_AMZ_TAGGING_DIRECTIVE,
    X_AMZ_WEBSITE_REDIRECT_LOCATION,
)
from s3verbs.gateway.operations.base import Call, Reply
from s3verbs.gateway.operations.copy_source import (
    MAX_COPY_BYTES,
    ObjectSource,
    find_source,
    open_source,
    parse_copy_source,
)
from s3verbs.gateway.operations.guard import invalid_argument
from s3verbs.gateway.operations.object_headers import STANDARD, attributes_from, check_write
from s3verbs.gateway.operations.put_object import ALGORITHM_SETS, DEFAULT_ALGORITHM, checksum_of, etag_of, wants_md5
from s3verbs.storage.model import Attributes, Version

_NOT_COPIED = (X_AMZ_STORAGE_CLASS, X_AMZ_WEBSITE_REDIRECT_LOCATION)
"""System headers that a copy takes from the request even when it copies the metadata."""

_TO_ITSELF = (
    "This copy request is illegal because it is trying to copy an object to itself without changing the object's "
    "metadata, storage class, website redirect location or encryption attributes."
)


async def copy_object(call: Call) -> Reply:
    headers = call.request.headers
    source = parse_copy_source(headers.get(X_AMZ_COPY_SOURCE, ""))
    check_write(headers)
    replace_metadata = _replaces(headers, X_AMZ_METADATA_DIRECTIVE, "metadata")
    replace_tags = _replaces(headers, X_AMZ_TAGGING_DIRECTIVE, "tagging")
    algorithm = requested_algorithm(headers)
    condition = write_condition(headers)
    bucket = call.objects.bucket(call.bucket)
    version = find_source(call, source)
    if version.size > MAX_COPY_BYTES:
        raise S3Error(
            "InvalidRequest",
            f"The specified copy source is larger than the maximum allowable size for a copy source: {MAX_COPY_BYTES}",
        )
    attributes = _attributes(headers, version, replace_metadata=replace_metadata, replace_tags=replace_tags)
    if (
        (source.bucket, source.key) == (call.bucket, call.key)
        and not replace_metadata
        and not _changes(headers, version, algorithm)
    ):
        raise S3Error("InvalidRequest", _TO_ITSELF)
    algorithm = algorithm or _algorithm_of(version)

    reader = await open_source(call, source, version)
    try:
        ingested = await call.ingest(
            algorithms=ALGORITHM_SETS[algorithm],
            durability=bucket.durability,
            md5=wants_md5(bucket),
            source=ObjectSource(reader, 0, version.size),
        )
    finally:
        reader.close()
    made = await call.objects.publish(
        bucket,
        call.key,
        payload=ingested.payload,
        etag=etag_of(ingested),
        attributes=attributes,
        checksum=checksum_of(ingested, algorithm),
        condition=condition,
    )
    return Reply(document=CopyObjectResult(made.etag, made.modified_ns, made.checksum))


def _replaces(headers: Mapping[str, str], name: str, what: str) -> bool:
    value = headers.get(name, "COPY")
    if value not in ("COPY", "REPLACE"):
        raise invalid_argument(f"Unknown {what} directive.", name, value)
    return value == "REPLACE"


def _attributes(
    headers: Mapping[str, str], version: Version, *, replace_metadata: bool, replace_tags: bool
) -> Attributes:
    given = attributes_from(headers)
    kept = version.attributes
    tags = given.tags if replace_tags else kept.tags
    if replace_metadata:
        return Attributes(headers=given.headers, metadata=given.metadata, tags=tags)
    system = {name: value for name, value in kept.headers.items() if name not in _NOT_COPIED}
    system.update((name, given.headers[name]) for name in _NOT_COPIED if name in given.headers)
    return Attributes(headers=system, metadata=kept.metadata, tags=tags)


def _changes(headers: Mapping[str, str], version: Version, algorithm: str) -> bool:
    """Whether a copy onto itself with the metadata kept changes anything that AWS counts as a change."""
    if algorithm and algorithm != (version.checksum.algorithm if version.checksum else ""):
        return True
    storage_class = headers.get(X_AMZ_STORAGE_CLASS)
    if storage_class and storage_class != version.attributes.headers.get(X_AMZ_STORAGE_CLASS, STANDARD):
        return True
    return X_AMZ_WEBSITE_REDIRECT_LOCATION in headers


def _algorithm_of(version: Version) -> str:
    """A copy keeps its source's algorithm; the value is computed anew, over the whole object."""
    return version.checksum.algorithm if version.checksum else DEFAULT_ALGORITHM
