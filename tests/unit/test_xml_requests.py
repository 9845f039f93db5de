"""Request documents as values."""

import contextlib
import threading
from collections.abc import Callable
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3verbs.gateway.documents import AccessControlPolicy, CreateBucketConfiguration, Delete, DeleteEntry, Grant
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.xml.requests import LOOP_BYTES, read, read_acl, read_complete, read_create_bucket, read_delete
from s3verbs.storage.model import Checksum, CompletedPart

KEYS = st.text(
    st.characters(
        codec="utf-8", exclude_categories=("Cs", "Cc"), include_characters="\n\t\r", exclude_characters="\ufffe\uffff"
    ),
    min_size=1,
)


def code(read: Callable[[bytes], object], body: bytes) -> str:
    with pytest.raises(S3Error) as caught:
        read(body)
    return caught.value.code


def delete(*objects: str, quiet: str = "") -> bytes:
    return f"<Delete>{quiet}{''.join(f'<Object>{inner}</Object>' for inner in objects)}</Delete>".encode()


def test_a_delete_request() -> None:
    body = delete(
        "<Key>a</Key>",
        '<Key> b\n</Key><VersionId> null </VersionId><ETag>"e"</ETag><Later>1</Later>',
        quiet="<Quiet>true</Quiet>",
    )
    assert read_delete(body) == Delete([DeleteEntry("a"), DeleteEntry(" b\n", "null", "e")], True)


@pytest.mark.parametrize(
    ("quiet", "expected"),
    [("<Quiet>TRUE</Quiet>", True), ("<Quiet> 1 </Quiet>", True), ("<Quiet>false</Quiet>", False), ("<Quiet/>", False)],
)
def test_quiet_is_an_xml_boolean(quiet: str, expected: bool) -> None:
    assert read_delete(delete("<Key>a</Key>", quiet=quiet)).quiet is expected


def test_a_thousand_objects_are_accepted_and_one_more_is_not() -> None:
    assert len(read_delete(delete(*["<Key>a</Key>"] * 1000)).objects) == 1000
    assert code(read_delete, delete(*["<Key>a</Key>"] * 1001)) == "MalformedXML"


@pytest.mark.parametrize(
    "body",
    [
        delete(),
        delete(""),
        delete("<Key/>"),
        delete("<Key>a</Key><Key>b</Key>"),
        delete("<Key><b/></Key>"),
        delete("<Key>a</Key>", quiet="<Quiet>maybe</Quiet>"),
        b"<Deletes><Object><Key>a</Key></Object></Deletes>",
    ],
)
def test_a_delete_request_that_names_no_objects_properly_is_malformed(body: bytes) -> None:
    assert code(read_delete, body) == "MalformedXML"


@pytest.mark.parametrize("condition", ["<Size>1</Size>", "<LastModifiedTime>x</LastModifiedTime>"])
def test_a_condition_that_cannot_be_honoured_is_refused(condition: str) -> None:
    assert code(read_delete, delete(f"<Key>a</Key>{condition}")) == "NotImplemented"


@given(st.lists(KEYS, min_size=1, max_size=5))
def test_keys_survive_exactly(keys: list[str]) -> None:
    entities = {"\r": "&#13;", "\n": "&#10;", "\t": "&#9;"}
    body = delete(*(f"<Key>{escape(key, entities)}</Key>" for key in keys))
    assert [entry.key for entry in read_delete(body).objects] == keys


def complete(*parts: str) -> bytes:
    inner = "".join(f"<Part>{part}</Part>" for part in parts)
    return f"<CompleteMultipartUpload>{inner}</CompleteMultipartUpload>".encode()


@pytest.mark.parametrize("etag", ["e1", '"e1"', "&quot;e1&quot;", " e1\n", "&amp;quot;e1&amp;quot;", "&#34;e1&#34;"])
def test_etags_come_with_and_without_quotes(etag: str) -> None:
    body = complete(f"<PartNumber>1</PartNumber><ETag>{etag}</ETag>")
    assert read_complete(body).parts == [CompletedPart(1, "e1")]


def test_parts_keep_their_order_and_their_checksums() -> None:
    body = complete(
        "<ETag>b</ETag><PartNumber> 2 </PartNumber><ChecksumCRC32>y/Q5Jg==</ChecksumCRC32>",
        "<PartNumber>10000</PartNumber><ETag>a</ETag>",
    )
    assert read_complete(body).parts == [
        CompletedPart(2, "b", Checksum("CRC32", "FULL_OBJECT", "y/Q5Jg==")),
        CompletedPart(10000, "a"),
    ]


