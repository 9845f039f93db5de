"""What the storage engine raises; `gateway.errors.from_storage` gives each its S3 code.

StorageError
├── NotFound
│   ├── BucketNotFound
│   ├── ObjectNotFound
│   └── UploadNotFound
├── BucketExists
├── BucketNotEmpty
├── ConditionFailed        a conditional write lost
├── InvalidPart            a part named by CompleteMultipartUpload is absent or has another ETag
├── PartTooSmall           a part that is not the last is under 5 MiB
├── StorageFull            no room for a payload or for metadata; nothing was stored
├── StorageBusy            out of descriptors or memory for the moment; the same call may succeed later
├── PayloadDamaged         stored bytes do not match their checksum, or the payload is missing
└── StoreUnusable          the store cannot be opened or written: wrong format, another store's directory, no
                           permission, a failing drive
"""


class StorageError(Exception):
    """Base of everything this package raises on purpose."""


class NotFound(StorageError):
    """The named thing does not exist."""


class BucketNotFound(NotFound):
    """No bucket of that name."""


class ObjectNotFound(NotFound):
    """No object of that key in the bucket."""


class UploadNotFound(NotFound):
    """No multipart upload of that id for that bucket and key: never begun, completed or aborted."""


class BucketExists(StorageError):
    """A bucket of that name exists already."""


class BucketNotEmpty(StorageError):
    """The bucket holds objects."""


class ConditionFailed(StorageError):
    """If-Match or If-None-Match did not hold when the write was decided."""


class InvalidPart(StorageError):
    """A part of the completed list is absent, or its ETag or checksum is another."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class PartTooSmall(StorageError):
    """A part other than the last is smaller than the minimum part size."""

    def __init__(self, message: str, number: int, size: int, etag: str) -> None:
        super().__init__(message)
        self.number = number
        self.size = size
        self.etag = etag


class StorageFull(StorageError):
    """A payload directory or the metadata map has no room left; nothing was stored."""


class StorageBusy(StorageError):
    """The process or the host is out of descriptors or memory for the moment; nothing was stored."""


class PayloadDamaged(StorageError):
    """Stored bytes do not match their checksum, or a payload file is missing."""


class StoreUnusable(StorageError):
    """The store cannot be opened, or a payload directory cannot be written; the message says what to change."""
