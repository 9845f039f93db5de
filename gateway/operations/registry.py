"""Every operation of the endpoint, by S3's name."""

from collections.abc import Mapping
from types import MappingProxyType

from s3verbs.gateway.operations import unsupported
from s3verbs.gateway.operations.acl import get_bucket_acl, get_object_acl, put_bucket_acl, put_object_acl
from s3verbs.gateway.operations.base import Handler, Operation
from s3verbs.gateway.operations.buckets import create_bucket, delete_bucket, get_bucket_location, head_bucket
from s3verbs.gateway.operations.copy_object import copy_object
from s3verbs.gateway.operations.delete_objects import delete_object, delete_objects
from s3verbs.gateway.operations.get_object import get_object, head_object
from s3verbs.gateway.operations.guard import guarded
from s3verbs.gateway.operations.list_objects import list_object_versions, list_objects, list_objects_v2
from s3verbs.gateway.operations.multipart import (
    abort_multipart_upload,
    complete_multipart_upload,
    create_multipart_upload,
    list_multipart_uploads,
    list_parts,
)
from s3verbs.gateway.operations.object_attributes import get_object_attributes
from s3verbs.gateway.operations.put_object import put_object
from s3verbs.gateway.operations.service import list_buckets
from s3verbs.gateway.operations.upload_part import upload_part, upload_part_copy

_TABLE: tuple[tuple[str, str, Handler], ...] = (
    ("ListBuckets", "s3:ListAllMyBuckets", list_buckets),
    ("CreateBucket", "s3:CreateBucket", create_bucket),
    ("HeadBucket", "s3:ListBucket", head_bucket),
    ("DeleteBucket", "s3:DeleteBucket", delete_bucket),
    ("GetBucketLocation", "s3:GetBucketLocation", get_bucket_location),
    ("ListObjects", "s3:ListBucket", list_objects),
    ("ListObjectsV2", "s3:ListBucket", list_objects_v2),
    ("ListObjectVersions", "s3:ListBucketVersions", list_object_versions),
    ("GetObject", "s3:GetObject", get_object),
    ("HeadObject", "s3:GetObject", head_object),
    ("GetObjectAttributes", "s3:GetObjectAttributes", get_object_attributes),
    ("GetBucketAcl", "s3:GetBucketAcl", get_bucket_acl),
    ("PutBucketAcl", "s3:PutBucketAcl", put_bucket_acl),
    ("GetObjectAcl", "s3:GetObjectAcl", get_object_acl),
    ("PutObjectAcl", "s3:PutObjectAcl", put_object_acl),
    ("PutObject", "s3:PutObject", put_object),
    ("CopyObject", "s3:PutObject", copy_object),
    ("DeleteObject", "s3:DeleteObject", delete_object),
    ("DeleteObjects", "s3:DeleteObject", delete_objects),
    ("CreateMultipartUpload", "s3:PutObject", create_multipart_upload),
    ("UploadPart", "s3:PutObject", upload_part),
    ("UploadPartCopy", "s3:PutObject", upload_part_copy),
    ("CompleteMultipartUpload", "s3:PutObject", complete_multipart_upload),
    ("AbortMultipartUpload", "s3:AbortMultipartUpload", abort_multipart_upload),
    ("ListParts", "s3:ListMultipartUploadParts", list_parts),
    ("ListMultipartUploads", "s3:ListBucketMultipartUploads", list_multipart_uploads),
)

# Those whose client expects an error inside a 200, because the work may outlast a connection's patience.
_SLOW = frozenset({"CompleteMultipartUpload", "CopyObject", "UploadPartCopy"})

OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {name: Operation(name, action, guarded(handler), slow=name in _SLOW) for name, action, handler in _TABLE}
)


def find(name: str) -> Operation:
    """The operation of that name; one that is not here answers NotImplemented by name."""
    return OPERATIONS.get(name) or unsupported.operation(name)
