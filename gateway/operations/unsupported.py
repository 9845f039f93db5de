"""Operations that S3 has and this endpoint does not: each answers NotImplemented by its own name."""

from functools import lru_cache

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.operations.base import Call, Operation, Reply

_ACTIONS = {
    # Where IAM's action has another name than the operation. Source: Service Authorization Reference, Amazon S3.
    "DeleteBucketCors": "PutBucketCORS",
    "DeleteBucketEncryption": "PutEncryptionConfiguration",
    "DeleteBucketLifecycle": "PutLifecycleConfiguration",
    "DeleteBucketReplication": "PutReplicationConfiguration",
    "DeleteBucketTagging": "PutBucketTagging",
    "DeletePublicAccessBlock": "PutBucketPublicAccessBlock",
    "GetBucketCors": "GetBucketCORS",
    "GetBucketEncryption": "GetEncryptionConfiguration",
    "GetBucketLifecycle": "GetLifecycleConfiguration",
    "GetBucketLifecycleConfiguration": "GetLifecycleConfiguration",
    "GetBucketNotificationConfiguration": "GetBucketNotification",
    "GetBucketReplication": "GetReplicationConfiguration",
    "GetObjectLockConfiguration": "GetBucketObjectLockConfiguration",
    "GetPublicAccessBlock": "GetBucketPublicAccessBlock",
    "PutBucketCors": "PutBucketCORS",
    "PutBucketEncryption": "PutEncryptionConfiguration",
    "PutBucketLifecycle": "PutLifecycleConfiguration",
    "PutBucketLifecycleConfiguration": "PutLifecycleConfiguration",
    "PutBucketNotificationConfiguration": "PutBucketNotification",
    "PutBucketReplication": "PutReplicationConfiguration",
    "PutObjectLockConfiguration": "PutBucketObjectLockConfiguration",
    "PutPublicAccessBlock": "PutBucketPublicAccessBlock",
    "SelectObjectContent": "GetObject",
}


@lru_cache(maxsize=256)
def operation(name: str) -> Operation:
    """The operation of that name, whose handler raises S3Error NotImplemented."""

    async def refuse(call: Call) -> Reply:
        raise S3Error("NotImplemented", f"{name} is not implemented.", details={"Operation": name})

    return Operation(name, f"s3:{_ACTIONS.get(name, name)}", refuse)
