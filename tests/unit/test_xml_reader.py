"""Reading request documents: what is accepted, what is refused, and that nothing else comes out."""

import contextlib
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.xml import reader

XML_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff"))


def refused(body: bytes, root: str = "a") -> None:
    with pytest.raises(S3Error) as caught:
        reader.parse(body, root)
    assert caught.value.code == "MalformedXML"


def test_text_is_kept_exactly() -> None:
    root = reader.parse(b"<a>\n <b> x\ny\t</b>\n <c/> <d>&#13;&#10;&amp;&lt;&quot;<![CDATA[<&>]]></d> </a>", "a")
    assert root.text("b") == " x\ny\t"
    assert root.text("c") == ""
    assert root.text("d") == '\r\n&<"<&>'
    assert root.text("e") is None


def test_comments_and_instructions_do_not_split_text() -> None:
    assert reader.parse(b"<?xml version='1.0'?><a><b>x<!-- - -->y<?p i?>z</b></a>", "a").text("b") == "xyz"


@pytest.mark.parametrize(
    "body",
    [
        b"<a xmlns='http://s3.amazonaws.com/doc/2006-03-01/'><b>x</b></a>",
        b"<s3:a xmlns:s3='http://s3.amazonaws.com/doc/2006-03-01/'><s3:b>x</s3:b></s3:a>",
        b"<a xmlns='urn:other'><b xmlns=''>x</b></a>",
        b"\xef\xbb\xbf<?xml version='1.0' encoding='utf-8' standalone='yes'?><a z='1'><b y='2'>x</b></a>",
    ],
)
def test_prefixes_namespaces_attributes_and_a_byte_order_mark_are_tolerated(body: bytes) -> None:
    assert reader.parse(body, "a").text("b") == "x"


def test_children_of_a_name_come_in_order() -> None:
    root = reader.parse(b"<a><b>1</b><c>2</c><b>3</b></a>", "a")
    assert [child.content for child in root.all("b")] == ["1", "3"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"x",
        b"<a>",
        b"<a></b>",
        b"<a/><a/>",
        b"<a/>x",
        b"<b/>",
        b"<a>&nbsp;</a>",
        b"<a>\x00</a>",
        b"<a>&#0;</a>",
        b"<a>\xff</a>",
        b"<a>\xed\xa0\x80</a>",
        b"<a b='1' b='2'/>",
        b"<a>x<b/></a>",
        b"<!DOCTYPE a><a/>",
        b"<!DOCTYPE a SYSTEM 'file:///etc/passwd'><a/>",
        b"<!DOCTYPE a [<!ENTITY e 'x'>]><a>&e;</a>",
        b"<!DOCTYPE a [<!ENTITY % e SYSTEM 'http://127.0.0.1/'> %e;]><a/>",
        b"<?xml version='1.0' encoding='iso-8859-1'?><a>\xe9</a>",
        b"<?xml version='1.0' encoding='utf-16'?><a/>",
        "<a/>".encode("utf-16"),
        "<a/>".encode("utf-16-le"),
        "<a/>".encode("utf-16-be"),
        "<a/>".encode("utf-32"),
    ],
)
def test_what_is_not_a_plain_utf8_document_is_malformed(body: bytes) -> None:
    refused(body)


def test_exponential_entities_are_refused_before_they_grow() -> None:
    entities = "".join(f"<!ENTITY e{i} '{f'&e{i - 1};' * 10}'>" for i in range(1, 30))
    refused(f"<!DOCTYPE a [<!ENTITY e0 'x'>{entities}]><a>&e29;</a>".encode())


def test_depth_is_limited() -> None:
    def nested(depth: int) -> bytes:
        return b"<a>" * depth + b"</a>" * depth

    reader.parse(nested(reader.MAX_DEPTH), "a")
    refused(nested(reader.MAX_DEPTH + 1))


def test_the_number_of_elements_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_ELEMENTS", 10)
    reader.parse(b"<a>" + b"<b/>" * 9 + b"</a>", "a")
    refused(b"<a>" + b"<b/>" * 10 + b"</a>")


def test_a_child_that_must_be_single_text_is_not_repeated_or_nested() -> None:
    for body in (b"<a><b>1</b><b>2</b></a>", b"<a><b/><b/></a>", b"<a><b><c/></b></a>"):
        root = reader.parse(body, "a")
        with pytest.raises(S3Error, match="not well-formed"):
            root.text("b")


@given(XML_TEXT)
def test_any_text_survives(text: str) -> None:
    assert reader.parse(f"<a><b>{escape(text)}</b></a>".encode(), "a").text("b") == text


@given(st.binary(max_size=200))
def test_random_bytes_are_a_document_or_malformed(body: bytes) -> None:
    with contextlib.suppress(S3Error):
        reader.parse(body, "a")


VALID = (
    b"<?xml version='1.0' encoding='UTF-8'?><Delete xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>"
    b"<Quiet>true</Quiet><Object><Key>k&amp;\xc3\xa9</Key><VersionId>null</VersionId></Object></Delete>"
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.binary(max_size=3)), min_size=1, max_size=4))
def test_mutated_documents_are_documents_or_malformed(edits: list[tuple[int, bytes]]) -> None:
    body = bytearray(VALID)
    for position, replacement in edits:
        body[position : position + len(replacement) or position + 1] = replacement
    try:
        outcome = reader.parse(bytes(body), "Delete").name
    except S3Error as error:
        outcome = error.code
    assert outcome in {"Delete", "MalformedXML"}


WORDS = """
    <a> </a> <b/> <a:b> </a:b> &amp; &x; &#9; &#0; <![CDATA[ ]]> <!-- --> <?p ?> <!DOCTYPE a> <!DOCTYPE [ ]> = xmlns="u"
    <!ENTITY <?xml version="1.0" encoding="latin-1"?>
"""


@given(st.lists(st.sampled_from([" ", "\r\n", "\ufeff", *WORDS.split()]), max_size=15))
def test_pieces_of_markup_are_a_document_or_malformed(pieces: list[str]) -> None:
    with contextlib.suppress(S3Error):
        assert reader.parse("".join(pieces).encode(), "a").name == "a"
