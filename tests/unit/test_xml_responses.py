"""Response documents: text, order of elements, and that they are always well-formed."""

from urllib.parse import unquote, unquote_plus
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3verbs.gateway import documents as d
from s3verbs.gateway.xml import writer
from s3verbs.gateway.xml.responses import write
from s3verbs.storage.model import (
    Attributes,
    Bucket,
    Checksum,
    InlinePayload,
    Part,
    Upload,
    Version,
)

NOON = 1_795_968_000_000_000_000  # 2026-11-29T16:00:00Z
OWNER = d.Owner("id", "name")
ANY_TEXT = st.text(st.characters())
XMLNS = f'xmlns="{writer.NAMESPACE}"'
OWNER_XML = "<Owner><ID>id</ID><DisplayName>name</DisplayName></Owner>"


def version(key: str, checksum: Checksum | None = None, **headers: str) -> Version:
    attributes = Attributes(headers={name.replace("_", "-"): value for name, value in headers.items()})
    return Version(key, NOON, 7, "e1", (), checksum=checksum, attributes=attributes)


def text(value: object) -> str:
    written = write(value).decode()
    assert written.startswith('<?xml version="1.0" encoding="UTF-8"?>\n<')
    return written.partition("\n")[2]


def listing(**changes: object) -> d.ListBucketV2Result:
    fields: dict[str, object] = {
        "name": "bk",
        "prefix": "",
        "delimiter": "",
        "max_keys": 1000,
        "key_count": 0,
        "truncated": False,
        "continuation_token": "",
        "next_continuation_token": "",
        "start_after": "",
        "versions": [],
        "common_prefixes": [],
    }
    return d.ListBucketV2Result(**(fields | changes))  # type: ignore[arg-type]


def listing_v1(**changes: object) -> d.ListBucketResult:
    fields: dict[str, object] = {
        "name": "bk",
        "prefix": "",
        "marker": "",
        "delimiter": "",
        "max_keys": 1000,
        "truncated": False,
        "next_marker": "",
        "versions": [],
        "common_prefixes": [],
        "owner": OWNER,
    }
    return d.ListBucketResult(**(fields | changes))  # type: ignore[arg-type]


def test_versions_stand_before_prefixes_and_carry_their_ids() -> None:
    document = d.ListVersionsResult(
        name="bk",
        prefix="",
        key_marker="",
        version_id_marker="",
        delimiter="/",
        max_keys=2,
        truncated=True,
        next_key_marker="c/",
        next_version_id_marker="",
        versions=[version("a&b", Checksum("CRC32", "FULL_OBJECT", "y/Q5Jg=="))],
        common_prefixes=["c/"],
        owner=OWNER,
    )
    assert text(document) == (
        f"<ListVersionsResult {XMLNS}><Name>bk</Name><Prefix/><KeyMarker/><VersionIdMarker/>"
        "<NextKeyMarker>c/</NextKeyMarker><MaxKeys>2</MaxKeys><Delimiter>/</Delimiter><IsTruncated>true</IsTruncated>"
        "<Version><Key>a&amp;b</Key><VersionId>null</VersionId><IsLatest>true</IsLatest>"
        "<LastModified>2026-11-29T16:00:00.000Z</LastModified><ETag>&quot;e1&quot;</ETag>"
        "<ChecksumAlgorithm>CRC32</ChecksumAlgorithm><ChecksumType>FULL_OBJECT</ChecksumType>"
        f"<Size>7</Size>{OWNER_XML}<StorageClass>STANDARD</StorageClass></Version>"
        "<CommonPrefixes><Prefix>c/</Prefix></CommonPrefixes></ListVersionsResult>"
    )


def test_attributes_that_were_not_asked_for_have_no_element() -> None:
    assert text(d.GetObjectAttributesResponse()) == f"<GetObjectAttributesResponse {XMLNS}/>"
    assert text(d.GetObjectAttributesResponse(size=0)) == (
        f"<GetObjectAttributesResponse {XMLNS}><ObjectSize>0</ObjectSize></GetObjectAttributesResponse>"
    )


def test_parts_in_attributes_are_numbered_after_the_marker() -> None:
    parts = [Part(9, InlinePayload(bytes(16), size), "e", NOON) for size in (5, 6)]
    document = d.GetObjectAttributesResponse(etag="e1-4", parts=d.ObjectParts(4, parts, 2, 2, truncated=False))
    assert text(document) == (
        f"<GetObjectAttributesResponse {XMLNS}><ETag>e1-4</ETag><ObjectParts><PartsCount>4</PartsCount>"
        "<PartNumberMarker>2</PartNumberMarker><NextPartNumberMarker>4</NextPartNumberMarker><MaxParts>2</MaxParts>"
        "<IsTruncated>false</IsTruncated><Part><PartNumber>3</PartNumber><Size>5</Size></Part>"
        "<Part><PartNumber>4</PartNumber><Size>6</Size></Part></ObjectParts></GetObjectAttributesResponse>"
    )


