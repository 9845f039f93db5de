from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.gateway.documents import Owner
from tests.unit.operations.endpoint import Endpoint

KEYS = ["asdf", "boo/bar", "boo/baz/xyzzy", "cquux/thud", "cquux/bla"]


@pytest.fixture
async def filled(endpoint: Endpoint) -> Endpoint:
    for key in KEYS:
        await endpoint.put(key, key.encode())
    return endpoint


def keys(document: Any) -> list[str]:
    return [version.key for version in document.versions]


async def test_version_1_answers_with_keys_prefixes_and_owner(filled: Endpoint) -> None:
    document = (
        await filled.run("ListObjects", "bucket", query=[("delimiter", "/"), ("encoding-type", "url")])
    ).document
    assert keys(document) == ["asdf"]
    assert list(document.common_prefixes) == ["boo/", "cquux/"]
    assert (document.name, document.prefix, document.marker, document.delimiter) == ("bucket", "", "", "/")
    assert (document.max_keys, document.truncated, document.encoding_type) == (1000, False, "url")
    assert document.owner == Owner("owner-id", "owner")


async def test_version_1_gives_a_next_marker_only_with_a_delimiter(filled: Endpoint) -> None:
    without = (await filled.run("ListObjects", "bucket", query=[("max-keys", "2")])).document
    assert (without.truncated, without.next_marker) == (True, "")
    query = [("max-keys", "2"), ("delimiter", "/")]
    first = (await filled.run("ListObjects", "bucket", query=query)).document
    assert (keys(first), list(first.common_prefixes), first.next_marker) == (["asdf"], ["boo/"], "boo/")
    second = (await filled.run("ListObjects", "bucket", query=[*query, ("marker", first.next_marker)])).document
    assert (keys(second), list(second.common_prefixes), second.truncated) == ([], ["cquux/"], False)
    assert second.next_marker == ""


async def test_version_2_counts_keys_and_prefixes_and_hides_the_owner(filled: Endpoint) -> None:
    document = (await filled.run("ListObjectsV2", "bucket", query=[("list-type", "2"), ("delimiter", "/")])).document
    assert document.key_count == 3
    assert document.owner is None
    assert (document.continuation_given, document.continuation_token, document.next_continuation_token) == (
        False,
        "",
        "",
    )
    document = (await filled.run("ListObjectsV2", "bucket", query=[("fetch-owner", "true")])).document
    assert document.owner == Owner("owner-id", "owner")
    assert (await filled.run("ListObjectsV2", "bucket", query=[("fetch-owner", "false")])).document.owner is None


async def test_start_after_and_token_together(filled: Endpoint) -> None:
    query = [("start-after", "asdf"), ("max-keys", "1")]
    first = (await filled.run("ListObjectsV2", "bucket", query=query)).document
    assert keys(first) == ["boo/bar"]
    token = first.next_continuation_token
    query = [("start-after", "asdf"), ("continuation-token", token)]
    second = (await filled.run("ListObjectsV2", "bucket", query=query)).document
    assert keys(second) == ["boo/baz/xyzzy", "cquux/bla", "cquux/thud"]
    assert (second.start_after, second.continuation_token, second.continuation_given) == ("asdf", token, True)


async def test_an_empty_token_starts_at_the_beginning(filled: Endpoint) -> None:
    document = (await filled.run("ListObjectsV2", "bucket", query=[("continuation-token", "")])).document
    assert (len(document.versions), document.continuation_given, document.continuation_token) == (5, True, "")


async def test_a_token_that_was_never_given_is_refused(filled: Endpoint) -> None:
    for token in ("asdf", "====", "é", "YXNkZg=="):
        error = await filled.fails("InvalidArgument", "ListObjectsV2", "bucket", query=[("continuation-token", token)])
        assert error.message == "The continuation token provided is incorrect"


@pytest.mark.parametrize("name", ["ListObjects", "ListObjectsV2"])
async def test_max_keys(filled: Endpoint, name: str) -> None:
    document = (await filled.run(name, "bucket", query=[("max-keys", "0")])).document
    assert (keys(document), document.truncated, document.max_keys) == ([], False, 0)
    assert (await filled.run(name, "bucket", query=[("max-keys", "5000")])).document.max_keys == 1000
    for value in ("-1", "blah"):
        error = await filled.fails("InvalidArgument", name, "bucket", query=[("max-keys", value)])
        assert error.details == {"ArgumentName": "max-keys", "ArgumentValue": value}


@pytest.mark.parametrize("name", ["ListObjects", "ListObjectsV2"])
async def test_only_url_is_an_encoding_and_unknown_parameters_are_ignored(filled: Endpoint, name: str) -> None:
    await filled.fails("InvalidArgument", name, "bucket", query=[("encoding-type", "base64")])
    document = (await filled.run(name, "bucket", query=[("allow-unordered", "true")])).document
    assert len(document.versions) == 5


