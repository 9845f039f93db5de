"""botocore reads the documents written here, and documents that botocore writes are read here."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.gateway import documents as d
from s3verbs.gateway.xml.requests import read_acl, read_complete, read_create_bucket, read_delete
from s3verbs.gateway.xml.responses import write
from s3verbs.storage.model import (
    Bucket,
    Checksum,
    CompletedPart,
    InlinePayload,
    Part,
    Upload,
    Version,
)

SECOND = 1_000_000_000
THEN = datetime(2026, 11, 29, 15, 0, 7, tzinfo=UTC)
THEN_NS = int(THEN.timestamp()) * SECOND + 999_999_999
OWNER = d.Owner("owner-id", "owner & name")
OWNER_FIELDS = {"ID": "owner-id", "DisplayName": "owner & name"}
CRC32 = Checksum("CRC32", "FULL_OBJECT", "y/Q5Jg==")
KEYS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
XML_KEYS = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc",), exclude_characters="\ufffe\uffff"), min_size=1
)


class Body:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self) -> Iterator[bytes]:
        yield self._content


class Endpoint:
    """A client whose requests are kept and answered with `answer` instead of being sent."""

    def __init__(self) -> None:
        self.status = 200
        self.answer = b""
        self.request: AWSPreparedRequest | None = None
        self.client = boto3.client(
            "s3",
            endpoint_url="http://127.0.0.1:9",
            region_name="us-east-1",
            aws_access_key_id="access",
            aws_secret_access_key="secret",
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        )
        self.client.meta.events.register("before-send.s3", self._send)

    def _send(self, request: AWSPreparedRequest, **_: object) -> AWSResponse:
        self.request = request
        return AWSResponse(request.url, self.status, {}, Body(self.answer))

    def parse(self, document: object, call: Callable[[Any], dict[str, Any]], status: int = 200) -> dict[str, Any]:
        """What the client returns for a document, without the metadata of the response."""
        self.answer, self.status = write(document), status
        parsed = call(self.client)
        del parsed["ResponseMetadata"]
        return parsed

    def serialise(self, call: Callable[[Any], object]) -> bytes:
        """The body that the client sends."""
        self.answer, self.status = b"", 200
        call(self.client)
        assert self.request is not None
        body = self.request.body
        return body if isinstance(body, bytes) else body.read()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.client.close()


def version(key: str, checksum: Checksum | None = None) -> Version:
    return Version(key, THEN_NS, 4096, "0123", (), checksum=checksum)


def listed(key: str, **more: object) -> dict[str, object]:
    return {
        "Key": key,
        "LastModified": THEN,
        "ETag": '"0123"',
        "Size": 4096,
        "StorageClass": "STANDARD",
    } | more


def test_list_buckets(endpoint: Endpoint) -> None:
    buckets = [Bucket("a", bytes(8), THEN_NS, "o", region="eu-west-1"), Bucket("b", bytes(8), THEN_NS, "o")]
    document = d.ListAllMyBucketsResult(OWNER, buckets, prefix="p", continuation_token="t")
    assert endpoint.parse(document, lambda client: client.list_buckets()) == {
        "Buckets": [
            {"Name": "a", "CreationDate": THEN, "BucketRegion": "eu-west-1"},
            {"Name": "b", "CreationDate": THEN},
        ],
        "Owner": OWNER_FIELDS,
        "Prefix": "p",
        "ContinuationToken": "t",
    }


def test_list_object_versions(endpoint: Endpoint) -> None:
    document = d.ListVersionsResult(
        name="bk",
        prefix="p q",
        key_marker="k m",
        version_id_marker="null",
        delimiter="/",
        max_keys=1,
        truncated=True,
        next_key_marker="p q r",
        next_version_id_marker="null",
        versions=[version("p q r", CRC32)],
        common_prefixes=["p q/"],
        owner=OWNER,
        encoding_type="url",
    )
    assert endpoint.parse(document, lambda client: client.list_object_versions(Bucket="bk")) == {
        "Name": "bk",
        "Prefix": "p q",
        "KeyMarker": "k m",
        "VersionIdMarker": "null",
        "NextKeyMarker": "p q r",
        "NextVersionIdMarker": "null",
        "Delimiter": "/",
        "MaxKeys": 1,
        "IsTruncated": True,
        "EncodingType": "url",
        "CommonPrefixes": [{"Prefix": "p q/"}],
        "Versions": [
            listed(
                "p q r",
                VersionId="null",
                IsLatest=True,
                Owner=OWNER_FIELDS,
                ChecksumAlgorithm=["CRC32"],
                ChecksumType="FULL_OBJECT",
            )
        ],
    }


@pytest.mark.parametrize(("region", "constraint"), [("us-east-1", None), ("eu-west-1", "eu-west-1")])
def test_bucket_location(endpoint: Endpoint, region: str, constraint: str | None) -> None:
    parsed = endpoint.parse(d.LocationConstraint(region), lambda client: client.get_bucket_location(Bucket="b"))
    assert parsed == {"LocationConstraint": constraint}


def page(keys: list[str], encoding_type: str) -> d.ListBucketV2Result:
    return d.ListBucketV2Result(
        name="b",
        prefix=keys[0],
        delimiter="/",
        max_keys=10,
        key_count=len(keys) + 1,
        truncated=True,
        continuation_token="t1",
        next_continuation_token="t2",
        start_after=keys[0],
        versions=[version(key, CRC32) for key in keys],
        common_prefixes=[keys[0] + "/"],
        owner=OWNER,
        encoding_type=encoding_type,
    )


def expected_page(keys: list[str], **more: object) -> dict[str, object]:
    checksum = {"ChecksumAlgorithm": ["CRC32"], "ChecksumType": "FULL_OBJECT", "Owner": OWNER_FIELDS}
    return {
        "Name": "b",
        "Prefix": keys[0],
        "Delimiter": "/",
        "MaxKeys": 10,
        "KeyCount": len(keys) + 1,
        "IsTruncated": True,
        "ContinuationToken": "t1",
        "NextContinuationToken": "t2",
        "StartAfter": keys[0],
        "Contents": [listed(key, **checksum) for key in keys],
        "CommonPrefixes": [{"Prefix": keys[0] + "/"}],
    } | more


@settings(max_examples=50, deadline=None)
@given(keys=st.lists(KEYS, min_size=1, max_size=4))
def test_list_objects_v2_as_boto3_asks_for_it_returns_any_key(endpoint: Endpoint, keys: list[str]) -> None:
    parsed = endpoint.parse(page(keys, "url"), lambda client: client.list_objects_v2(Bucket="b"))
    assert parsed == expected_page(keys, EncodingType="url")


@settings(max_examples=50, deadline=None)
@given(keys=st.lists(XML_KEYS, min_size=1, max_size=4))
def test_list_objects_v2_without_encoding_returns_keys_that_xml_can_carry(endpoint: Endpoint, keys: list[str]) -> None:
    parsed = endpoint.parse(page(keys, ""), lambda client: client.list_objects_v2(Bucket="b"))
    assert parsed == expected_page(keys)


def test_list_objects(endpoint: Endpoint) -> None:
    document = d.ListBucketResult(
        name="b",
        prefix="a b/",
        marker="a b/0",
        delimiter="/",
        max_keys=2,
        truncated=True,
        next_marker="a b/c+d",
        versions=[version("a b/c&d"), version("a b/c+d")],
        common_prefixes=["a b/é/"],
        owner=OWNER,
        encoding_type="url",
    )
    assert endpoint.parse(document, lambda client: client.list_objects(Bucket="b")) == {
        "Name": "b",
        # botocore decodes every other element of this operation, but not Prefix.
        "Prefix": "a%20b/",
        "Marker": "a b/0",
        "Delimiter": "/",
        "MaxKeys": 2,
        "IsTruncated": True,
        "NextMarker": "a b/c+d",
        "EncodingType": "url",
        "Contents": [listed("a b/c&d", Owner=OWNER_FIELDS), listed("a b/c+d", Owner=OWNER_FIELDS)],
        "CommonPrefixes": [{"Prefix": "a b/é/"}],
    }


def test_object_attributes(endpoint: Endpoint) -> None:
    parts = [Part(7, InlinePayload(bytes(16), 5), "e", 0, CRC32), Part(9, InlinePayload(bytes(16), 6), "e", 0)]
    document = d.GetObjectAttributesResponse(
        "0123-4", CRC32, d.ObjectParts(4, parts, 1, 2, truncated=True), "GLACIER_IR", 22
    )
    parsed = endpoint.parse(
        document, lambda client: client.get_object_attributes(Bucket="b", Key="k", ObjectAttributes=["ETag"])
    )
    assert parsed == {
        "ETag": "0123-4",
        "Checksum": {"ChecksumCRC32": "y/Q5Jg==", "ChecksumType": "FULL_OBJECT"},
        "ObjectParts": {
            "TotalPartsCount": 4,
            "PartNumberMarker": 1,
            "NextPartNumberMarker": 3,
            "MaxParts": 2,
            "IsTruncated": True,
            "Parts": [{"PartNumber": 2, "Size": 5, "ChecksumCRC32": "y/Q5Jg=="}, {"PartNumber": 3, "Size": 6}],
        },
        "StorageClass": "GLACIER_IR",
        "ObjectSize": 22,
    }


def test_access_control_lists(endpoint: Endpoint) -> None:
    parsed = endpoint.parse(d.OwnerFullControl(OWNER), lambda client: client.get_bucket_acl(Bucket="b"))
    grant = {"Grantee": {**OWNER_FIELDS, "Type": "CanonicalUser"}, "Permission": "FULL_CONTROL"}
    assert parsed == {"Owner": OWNER_FIELDS, "Grants": [grant]}
    sent = endpoint.serialise(lambda client: client.put_bucket_acl(Bucket="b", AccessControlPolicy=parsed))
    assert read_acl(sent) == d.AccessControlPolicy("owner-id", [d.Grant("owner-id", "FULL_CONTROL")])


def test_copies(endpoint: Endpoint) -> None:
    copied = endpoint.parse(
        d.CopyObjectResult("0123", THEN_NS, CRC32),
        lambda client: client.copy_object(Bucket="b", Key="k", CopySource="b/j"),
    )
    fields = {"ETag": '"0123"', "LastModified": THEN, "ChecksumCRC32": "y/Q5Jg=="}
    assert copied == {"CopyObjectResult": fields | {"ChecksumType": "FULL_OBJECT"}}
    part = endpoint.parse(
        d.CopyPartResult("0123", THEN_NS, CRC32),
        lambda client: client.upload_part_copy(Bucket="b", Key="k", CopySource="b/j", UploadId="u", PartNumber=1),
    )
    assert part == {"CopyPartResult": fields}


def test_a_multipart_upload(endpoint: Endpoint) -> None:
    begun = endpoint.parse(
        d.InitiateMultipartUploadResult("b", " k&\n", "u"),
        lambda client: client.create_multipart_upload(Bucket="b", Key="k"),
    )
    assert begun == {"Bucket": "b", "Key": " k&\n", "UploadId": "u"}
    completed = endpoint.parse(
        d.CompleteMultipartUploadResult("http://h/b/k", "b", "k", "0123-2", Checksum("SHA1", "COMPOSITE", "c=-2")),
        lambda client: client.complete_multipart_upload(Bucket="b", Key="k", UploadId="u"),
    )
    assert completed == {
        "Location": "http://h/b/k",
        "Bucket": "b",
        "Key": "k",
        "ETag": '"0123-2"',
        "ChecksumSHA1": "c=-2",
        "ChecksumType": "COMPOSITE",
    }


@pytest.mark.parametrize("number", range(5))
def test_every_checksum_has_its_element(endpoint: Endpoint, number: int) -> None:
    algorithm = ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256")[number]
    parsed = endpoint.parse(
        d.CompleteMultipartUploadResult("l", "b", "k", "e-1", Checksum(algorithm, "FULL_OBJECT", "c=")),
        lambda client: client.complete_multipart_upload(Bucket="b", Key="k", UploadId="u"),
    )
    assert parsed[f"Checksum{algorithm}"] == "c="


def test_list_parts(endpoint: Endpoint) -> None:
    upload = Upload("k", "u", THEN_NS, "owner-id", checksum_algorithm="CRC32", checksum_kind="COMPOSITE")
    parts = [Part(2, InlinePayload(bytes(16), 7), "0123", THEN_NS, CRC32), Part(3, InlinePayload(bytes(16), 8), "4", 0)]
    document = d.ListPartsResult("b", "k<>", upload, parts, 1, 3, 2, True, OWNER, OWNER)
    parsed = endpoint.parse(document, lambda client: client.list_parts(Bucket="b", Key="k", UploadId="u"))
    assert parsed == {
        "Bucket": "b",
        "Key": "k<>",
        "UploadId": "u",
        "PartNumberMarker": 1,
        "NextPartNumberMarker": 3,
        "MaxParts": 2,
        "IsTruncated": True,
        "Parts": [
            {"PartNumber": 2, "LastModified": THEN, "ETag": '"0123"', "Size": 7, "ChecksumCRC32": "y/Q5Jg=="},
            {"PartNumber": 3, "LastModified": datetime(1970, 1, 1, tzinfo=UTC), "ETag": '"4"', "Size": 8},
        ],
        "Initiator": OWNER_FIELDS,
        "Owner": OWNER_FIELDS,
        "StorageClass": "STANDARD",
        "ChecksumAlgorithm": "CRC32",
        "ChecksumType": "COMPOSITE",
    }


def test_list_multipart_uploads(endpoint: Endpoint) -> None:
    uploads = [Upload("k1", "u1", THEN_NS, "owner-id", checksum_algorithm="SHA1", checksum_kind="COMPOSITE")]
    document = d.ListMultipartUploadsResult("b", "p", "/", "k0", "u0", "k1", "u1", 1, True, uploads, ["p/"], OWNER)
    parsed = endpoint.parse(document, lambda client: client.list_multipart_uploads(Bucket="b"))
    assert parsed == {
        "Bucket": "b",
        "Prefix": "p",
        "Delimiter": "/",
        "KeyMarker": "k0",
        "UploadIdMarker": "u0",
        "NextKeyMarker": "k1",
        "NextUploadIdMarker": "u1",
        "MaxUploads": 1,
        "IsTruncated": True,
        "Uploads": [
            {
                "Key": "k1",
                "UploadId": "u1",
                "Initiated": THEN,
                "Initiator": OWNER_FIELDS,
                "Owner": OWNER_FIELDS,
                "StorageClass": "STANDARD",
                "ChecksumAlgorithm": "SHA1",
                "ChecksumType": "COMPOSITE",
            }
        ],
        "CommonPrefixes": [{"Prefix": "p/"}],
    }


def test_delete_objects(endpoint: Endpoint) -> None:
    document = d.DeleteResult([d.Deleted(" a&\n"), d.Deleted("b", "null")], [d.DeleteError("c", "Code", "m", "v")])
    parsed = endpoint.parse(
        document, lambda client: client.delete_objects(Bucket="b", Delete={"Objects": [{"Key": "a"}]})
    )
    assert parsed == {
        "Deleted": [{"Key": " a&\n"}, {"Key": "b", "VersionId": "null"}],
        "Errors": [{"Key": "c", "VersionId": "v", "Code": "Code", "Message": "m"}],
    }


def test_errors(endpoint: Endpoint) -> None:
    document = d.ErrorDocument("NoSuchKey", "gone <&>", "/b/k", "request", "host", {"Key": "k", "UploadId": "u"})
    with pytest.raises(ClientError) as caught:
        endpoint.parse(document, lambda client: client.get_object(Bucket="b", Key="k"), 404)
    # The ids of a response are read from its headers.
    assert caught.value.response["Error"] == {
        "Code": "NoSuchKey",
        "Message": "gone <&>",
        "Key": "k",
        "UploadId": "u",
        "Resource": "/b/k",
    }


@settings(max_examples=50, deadline=None)
@given(keys=st.lists(XML_KEYS, min_size=1, max_size=5), quiet=st.booleans())
def test_a_delete_request_of_botocore_is_read_back(endpoint: Endpoint, keys: list[str], quiet: bool) -> None:
    objects = [{"Key": key, "VersionId": "null", "ETag": '"0123"'} for key in keys]
    body = endpoint.serialise(
        lambda client: client.delete_objects(Bucket="b", Delete={"Objects": objects, "Quiet": quiet})
    )
    assert read_delete(body) == d.Delete([d.DeleteEntry(key, "null", "0123") for key in keys], quiet)


@settings(max_examples=50, deadline=None)
@given(numbers=st.lists(st.integers(1, 10_000), min_size=1, max_size=5), quoted=st.booleans())
def test_a_completion_of_botocore_is_read_back(endpoint: Endpoint, numbers: list[int], quoted: bool) -> None:
    etag = '"0123"' if quoted else "0123"
    parts = [{"PartNumber": number, "ETag": etag, "ChecksumCRC32": "y/Q5Jg=="} for number in numbers]

    def call(client: Any) -> object:
        endpoint.answer = write(d.CompleteMultipartUploadResult("l", "b", "k", "e"))
        return client.complete_multipart_upload(Bucket="b", Key="k", UploadId="u", MultipartUpload={"Parts": parts})

    body = endpoint.serialise(call)
    assert read_complete(body).parts == [CompletedPart(number, "0123", CRC32) for number in numbers]


def test_a_bucket_configuration_of_botocore_is_read_back(endpoint: Endpoint) -> None:
    configuration = {"LocationConstraint": "eu-west-1", "Tags": [{"Key": "k", "Value": "v"}]}
    body = endpoint.serialise(lambda client: client.create_bucket(Bucket="b", CreateBucketConfiguration=configuration))
    assert read_create_bucket(body) == d.CreateBucketConfiguration("eu-west-1")
