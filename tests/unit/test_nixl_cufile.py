"""cufile.json: comments, the published keys, and what is wrong with a file in words."""

import json
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3verbs.rdma.nixl.cufile import CufileError, addresses_of, parse, read, render

PUBLISHED = """{
    // general
    "execution": {"parallel_io": false}, /* not
    used */
    "properties": {
        "rdma_peer_type": "dmabuf", // with "quotes"
        "rdma_dev_addr_list": ["10.0.1.2", "10.0.2.2"],
        "note": "http://not-a-comment /* nor this */"
    }
}
"""


def test_the_published_file_with_comments() -> None:
    document = parse(PUBLISHED)
    assert addresses_of(document) == ["10.0.1.2", "10.0.2.2"]
    assert document["properties"]["note"] == "http://not-a-comment /* nor this */"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_plain_json_is_read_as_json(value: object) -> None:
    document = {"properties": value}
    assert parse(json.dumps(document, indent=1)) == document
    assert parse(json.dumps(document, ensure_ascii=False)) == document


def test_what_is_rendered_is_read_back() -> None:
    document = parse(render([ip_address("10.0.1.2"), ip_address("fd00::1")]))
    assert addresses_of(document) == ["10.0.1.2", "fd00::1"]
    assert document["properties"]["rdma_peer_type"] == "dmabuf"
    assert document["execution"] == {"parallel_io": False}
    assert "rdma_dev_addr_list" not in parse(render([]))["properties"], "an empty list would allow no device"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{\n// a\n/* b\n*/ "a": }', "line 4: Expecting value"),
        ("[]", "holds no JSON object"),
        ("", "line 1: Expecting value"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_document_is_refused(text: str, said: str) -> None:
    with pytest.raises(CufileError, match=said):
        parse(text)


@pytest.mark.parametrize("properties", ["[]", '{"rdma_dev_addr_list": "10.0.0.1"}', '{"rdma_dev_addr_list": [1]}'])
def test_addresses_are_a_list_of_text(properties: str) -> None:
    with pytest.raises(CufileError, match=r"is no (list of addresses|object)"):
        addresses_of(parse(f'{{"properties": {properties}}}'))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CufileError, match="cannot be read: No such file"):
        read(tmp_path / "absent")
    with pytest.raises(CufileError, match="cannot be read: Is a directory"):
        read(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CufileError, match="is not text"):
        read(tmp_path / "binary")
