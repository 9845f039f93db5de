"""Response documents of the S3 API. Elements stand in the order in which Amazon S3 writes them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from s3verbs.gateway import documents as d
from s3verbs.gateway.xml.writer import (
    DECLARATION,
    boolean,
    document,
    element,
    escape,
    optional,
    timestamp,
    url_encode,
)
from s3verbs.storage.model import Attributes, Checksum, Upload, Version

Encode = Callable[[str], str]

_STORAGE_CLASS = "x-amz-storage-class"
_STANDARD = "<StorageClass>STANDARD</StorageClass>"


def write(value: object, *, declaration: bool = True) -> bytes:
    """The document of a value of `gateway.documents`, in UTF-8.

    Without `declaration` it can follow a declaration and white space that were sent before the outcome was known
    (`writer.DECLARATION`: nothing, not even white space, may stand before it). Raises KeyError for a value that is
    no response.
    """
    text = _WRITERS[type(value)](value)
    return (DECLARATION + text if declaration else text).encode("utf-8")


def _encoder(encoding_type: str) -> Encode:
    return url_encode if encoding_type == "url" else escape


def _owner(owner: d.Owner, name: str = "Owner") -> str:
    return f"<{name}><ID>{escape(owner.id)}</ID><DisplayName>{escape(owner.display_name)}</DisplayName></{name}>"


def _etag(etag: str) -> str:
    return f"<ETag>&quot;{escape(etag)}&quot;</ETag>"


def _checksum(checksum: Checksum | None, *, kind: bool) -> str:
    if checksum is None:
        return ""
    name = f"Checksum{checksum.algorithm}"
    value = f"<{name}>{checksum.value}</{name}>"
    return f"{value}<ChecksumType>{checksum.kind}</ChecksumType>" if kind else value


def _storage_class(attributes: Attributes) -> str:
    stored = attributes.headers.get(_STORAGE_CLASS)
    return element("StorageClass", escape(stored)) if stored else _STANDARD


def _common_prefixes(prefixes: Iterable[str], encode: Encode) -> str:
    return "".join([f"<CommonPrefixes><Prefix>{encode(p)}</Prefix></CommonPrefixes>" for p in prefixes])


_CHECKSUM_TYPES = {
    (algorithm, kind): f"<ChecksumAlgorithm>{algorithm}</ChecksumAlgorithm><ChecksumType>{kind}</ChecksumType>"
    for algorithm in ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256")
    for kind in ("FULL_OBJECT", "COMPOSITE")
}


def _contents(versions: Iterable[Version], encode: Encode, owner: str) -> str:
    entries: list[str] = []
    append = entries.append
    for version in versions:
        checksum = version.checksum
        headers = version.attributes.headers
        append(
            f"<Contents><Key>{encode(version.key)}</Key><LastModified>{timestamp(version.modified_ns)}</LastModified>"
            f"<ETag>&quot;{version.etag}&quot;</ETag>"
            f"{'' if checksum is None else _CHECKSUM_TYPES[checksum.algorithm, checksum.kind]}"
            f"<Size>{version.size}</Size>{owner}"
            f"{_storage_class(version.attributes) if _STORAGE_CLASS in headers else _STANDARD}</Contents>"
        )
    return "".join(entries)


def _error(value: d.ErrorDocument) -> str:
    details = "".join([element(name, escape(text)) for name, text in value.details.items()])
    return (
        f"<Error><Code>{escape(value.code)}</Code><Message>{escape(value.message)}</Message>{details}"
        f"{optional('Resource', escape(value.resource))}<RequestId>{escape(value.request_id)}</RequestId>"
        f"{element('HostId', escape(value.host_id))}</Error>"
    )


def _list_buckets(value: d.ListAllMyBucketsResult) -> str:
    buckets = "".join(
        [
            f"<Bucket><Name>{escape(b.name)}</Name><CreationDate>{timestamp(b.created_ns)}</CreationDate>"
            f"{optional('BucketRegion', escape(b.region))}</Bucket>"
            for b in value.buckets
        ]
    )
    return document(
        "ListAllMyBucketsResult",
        _owner(value.owner)
        + element("Buckets", buckets)
        + optional("Prefix", escape(value.prefix))
        + optional("ContinuationToken", escape(value.continuation_token)),
    )


def _location(value: d.LocationConstraint) -> str:
    return document("LocationConstraint", "" if value.region == "us-east-1" else escape(value.region))


def _list_objects(value: d.ListBucketResult) -> str:
    encode = _encoder(value.encoding_type)
    next_marker = value.next_marker if value.truncated and value.delimiter else ""
    return document(
        "ListBucketResult",
        element("Name", escape(value.name))
        + element("Prefix", encode(value.prefix))
        + element("Marker", encode(value.marker))
        + optional("NextMarker", encode(next_marker))
        + element("MaxKeys", str(value.max_keys))
        + optional("Delimiter", encode(value.delimiter))
        + optional("EncodingType", escape(value.encoding_type))
        + element("IsTruncated", boolean(value.truncated))
        + _contents(value.versions, encode, _owner(value.owner))
        + _common_prefixes(value.common_prefixes, encode),
    )


def _list_objects_v2(value: d.ListBucketV2Result) -> str:
    encode = _encoder(value.encoding_type)
    token = escape(value.continuation_token)
    return document(
        "ListBucketResult",
        element("Name", escape(value.name))
        + element("Prefix", encode(value.prefix))
        + (element("ContinuationToken", token) if value.continuation_given else optional("ContinuationToken", token))
        + optional("NextContinuationToken", escape(value.next_continuation_token))
        + optional("StartAfter", encode(value.start_after))
        + element("KeyCount", str(value.key_count))
        + element("MaxKeys", str(value.max_keys))
        + optional("Delimiter", encode(value.delimiter))
        + optional("EncodingType", escape(value.encoding_type))
        + element("IsTruncated", boolean(value.truncated))
        + _contents(value.versions, encode, "" if value.owner is None else _owner(value.owner))
        + _common_prefixes(value.common_prefixes, encode),
    )


def _list_versions(value: d.ListVersionsResult) -> str:
    encode = _encoder(value.encoding_type)
    owner = _owner(value.owner)
    entries: list[str] = []
    for version in value.versions:
        checksum = version.checksum
        entries.append(
            f"<Version><Key>{encode(version.key)}</Key><VersionId>{escape(version.version_id)}</VersionId>"
            f"<IsLatest>true</IsLatest><LastModified>{timestamp(version.modified_ns)}</LastModified>"
            f"{_etag(version.etag)}{'' if checksum is None else _CHECKSUM_TYPES[checksum.algorithm, checksum.kind]}"
            f"<Size>{version.size}</Size>{owner}{_storage_class(version.attributes)}</Version>"
        )
    return document(
        "ListVersionsResult",
        element("Name", escape(value.name))
        + element("Prefix", encode(value.prefix))
        + element("KeyMarker", encode(value.key_marker))
        + element("VersionIdMarker", escape(value.version_id_marker))
        + (optional("NextKeyMarker", encode(value.next_key_marker)) if value.truncated else "")
        + (optional("NextVersionIdMarker", escape(value.next_version_id_marker)) if value.truncated else "")
        + element("MaxKeys", str(value.max_keys))
        + optional("Delimiter", encode(value.delimiter))
        + optional("EncodingType", escape(value.encoding_type))
        + element("IsTruncated", boolean(value.truncated))
        + "".join(entries)
        + _common_prefixes(value.common_prefixes, encode),
    )


def _attributes(value: d.GetObjectAttributesResponse) -> str:
    return document(
        "GetObjectAttributesResponse",
        optional("ETag", escape(value.etag))
        + optional("Checksum", _checksum(value.checksum, kind=True))
        + ("" if value.parts is None else _object_parts(value.parts))
        + optional("StorageClass", escape(value.storage_class))
        + ("" if value.size is None else f"<ObjectSize>{value.size}</ObjectSize>"),
    )


def _object_parts(value: d.ObjectParts) -> str:
    parts = [
        f"<Part><PartNumber>{number}</PartNumber><Size>{part.size}</Size>{_checksum(part.checksum, kind=False)}</Part>"
        for number, part in enumerate(value.parts, value.part_number_marker + 1)
    ]
    return element(
        "ObjectParts",
        f"<PartsCount>{value.count}</PartsCount><PartNumberMarker>{value.part_number_marker}</PartNumberMarker>"
        f"<NextPartNumberMarker>{value.part_number_marker + len(parts)}</NextPartNumberMarker>"
        f"<MaxParts>{value.max_parts}</MaxParts><IsTruncated>{boolean(value.truncated)}</IsTruncated>" + "".join(parts),
    )


def _acl(value: d.OwnerFullControl) -> str:
    who = f"<ID>{escape(value.owner.id)}</ID><DisplayName>{escape(value.owner.display_name)}</DisplayName>"
    return document(
        "AccessControlPolicy",
        f"<Owner>{who}</Owner><AccessControlList><Grant>"
        f'<Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser">{who}</Grantee>'
        "<Permission>FULL_CONTROL</Permission></Grant></AccessControlList>",
    )


def _copy_object(value: d.CopyObjectResult) -> str:
    modified = element("LastModified", timestamp(value.last_modified_ns))
    return document("CopyObjectResult", modified + _etag(value.etag) + _checksum(value.checksum, kind=True))


def _copy_part(value: d.CopyPartResult) -> str:
    modified = element("LastModified", timestamp(value.last_modified_ns))
    return document("CopyPartResult", modified + _etag(value.etag) + _checksum(value.checksum, kind=False))


def _initiate(value: d.InitiateMultipartUploadResult) -> str:
    return document(
        "InitiateMultipartUploadResult",
        element("Bucket", escape(value.bucket))
        + element("Key", escape(value.key))
        + element("UploadId", escape(value.upload_id)),
    )


def _complete(value: d.CompleteMultipartUploadResult) -> str:
    return document(
        "CompleteMultipartUploadResult",
        element("Location", escape(value.location))
        + element("Bucket", escape(value.bucket))
        + element("Key", escape(value.key))
        + _etag(value.etag)
        + _checksum(value.checksum, kind=True),
    )


def _upload_checksum(upload: Upload) -> str:
    return optional("ChecksumAlgorithm", escape(upload.checksum_algorithm)) + optional(
        "ChecksumType", escape(upload.checksum_kind)
    )


def _list_parts(value: d.ListPartsResult) -> str:
    parts = "".join(
        [
            f"<Part><PartNumber>{part.number}</PartNumber><LastModified>{timestamp(part.modified_ns)}</LastModified>"
            f"{_etag(part.etag)}<Size>{part.size}</Size>{_checksum(part.checksum, kind=False)}</Part>"
            for part in value.parts
        ]
    )
    return document(
        "ListPartsResult",
        element("Bucket", escape(value.bucket))
        + element("Key", _encoder(value.encoding_type)(value.key))
        + element("UploadId", escape(value.upload.id))
        + _owner(value.initiator, "Initiator")
        + _owner(value.owner)
        + _storage_class(value.upload.attributes)
        + element("PartNumberMarker", str(value.part_number_marker))
        + element("NextPartNumberMarker", str(value.next_part_number_marker))
        + element("MaxParts", str(value.max_parts))
        + optional("EncodingType", escape(value.encoding_type))
        + element("IsTruncated", boolean(value.truncated))
        + _upload_checksum(value.upload)
        + parts,
    )


def _list_uploads(value: d.ListMultipartUploadsResult) -> str:
    encode = _encoder(value.encoding_type)
    owner = _owner(value.owner)

    def initiator(upload: Upload) -> str:
        name = value.owner.display_name if upload.initiator == value.owner.id else upload.initiator
        return _owner(d.Owner(upload.initiator, name), "Initiator")

    uploads = "".join(
        [
            f"<Upload><Key>{encode(upload.key)}</Key><UploadId>{escape(upload.id)}</UploadId>{initiator(upload)}"
            f"{owner}{_storage_class(upload.attributes)}<Initiated>{timestamp(upload.initiated_ns)}</Initiated>"
            f"{_upload_checksum(upload)}</Upload>"
            for upload in value.uploads
        ]
    )
    return document(
        "ListMultipartUploadsResult",
        element("Bucket", escape(value.bucket))
        + element("KeyMarker", encode(value.key_marker))
        + element("UploadIdMarker", escape(value.upload_id_marker))
        + element("NextKeyMarker", encode(value.next_key_marker))
        + element("NextUploadIdMarker", escape(value.next_upload_id_marker))
        + element("Prefix", encode(value.prefix))
        + optional("Delimiter", encode(value.delimiter))
        + optional("EncodingType", escape(value.encoding_type))
        + element("MaxUploads", str(value.max_uploads))
        + element("IsTruncated", boolean(value.truncated))
        + uploads
        + _common_prefixes(value.common_prefixes, encode),
    )


def _delete(value: d.DeleteResult) -> str:
    deleted = [
        f"<Deleted><Key>{escape(one.key)}</Key>{optional('VersionId', escape(one.version_id))}</Deleted>"
        for one in value.deleted
    ]
    errors = [
        f"<Error><Key>{escape(one.key)}</Key>{optional('VersionId', escape(one.version_id))}"
        f"<Code>{escape(one.code)}</Code><Message>{escape(one.message)}</Message></Error>"
        for one in value.errors
    ]
    return document("DeleteResult", "".join(deleted) + "".join(errors))


_WRITERS: Mapping[type, Callable[[Any], str]] = {
    d.ErrorDocument: _error,
    d.ListAllMyBucketsResult: _list_buckets,
    d.LocationConstraint: _location,
    d.ListBucketResult: _list_objects,
    d.ListBucketV2Result: _list_objects_v2,
    d.ListVersionsResult: _list_versions,
    d.GetObjectAttributesResponse: _attributes,
    d.OwnerFullControl: _acl,
    d.CopyObjectResult: _copy_object,
    d.CopyPartResult: _copy_part,
    d.InitiateMultipartUploadResult: _initiate,
    d.CompleteMultipartUploadResult: _complete,
    d.ListPartsResult: _list_parts,
    d.ListMultipartUploadsResult: _list_uploads,
    d.DeleteResult: _delete,
}