def test_an_empty_listing_has_an_empty_prefix_and_no_optional_elements() -> None:
    assert text(listing()) == (
        f"<ListBucketResult {XMLNS}><Name>bk</Name><Prefix/><KeyCount>0</KeyCount><MaxKeys>1000</MaxKeys>"
        "<IsTruncated>false</IsTruncated></ListBucketResult>"
    )


def test_a_page_of_list_objects_v2() -> None:
    page = listing(
        prefix="p/",
        delimiter="/",
        max_keys=2,
        key_count=2,
        truncated=True,
        continuation_token="t1",
        next_continuation_token="t2",
        start_after="p/0",
        versions=[version("p/a&b", Checksum("CRC32", "FULL_OBJECT", "y/Q5Jg=="))],
        common_prefixes=["p/x/"],
        owner=OWNER,
    )
    assert text(page) == (
        f"<ListBucketResult {XMLNS}><Name>bk</Name><Prefix>p/</Prefix><ContinuationToken>t1</ContinuationToken>"
        "<NextContinuationToken>t2</NextContinuationToken><StartAfter>p/0</StartAfter><KeyCount>2</KeyCount>"
        "<MaxKeys>2</MaxKeys><Delimiter>/</Delimiter><IsTruncated>true</IsTruncated><Contents><Key>p/a&amp;b</Key>"
        "<LastModified>2026-11-29T16:00:00.000Z</LastModified><ETag>&quot;e1&quot;</ETag>"
        "<ChecksumAlgorithm>CRC32</ChecksumAlgorithm><ChecksumType>FULL_OBJECT</ChecksumType><Size>7</Size>"
        f"{OWNER_XML}<StorageClass>STANDARD</StorageClass></Contents>"
        "<CommonPrefixes><Prefix>p/x/</Prefix></CommonPrefixes></ListBucketResult>"
    )


def test_an_empty_continuation_token_is_written_only_when_it_was_given() -> None:
    assert "<ContinuationToken/>" in text(listing(continuation_given=True))
    assert "ContinuationToken" not in text(listing())


def test_a_page_of_list_objects() -> None:
    page = listing_v1(marker="m", delimiter="/", truncated=True, next_marker="n", versions=[version("k")])
    assert text(page) == (
        f"<ListBucketResult {XMLNS}><Name>bk</Name><Prefix/><Marker>m</Marker><NextMarker>n</NextMarker>"
        "<MaxKeys>1000</MaxKeys><Delimiter>/</Delimiter><IsTruncated>true</IsTruncated><Contents><Key>k</Key>"
        "<LastModified>2026-11-29T16:00:00.000Z</LastModified><ETag>&quot;e1&quot;</ETag><Size>7</Size>"
        f"{OWNER_XML}<StorageClass>STANDARD</StorageClass></Contents></ListBucketResult>"
    )


@pytest.mark.parametrize(("truncated", "delimiter"), [(True, ""), (False, "/")])
def test_next_marker_needs_a_truncated_page_and_a_delimiter(truncated: bool, delimiter: str) -> None:
    assert "NextMarker" not in text(listing_v1(truncated=truncated, delimiter=delimiter, next_marker="n"))


def test_encoding_type_url_encodes_keys_and_prefixes_but_not_tokens() -> None:
    written = text(
        listing(
            encoding_type="url",
            prefix="a b/",
            delimiter="+",
            start_after="é",
            next_continuation_token="t=&",
            versions=[version("a b/c+d(1)\x01")],
            common_prefixes=["a b/%/"],
        )
    )
    assert "<EncodingType>url</EncodingType>" in written
    assert "<Prefix>a%20b/</Prefix>" in written
    assert "<Delimiter>%2B</Delimiter>" in written
    assert "<StartAfter>%C3%A9</StartAfter>" in written
    assert "<Key>a%20b/c%2Bd%281%29%01</Key>" in written
    assert "<Prefix>a%20b/%25/</Prefix>" in written
    assert "<NextContinuationToken>t=&amp;</NextContinuationToken>" in written


def test_a_stored_storage_class_is_shown() -> None:
    written = text(listing(versions=[version("k", x_amz_storage_class="STANDARD_IA")]))
    assert "<StorageClass>STANDARD_IA</StorageClass>" in written


