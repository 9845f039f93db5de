"""GetBucketAcl, PutBucketAcl, GetObjectAcl, PutObjectAcl where access control lists are disabled.

Every bucket is what S3 calls bucket owner enforced: the only list is full control for its owner. It can be read. A
request that asks for this very list changes nothing and succeeds, any other is refused.

Sources: Amazon S3 API Reference; User Guide, "Controlling ownership of objects and disabling ACLs".
"""

from s3verbs.gateway.documents import Grant, OwnerFullControl
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.headers import X_AMZ_ACL
from s3verbs.gateway.operations.base import Call, Reply
from s3verbs.gateway.operations.buckets import owner_of
from s3verbs.gateway.operations.guard import check_version_id, no_such_version
from s3verbs.gateway.operations.object_headers import check_acl, has_grants
from s3verbs.gateway.xml.requests import read_acl

_DOCUMENT_LIMIT = 64 * 1024


async def get_bucket_acl(call: Call) -> Reply:
    return Reply(document=OwnerFullControl(owner_of(call.objects.bucket(call.bucket), call)))


async def get_object_acl(call: Call) -> Reply:
    reply = _find_object(call)
    reply.document = OwnerFullControl(owner_of(call.objects.bucket(call.bucket), call))
    return reply


async def put_bucket_acl(call: Call) -> Reply:
    call.objects.bucket(call.bucket)
    await _check_request(call)
    return Reply()


async def put_object_acl(call: Call) -> Reply:
    reply = _find_object(call)
    await _check_request(call)
    return reply


def _find_object(call: Call) -> Reply:
    """Raises S3Error NoSuchVersion, InvalidArgument, and what lookup raises."""
    version_id = call.request.target.get("versionId")
    if version_id is not None and not check_version_id(version_id):
        raise no_such_version(call.key, version_id)
    version = call.objects.lookup(call.bucket, call.key)
    return Reply(200, {} if version_id is None else {"x-amz-version-id": version.version_id})


async def _check_request(call: Call) -> None:
    """Raises S3Error: AccessControlListNotSupported, InvalidArgument (no canned list), UnexpectedContent (a list in
    headers and in the body), MissingSecurityHeader (none at all), MalformedACLError."""
    headers = call.request.headers
    body = await call.body.read_document(_DOCUMENT_LIMIT)
    if X_AMZ_ACL in headers or has_grants(headers):
        if body:
            raise S3Error("UnexpectedContent")
        check_acl(headers)
        return
    if not body:
        raise S3Error("MissingSecurityHeader", details={"MissingHeaderName": X_AMZ_ACL})
    asked = read_acl(body)
    owner = call.objects.bucket(call.bucket).owner
    if asked.owner not in ("", owner) or list(asked.grants) != [Grant(owner, "FULL_CONTROL")]:
        raise S3Error("AccessControlListNotSupported")
