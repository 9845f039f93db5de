"""S3Error, and the one place where errors of other packages become S3 errors.

S3Error                 carries an S3 code; `error_codes` gives its status and default message
anything else           InternalError, logged with the request id; its text never reaches a client
"""

import errno
from collections.abc import Mapping

from s3verbs.gateway.error_codes import ERROR_CODES
from s3verbs.rdma import errors as rdma
from s3verbs.rdma import headers
from s3verbs.storage import errors as storage


class S3Error(Exception):
    """An error with an S3 code.

    `details` become extra elements of the error document (`Key`, `UploadId`, `PartNumber`, ...), `headers` extra
    response headers (`Retry-After`, ...). Raise it from anywhere in the gateway.
    """

    def __init__(
        self,
        code: str,
        message: str | None = None,
        *,
        details: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        known = ERROR_CODES[code]
        super().__init__(message or known.message)
        self.code = code
        self.status = known.status
        self.message = message or known.message
        self.details: Mapping[str, str] = details or {}
        self.headers: Mapping[str, str] = headers or {}


_SCARCE = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))


def from_system(error: OSError) -> S3Error:
    """The S3 error for what the operating system refused outside the storage engine: SlowDown when this process or the
    host is out of something that comes back."""
    return S3Error("SlowDown" if error.errno in _SCARCE else "InternalError")


def from_rdma(error: rdma.RdmaError) -> S3Error:
    """The S3 error for what the RDMA data plane raised."""
    match error:
        case rdma.Declined():
            return S3Error("NotImplemented", headers={headers.REPLY: headers.DECLINED})
        case rdma.MalformedToken():
            return S3Error("InvalidArgument", str(error))
        case rdma.RemoteAccess():
            return S3Error("InvalidArgument", "The memory that the RDMA token describes cannot be accessed.")
        case _:
            return S3Error("ServiceUnavailable", "The RDMA transfer could not be completed.")


def from_storage(error: storage.StorageError) -> S3Error:
    """The S3 error for what the storage engine raised."""
    match error:
        case storage.BucketNotFound():
            return S3Error("NoSuchBucket")
        case storage.ObjectNotFound():
            return S3Error("NoSuchKey")
        case storage.UploadNotFound():
            return S3Error("NoSuchUpload")
        case storage.BucketExists():
            return S3Error("BucketAlreadyOwnedByYou")
        case storage.BucketNotEmpty():
            return S3Error("BucketNotEmpty")
        case storage.ConditionFailed():
            return S3Error("PreconditionFailed")
        case storage.InvalidPart():
            return S3Error("InvalidPart", details={"PartNumber": str(error.number)})
        case storage.PartTooSmall():
            return S3Error(
                "EntityTooSmall",
                details={
                    "ProposedSize": str(error.size),
                    "MinSizeAllowed": "5242880",
                    "PartNumber": str(error.number),
                    "ETag": error.etag,
                },
            )
        case storage.StorageFull():
            return S3Error("InsufficientStorage")
        case storage.StorageBusy():
            return S3Error("SlowDown")
        case _:
            return S3Error("InternalError")