def test_an_error_has_no_namespace_and_its_details_in_order() -> None:
    error = d.ErrorDocument("NoSuchKey", "gone & <lost>", "/bk/k", "R1", "H1", {"Key": "k", "A": ""})
    assert text(error) == (
        "<Error><Code>NoSuchKey</Code><Message>gone &amp; &lt;lost&gt;</Message><Key>k</Key><A/>"
        "<Resource>/bk/k</Resource><RequestId>R1</RequestId><HostId>H1</HostId></Error>"
    )


def test_buckets() -> None:
    bucket = Bucket("bk", bytes(8), NOON, "id", region="eu-west-1")
    assert text(d.ListAllMyBucketsResult(OWNER, [bucket], "b", "t")) == (
        f"<ListAllMyBucketsResult {XMLNS}>{OWNER_XML}<Buckets><Bucket><Name>bk</Name>"
        "<CreationDate>2026-11-29T16:00:00.000Z</CreationDate><BucketRegion>eu-west-1</BucketRegion></Bucket>"
        "</Buckets><Prefix>b</Prefix><ContinuationToken>t</ContinuationToken></ListAllMyBucketsResult>"
    )
    assert "<Buckets/>" in text(d.ListAllMyBucketsResult(OWNER, []))


def test_the_default_region_is_an_empty_location() -> None:
    assert text(d.LocationConstraint("us-east-1")) == f"<LocationConstraint {XMLNS}/>"
    assert text(d.LocationConstraint("eu-west-1")) == f"<LocationConstraint {XMLNS}>eu-west-1</LocationConstraint>"


def test_copies() -> None:
    checksum = Checksum("SHA1", "FULL_OBJECT", "c=")
    start = "<LastModified>2026-11-29T16:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag>"
    assert text(d.CopyObjectResult("e", NOON, checksum)) == (
        f"<CopyObjectResult {XMLNS}>{start}<ChecksumSHA1>c=</ChecksumSHA1><ChecksumType>FULL_OBJECT</ChecksumType>"
        "</CopyObjectResult>"
    )
    assert text(d.CopyPartResult("e", NOON, checksum)) == (
        f"<CopyPartResult {XMLNS}>{start}<ChecksumSHA1>c=</ChecksumSHA1></CopyPartResult>"
    )


def test_a_completed_upload() -> None:
    result = d.CompleteMultipartUploadResult("http://h/bk/k", "bk", "k", "e-2", Checksum("CRC32", "COMPOSITE", "c-2"))
    assert text(result) == (
        f"<CompleteMultipartUploadResult {XMLNS}><Location>http://h/bk/k</Location><Bucket>bk</Bucket><Key>k</Key>"
        "<ETag>&quot;e-2&quot;</ETag><ChecksumCRC32>c-2</ChecksumCRC32><ChecksumType>COMPOSITE</ChecksumType>"
        "</CompleteMultipartUploadResult>"
    )


def test_a_document_can_follow_a_declaration_that_was_sent_before() -> None:
    result = d.InitiateMultipartUploadResult("bk", "k", "u")
    sent = writer.DECLARATION.encode() + b"   " + write(result, declaration=False)
    assert ElementTree.fromstring(sent).tag == f"{{{writer.NAMESPACE}}}InitiateMultipartUploadResult"


def test_parts_of_an_upload() -> None:
    part = Part(3, InlinePayload(bytes(16), 9), "e3", NOON, Checksum("CRC32", "FULL_OBJECT", "c="))
    upload = Upload("k", "u", NOON, "id", checksum_algorithm="CRC32", checksum_kind="COMPOSITE")
    initiator = OWNER_XML.replace("Owner", "Initiator")
    assert text(d.ListPartsResult("bk", "k", upload, [part], 2, 3, 1, True, OWNER, OWNER)) == (
        f"<ListPartsResult {XMLNS}><Bucket>bk</Bucket><Key>k</Key><UploadId>u</UploadId>{initiator}{OWNER_XML}"
        "<StorageClass>STANDARD</StorageClass><PartNumberMarker>2</PartNumberMarker>"
        "<NextPartNumberMarker>3</NextPartNumberMarker><MaxParts>1</MaxParts><IsTruncated>true</IsTruncated>"
        "<ChecksumAlgorithm>CRC32</ChecksumAlgorithm><ChecksumType>COMPOSITE</ChecksumType>"
        "<Part><PartNumber>3</PartNumber><LastModified>2026-11-29T16:00:00.000Z</LastModified>"
        "<ETag>&quot;e3&quot;</ETag><Size>9</Size><ChecksumCRC32>c=</ChecksumCRC32></Part></ListPartsResult>"
    )