@pytest.mark.parametrize("name", ["ListObjects", "ListObjectsV2"])
async def test_an_empty_delimiter_is_none(filled: Endpoint, name: str) -> None:
    document = (await filled.run(name, "bucket", query=[("delimiter", ""), ("prefix", "")])).document
    assert (keys(document), document.delimiter) == (sorted(KEYS), "")


@settings(max_examples=60, deadline=None)
@given(
    names=st.sets(st.text(alphabet="ab/é\U0001f600", min_size=1, max_size=5), max_size=14),
    prefix=st.sampled_from(["", "a", "a/", "é"]),
    delimiter=st.sampled_from(["", "/", "b"]),
    page=st.integers(1, 4),
    version=st.sampled_from(["ListObjects", "ListObjectsV2", "ListObjectVersions"]),
)
async def test_pages_lose_and_repeat_nothing(
    names: set[str], prefix: str, delimiter: str, page: int, version: str
) -> None:
    endpoint = Endpoint()
    await endpoint.run("CreateBucket", "bucket")
    for name in names:
        await endpoint.put(name)
    expected_keys, expected_prefixes = [], []
    for name in sorted((name for name in names if name.startswith(prefix)), key=str.encode):
        head, mark, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
        if not mark:
            expected_keys.append(name)
        elif prefix + head + mark not in expected_prefixes:
            expected_prefixes.append(prefix + head + mark)

    seen_keys: list[str] = []
    seen_prefixes: list[str] = []
    position: list[tuple[str, str]] = []
    query = [("prefix", prefix), ("delimiter", delimiter), ("max-keys", str(page))]
    while True:
        document = (await endpoint.run(version, "bucket", query=query + position)).document
        assert len(document.versions) + len(document.common_prefixes) <= page
        seen_keys += keys(document)
        seen_prefixes += document.common_prefixes
        if not document.truncated:
            break
        if version == "ListObjects":
            position = [("marker", document.next_marker or keys(document)[-1])]
        elif version == "ListObjectVersions":
            position = [("key-marker", document.next_key_marker)]
            if document.next_version_id_marker:
                position.append(("version-id-marker", document.next_version_id_marker))
        else:
            position = [("continuation-token", document.next_continuation_token)]
    assert (seen_keys, seen_prefixes) == (expected_keys, expected_prefixes)


async def test_every_object_is_one_null_version_and_the_latest(filled: Endpoint) -> None:
    document = (await filled.run("ListObjectVersions", "bucket")).document
    assert keys(document) == sorted(KEYS)
    assert {version.version_id for version in document.versions} == {"null"}
    assert (document.truncated, document.next_key_marker, document.next_version_id_marker) == (False, "", "")
    assert (document.name, document.max_keys, document.owner) == ("bucket", 1000, Owner("owner-id", "owner"))


async def test_pages_of_versions_continue_after_the_markers(filled: Endpoint) -> None:
    query = [("max-keys", "2"), ("delimiter", "/"), ("encoding-type", "url")]
    first = (await filled.run("ListObjectVersions", "bucket", query=query)).document
    assert (keys(first), list(first.common_prefixes), first.truncated) == (["asdf"], ["boo/"], True)
    assert (first.next_key_marker, first.next_version_id_marker, first.encoding_type) == ("boo/", "", "url")
    second = (await filled.run("ListObjectVersions", "bucket", query=[*query, ("key-marker", "boo/")])).document
    assert (keys(second), list(second.common_prefixes), second.truncated) == ([], ["cquux/"], False)
    assert second.key_marker == "boo/"

    query = [("max-keys", "1"), ("prefix", "boo")]
    first = (await filled.run("ListObjectVersions", "bucket", query=query)).document
    assert (first.next_key_marker, first.next_version_id_marker) == ("boo/bar", "null")
    for version_id in ("null", "A" * 32, ""):
        marked = [*query, ("key-marker", "boo/bar"), ("version-id-marker", version_id)]
        second = (await filled.run("ListObjectVersions", "bucket", query=marked)).document
        assert (keys(second), second.truncated, second.version_id_marker) == (["boo/baz/xyzzy"], False, version_id)


async def test_markers_of_versions_that_mean_nothing_are_refused(filled: Endpoint) -> None:
    await filled.fails("InvalidArgument", "ListObjectVersions", "bucket", query=[("version-id-marker", "null")])
    query = [("key-marker", "asdf"), ("version-id-marker", "not a version")]
    await filled.fails("InvalidArgument", "ListObjectVersions", "bucket", query=query)
    await filled.fails("InvalidArgument", "ListObjectVersions", "bucket", query=[("max-keys", "-1")])
    await filled.fails("InvalidArgument", "ListObjectVersions", "bucket", query=[("encoding-type", "base64")])
    await filled.fails("NoSuchBucket", "ListObjectVersions", "absent")
