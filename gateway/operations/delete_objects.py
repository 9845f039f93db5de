"""DeleteObject and DeleteObjects. Source: Amazon S3 API Reference."""

from s3verbs.gateway.checksums import Claims
from s3verbs.gateway.documents import Deleted, DeleteEntry, DeleteError, DeleteResult
from s3verbs.gateway.errors import S3Error, from_storage
from s3verbs.gateway.http.conditions import write_condition
from s3verbs.gateway.http.headers import IF_MATCH
from s3verbs.gateway.operations.base import Call, Reply
from s3verbs.gateway.operations.guard import check_key, check_version_id, no_such_version
from s3verbs.gateway.xml.requests import read, read_delete
from s3verbs.storage.errors import ObjectNotFound, StorageError
from s3verbs.storage.model import NULL_VERSION, WriteCondition

_DOCUMENT_LIMIT = 8 << 20
"""Room for 1,000 keys of 1,024 bytes, each byte written as a character reference."""


async def delete_object(call: Call) -> Reply:
    """204 also when there is no such object, or no such version of it."""
    version_id = call.request.target.get("versionId")
    headers = {}
    bucket = call.objects.bucket(call.bucket)
    if version_id is not None:
        headers["x-amz-version-id"] = version_id
        if not check_version_id(version_id):
            return Reply(204, headers)
    condition = write_condition(call.request.headers) if IF_MATCH in call.request.headers else None
    await call.objects.delete(bucket, call.key, condition)
    return Reply(204, headers)


async def delete_objects(call: Call) -> Reply:
    claims = Claims.from_headers(call.request.headers)
    if claims.md5 is None and not claims.checksums and not claims.trailer:
        raise S3Error("InvalidRequest", "Missing required header for this request: Content-MD5")
    bucket = call.objects.bucket(call.bucket)
    request = await read(read_delete, await call.body.read_document(_DOCUMENT_LIMIT))

    refused: dict[int, S3Error] = {}
    chosen: list[int] = []
    for index, entry in enumerate(request.objects):
        try:
            if _judge(entry):
                chosen.append(index)
        except S3Error as error:
            refused[index] = error
    conditions = [_condition(request.objects[index]) for index in chosen]
    keys = [request.objects[index].key for index in chosen]
    outcomes = await call.objects.delete_many(bucket, keys, conditions if any(conditions) else ())
    for index, outcome in zip(chosen, outcomes, strict=True):
        if outcome is not None and not isinstance(outcome, ObjectNotFound):
            refused[index] = _failure(outcome)

    deleted: list[Deleted] = []
    errors: list[DeleteError] = []
    for index, entry in enumerate(request.objects):
        failure = refused.get(index)
        if failure is not None:
            errors.append(DeleteError(entry.key, failure.code, failure.message, entry.version_id))
        elif not request.quiet:
            deleted.append(Deleted(entry.key, entry.version_id))
    return Reply(document=DeleteResult(deleted, errors))


def _judge(entry: DeleteEntry) -> bool:
    """Whether the entry names what may exist. Raises S3Error KeyTooLongError, NoSuchVersion."""
    check_key(entry.key)
    if not entry.version_id or entry.version_id == NULL_VERSION:
        return True
    try:
        return check_version_id(entry.version_id)
    except S3Error:
        raise no_such_version(entry.key, entry.version_id) from None


def _condition(entry: DeleteEntry) -> WriteCondition | None:
    return WriteCondition(if_match=entry.etag) if entry.etag else None


def _failure(error: Exception) -> S3Error:
    if isinstance(error, S3Error):
        return error
    return from_storage(error) if isinstance(error, StorageError) else S3Error("InternalError")