def test_uploads_of_a_bucket() -> None:
    uploads = [Upload("k 1", "u1", NOON, "id"), Upload("k2", "u2", NOON, "other", checksum_algorithm="SHA1")]
    written = text(
        d.ListMultipartUploadsResult("bk", "k", "/", "a", "b", "c", "d", 2, True, uploads, ["k/"], OWNER, "url")
    )
    assert written.startswith(
        f"<ListMultipartUploadsResult {XMLNS}><Bucket>bk</Bucket><KeyMarker>a</KeyMarker>"
        "<UploadIdMarker>b</UploadIdMarker><NextKeyMarker>c</NextKeyMarker>"
        "<NextUploadIdMarker>d</NextUploadIdMarker><Prefix>k</Prefix><Delimiter>/</Delimiter>"
        "<EncodingType>url</EncodingType><MaxUploads>2</MaxUploads><IsTruncated>true</IsTruncated>"
        "<Upload><Key>k%201</Key><UploadId>u1</UploadId><Initiator><ID>id</ID><DisplayName>name</DisplayName>"
        f"</Initiator>{OWNER_XML}<StorageClass>STANDARD</StorageClass>"
        "<Initiated>2026-11-29T16:00:00.000Z</Initiated></Upload>"
    )
    assert "<Initiator><ID>other</ID><DisplayName>other</DisplayName></Initiator>" in written
    assert "<ChecksumAlgorithm>SHA1</ChecksumAlgorithm></Upload><CommonPrefixes><Prefix>k/</Prefix>" in written


def test_deletions() -> None:
    result = d.DeleteResult([d.Deleted("a&b"), d.Deleted("c", "null")], [d.DeleteError("d", "C", "m", "null")])
    assert text(result) == (
        f"<DeleteResult {XMLNS}><Deleted><Key>a&amp;b</Key></Deleted><Deleted><Key>c</Key><VersionId>null</VersionId>"
        "</Deleted><Error><Key>d</Key><VersionId>null</VersionId><Code>C</Code><Message>m</Message></Error>"
        "</DeleteResult>"
    )
    assert text(d.DeleteResult([], [])) == f"<DeleteResult {XMLNS}/>"


def test_what_is_no_response_is_a_programming_error() -> None:
    with pytest.raises(KeyError):
        write(d.CreateBucketConfiguration())


def test_times_are_whole_seconds_of_any_day() -> None:
    assert writer.timestamp(0) == "1970-01-01T00:00:00.000Z"
    assert writer.timestamp(951_782_399_999_999_999) == "2000-02-28T23:59:59.000Z"
    assert writer.timestamp(951_782_400_000_000_000) == "2000-02-29T00:00:00.000Z"


def xml_can_carry(character: str) -> bool:
    return character in "\t\n\r" or (
        ("\x20" <= character < "\ud800" or character >= "\ue000") and character not in "\ufffe\uffff"
    )


@given(ANY_TEXT)
def test_escaped_text_is_well_formed_and_equal_but_for_what_xml_cannot_carry(any_text: str) -> None:
    parsed = ElementTree.fromstring(f"<a>{writer.escape(any_text)}</a>".encode())
    assert (parsed.text or "") == "".join(c if xml_can_carry(c) else "\ufffd" for c in any_text)


@given(st.text(st.characters(codec="utf-8")))
def test_url_encoding_is_undone_by_form_decoding_and_needs_no_escape(any_text: str) -> None:
    encoded = writer.url_encode(any_text)
    assert unquote(encoded) == unquote_plus(encoded) == any_text
    assert encoded == writer.escape(encoded)
    assert encoded.isascii()


@given(ANY_TEXT, st.sampled_from(["", "url"]))
def test_every_document_is_well_formed_whatever_its_texts(any_text: str, encoding: str) -> None:
    upload = Upload(any_text, any_text, NOON, any_text)
    owner = d.Owner(any_text, any_text)
    values = [
        d.ErrorDocument("C", any_text, any_text, any_text, any_text, {"Key": any_text}),
        d.ListAllMyBucketsResult(owner, [], any_text, any_text),
        listing(prefix=any_text, versions=[version(any_text)], common_prefixes=[any_text], encoding_type=encoding),
        listing_v1(marker=any_text, versions=[version(any_text)], delimiter=any_text, encoding_type=encoding),
        d.InitiateMultipartUploadResult(any_text, any_text, any_text),
        d.CompleteMultipartUploadResult(any_text, any_text, any_text, any_text),
        d.ListPartsResult(any_text, any_text, upload, [], 0, 0, 0, False, owner, owner),
        d.ListMultipartUploadsResult(
            any_text, any_text, any_text, "", "", any_text, "", 1, True, [upload], [any_text], owner, encoding
        ),
        d.DeleteResult([d.Deleted(any_text)], [d.DeleteError(any_text, "C", any_text)]),
    ]
    for value in values:
        ElementTree.fromstring(write(value))