@pytest.mark.parametrize("number", ["0", "10001", "-1", "+1", "1.0", "", "a", "\u0661", "1 2", "9" * 5000])
def test_a_part_number_outside_1_to_10000_is_malformed(number: str) -> None:
    assert code(read_complete, complete(f"<PartNumber>{number}</PartNumber><ETag>e</ETag>")) == "MalformedXML"


@pytest.mark.parametrize(
    "body",
    [
        complete(),
        complete(""),
        complete("<PartNumber>1</PartNumber>"),
        complete("<ETag>e</ETag>"),
        complete("<PartNumber>1</PartNumber><ETag>e</ETag><ETag>f</ETag>"),
        complete(*["<PartNumber>1</PartNumber><ETag>e</ETag>"] * 10_001),
        b"",
    ],
)
def test_a_completion_without_proper_parts_is_malformed(body: bytes) -> None:
    assert code(read_complete, body) == "MalformedXML"


@pytest.mark.parametrize(
    "checksums",
    [
        "<ChecksumCRC32>AAAA</ChecksumCRC32>",
        "<ChecksumCRC32/>",
        "<ChecksumCRC32>y/Q5Jg==</ChecksumCRC32><ChecksumCRC32C>4waSgw==</ChecksumCRC32C>",
    ],
)
def test_a_part_has_at_most_one_checksum_of_the_right_length(checksums: str) -> None:
    body = complete(f"<PartNumber>1</PartNumber><ETag>e</ETag>{checksums}")
    assert code(read_complete, body) == "InvalidArgument"


def test_a_bucket_configuration() -> None:
    inner = b"<LocationConstraint> eu-west-1 </LocationConstraint><Tags/>"
    body = b"<CreateBucketConfiguration>" + inner + b"</CreateBucketConfiguration>"
    assert read_create_bucket(body) == CreateBucketConfiguration("eu-west-1")
    assert read_create_bucket(b"") == CreateBucketConfiguration("")
    assert read_create_bucket(b"<CreateBucketConfiguration/>") == CreateBucketConfiguration("")
    assert code(read_create_bucket, b"<Other/>") == "MalformedXML"


def acl(inner: str) -> bytes:
    return f"<AccessControlPolicy>{inner}</AccessControlPolicy>".encode()


def test_an_access_control_list() -> None:
    grantee = '<Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="Group"><URI>all</URI></Grantee>'
    body = acl(
        "<Owner><ID>me</ID></Owner><AccessControlList>"
        "<Grant><Grantee><ID>you</ID></Grantee><Permission>READ</Permission></Grant>"
        f"<Grant>{grantee}<Permission>WRITE_ACP</Permission></Grant></AccessControlList>"
    )
    assert read_acl(body) == AccessControlPolicy("me", [Grant("you", "READ"), Grant("", "WRITE_ACP")])
    assert read_acl(acl("<AccessControlList/>")) == AccessControlPolicy("", [])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<Other/>",
        b"<AccessControlPolicy>",
        acl(""),
        acl("<AccessControlList/><AccessControlList/>"),
        acl("<AccessControlList><Grant><Permission>READ</Permission></Grant></AccessControlList>"),
        acl("<AccessControlList><Grant><Grantee/><Permission>ALL</Permission></Grant></AccessControlList>"),
        acl("<Owner/><Owner/><AccessControlList/>"),
    ],
)
def test_a_malformed_access_control_list(body: bytes) -> None:
    assert code(read_acl, body) == "MalformedACLError"


WORDS = """
    <Delete> </Delete> <Object> </Object> <Key> </Key> <Quiet> </Quiet> <Part> </Part> <PartNumber>1</PartNumber>
    <CompleteMultipartUpload> </CompleteMultipartUpload> <ETag>e</ETag> <LocationConstraint/> &amp; a
    <CreateBucketConfiguration> </CreateBucketConfiguration>
"""
FRAGMENTS = st.sampled_from([" ", *WORDS.split()])


@given(st.lists(FRAGMENTS, max_size=12), st.sampled_from([read_delete, read_complete, read_create_bucket]))
def test_any_document_gives_a_value_or_an_s3_error(fragments: list[str], read: Callable[[bytes], object]) -> None:
    with contextlib.suppress(S3Error):
        assert read("".join(fragments).encode()) is not None


async def test_a_large_document_is_read_off_the_event_loop() -> None:
    def where(body: bytes) -> int:
        return threading.get_ident()

    assert await read(where, b"x" * LOOP_BYTES) == threading.get_ident()
    assert await read(where, b"x" * (LOOP_BYTES + 1)) != threading.get_ident()
    with pytest.raises(S3Error):
        await read(read_complete, b"x" * (LOOP_BYTES + 1))
