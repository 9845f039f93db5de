"""What every operation shares: headers that none implements, the expected bucket owner, the length of a key, and
the names that AWS puts into an error (`BucketName`, `Key`, `UploadId`, `Condition`)."""

from collections.abc import Mapping

from s3verbs.gateway.errors import S3Error, from_storage
from s3verbs.gateway.http.headers import IF_NONE_MATCH
from s3verbs.gateway.operations.base import Call, Handler, Reply
from s3verbs.storage import errors as storage
from s3verbs.storage.model import MAX_KEY_BYTES, NULL_VERSION, Bucket

NOT_IMPLEMENTED = frozenset(
    {
        "x-amz-server-side-encryption",
        "x-amz-server-side-encryption-aws-kms-key-id",
        "x-amz-server-side-encryption-bucket-key-enabled",
        "x-amz-server-side-encryption-context",
        "x-amz-server-side-encryption-customer-algorithm",
        "x-amz-server-side-encryption-customer-key",
        "x-amz-server-side-encryption-customer-key-md5",
        "x-amz-copy-source-server-side-encryption-customer-algorithm",
        "x-amz-copy-source-server-side-encryption-customer-key",
        "x-amz-copy-source-server-side-encryption-customer-key-md5",
        "x-amz-write-offset-bytes",
        "x-amz-if-match-last-modified-time",
        "x-amz-if-match-size",
    }
)
"""Headers that ask for what no operation does. Ignoring one would be a broken promise: encryption above all."""

_VERSION_ID_LENGTH = 32
_VERSION_ID_ALPHABET = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz._")


def guarded(handler: Handler) -> Handler:
    """The handler behind the checks of this module. Storage errors come out as S3Error with their details."""

    async def run(call: Call) -> Reply:
        headers = call.request.headers
        if not NOT_IMPLEMENTED.isdisjoint(headers):
            raise _refusal(headers)
        # A key of up to 256 characters cannot exceed 1,024 bytes of UTF-8.
        if len(call.key) > MAX_KEY_BYTES // 4:
            check_key(call.key)
        try:
            if "x-amz-expected-bucket-owner" in headers:
                check_owner(call.objects.bucket(call.bucket), headers["x-amz-expected-bucket-owner"])
            return await handler(call)
        except storage.StorageError as error:
            raise explain(error, call) from error

    return run


def check_key(key: str) -> None:
    """Raises S3Error KeyTooLongError above 1,024 bytes of UTF-8."""
    size = len(key.encode("utf-8", "surrogatepass"))
    if size > MAX_KEY_BYTES:
        raise S3Error("KeyTooLongError", details={"Size": str(size), "MaxSizeAllowed": str(MAX_KEY_BYTES)})


def check_owner(bucket: Bucket, expected: str) -> None:
    """Raises S3Error AccessDenied when the bucket belongs to another account than the client expects."""
    if bucket.owner != expected:
        raise S3Error("AccessDenied")


def check_version_id(value: str) -> bool:
    """Whether a versionId names the null version, the only one an object has.

    False for an id that AWS could have given but that no object here has. Raises S3Error InvalidArgument for what
    is no version id at all.
    """
    if value == NULL_VERSION:
        return True
    if not value:
        raise invalid_argument("Version id cannot be the empty string", "versionId", value)
    if len(value) != _VERSION_ID_LENGTH or not _VERSION_ID_ALPHABET.issuperset(value):
        raise invalid_argument("Invalid version id specified", "versionId", value)
    return False


def invalid_argument(message: str, name: str, value: str) -> S3Error:
    return S3Error("InvalidArgument", message, details={"ArgumentName": name, "ArgumentValue": value})


def no_such_version(key: str, version_id: str) -> S3Error:
    return S3Error("NoSuchVersion", details={"Key": key, "VersionId": version_id})


def explain(error: storage.StorageError, call: Call, *, bucket: str = "", key: str = "") -> S3Error:
    """The S3 error of a storage error, with what AWS names in it. `bucket` and `key` are those of a copy's source."""
    failure = from_storage(error)
    match error:
        case storage.BucketNotFound() | storage.BucketExists() | storage.BucketNotEmpty():
            added = {"BucketName": bucket or call.bucket}
        case storage.ObjectNotFound():
            added = {"Key": key or call.key}
        case storage.UploadNotFound() | storage.InvalidPart():
            added = {"UploadId": call.request.target.get("uploadId") or ""}
        case storage.ConditionFailed():
            added = {"Condition": "If-None-Match" if IF_NONE_MATCH in call.request.headers else "If-Match"}
        case _:
            return failure
    return S3Error(failure.code, failure.message, details={**added, **failure.details}, headers=failure.headers)


def _refusal(headers: Mapping[str, str]) -> S3Error:
    name = next(name for name in headers if name in NOT_IMPLEMENTED)
    return S3Error(
        "NotImplemented", f"The header {name} implies functionality that is not implemented.", details={"Header": name}
    )
