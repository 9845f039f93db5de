"""Conditional requests."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.conditions import (
    check_copy_source,
    check_read,
    etag_listed,
    range_applies,
    write_condition,
)
from s3verbs.gateway.http.dates import format_http_date
from s3verbs.storage.model import WriteCondition

ETAG = "d41d8cd98f00b204e9800998ecf8427e"
SECONDS = 1_700_000_000
MODIFIED_NS = SECONDS * 10**9 + 999_999_999

SAME = f'"{ETAG}"'
OTHER = '"00000000000000000000000000000000"'
BEFORE, AT, AFTER = (format_http_date(SECONDS + delta) for delta in (-1, 0, 1))


def outcome(**conditions: str) -> int:
    headers = {name.replace("_", "-"): value for name, value in conditions.items()}
    try:
        return 200 if check_read(headers, ETAG, MODIFIED_NS) else 304
    except S3Error as error:
        code = error.code
        assert code == "PreconditionFailed"
        return error.status


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (SAME, 200),
        (ETAG, 200),
        ("*", 200),
        (f"{OTHER}, {SAME}", 200),
        (f"{OTHER},{ETAG}", 200),
        (f'W/"{ETAG}"', 412),
        (OTHER, 412),
        ("", 412),
        ('"*"', 412),
        (f'"{ETAG}', 200),
        (f"{OTHER}, *", 412),
        (",,", 412),
    ],
)
def test_if_match(value: str, status: int) -> None:
    assert outcome(if_match=value) == status


@pytest.mark.parametrize(
    ("value", "status"),
    [(SAME, 304), (ETAG, 304), ("*", 304), (f'W/"{ETAG}"', 304), (f"{OTHER}, {SAME}", 304), (OTHER, 200), ("", 200)],
)
def test_if_none_match(value: str, status: int) -> None:
    assert outcome(if_none_match=value) == status


@pytest.mark.parametrize(
    ("date", "modified_since", "unmodified_since"),
    [(BEFORE, 200, 412), (AT, 304, 200), (AFTER, 304, 200), ("soon", 200, 200)],
)
def test_dates_compare_whole_seconds_and_bad_ones_are_ignored(
    date: str, modified_since: int, unmodified_since: int
) -> None:
    assert outcome(if_modified_since=date) == modified_since
    assert outcome(if_unmodified_since=date) == unmodified_since


@pytest.mark.parametrize(
    ("conditions", "status"),
    [
        ({"if_match": SAME, "if_unmodified_since": BEFORE}, 200),
        ({"if_match": OTHER, "if_unmodified_since": AFTER}, 412),
        ({"if_none_match": SAME, "if_modified_since": BEFORE}, 304),
        ({"if_none_match": OTHER, "if_modified_since": AFTER}, 200),
        ({"if_match": SAME, "if_none_match": SAME}, 304),
        ({"if_match": OTHER, "if_none_match": SAME}, 412),
        ({"if_match": SAME, "if_modified_since": AFTER}, 304),
        ({"if_unmodified_since": BEFORE, "if_none_match": SAME}, 412),
        ({"if_unmodified_since": AFTER, "if_modified_since": AFTER}, 304),
        ({}, 200),
    ],
)
def test_precedence(conditions: dict[str, str], status: int) -> None:
    assert outcome(**conditions) == status


def test_a_failed_condition_is_named() -> None:
    for name, value, condition in (
        ("if-match", OTHER, "If-Match"),
        ("if-unmodified-since", BEFORE, "If-Unmodified-Since"),
    ):
        with pytest.raises(S3Error) as error:
            check_read({name: value}, ETAG, MODIFIED_NS)
        assert error.value.details == {"Condition": condition}


@pytest.mark.parametrize(
    ("conditions", "holds"),
    [
        ({"match": SAME}, True),
        ({"match": OTHER}, False),
        ({"match": SAME, "unmodified-since": BEFORE}, True),
        ({"none-match": SAME}, False),
        ({"none-match": OTHER, "modified-since": AFTER}, True),
        ({"none-match": SAME, "modified-since": BEFORE}, False),
        ({"modified-since": BEFORE}, True),
        ({"modified-since": AT}, False),
        ({"unmodified-since": BEFORE}, False),
        ({"unmodified-since": AT}, True),
        ({"modified-since": "bad"}, True),
        ({}, True),
    ],
)
def test_copy_source_conditions(conditions: dict[str, str], holds: bool) -> None:
    headers = {f"x-amz-copy-source-if-{name}": value for name, value in conditions.items()}
    if holds:
        check_copy_source(headers, ETAG, MODIFIED_NS)
    else:
        with pytest.raises(S3Error) as error:
            check_copy_source(headers, ETAG, MODIFIED_NS)
        assert error.value.code == "PreconditionFailed"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"if-match": SAME}, WriteCondition(if_match=ETAG)),
        ({"if-match": ETAG}, WriteCondition(if_match=ETAG)),
        ({"if-match": "*"}, WriteCondition(if_match="*")),
        ({"if-match": ""}, WriteCondition(if_match="")),
        ({"if-none-match": "*"}, WriteCondition(if_none_match="*")),
        ({"if-none-match": SAME}, WriteCondition(if_none_match=ETAG)),
        ({"if-none-match": ETAG}, WriteCondition(if_none_match=ETAG)),
    ],
)
def test_write_conditions(headers: dict[str, str], expected: WriteCondition | None) -> None:
    assert write_condition(headers) == expected


@pytest.mark.parametrize(
    "headers",
    [
        {"if-none-match": ""},
        {"if-none-match": f"W/{SAME}"},
        {"if-none-match": f"{SAME}, {OTHER}"},
        {"if-none-match": '"*"'},
        {"if-none-match": "*", "if-match": SAME},
    ],
)
def test_write_conditions_that_aws_does_not_implement(headers: dict[str, str]) -> None:
    with pytest.raises(S3Error) as error:
        write_condition(headers)
    assert (error.value.code, error.value.status) == ("NotImplemented", 501)
    assert error.value.details["Header"]


def test_if_range() -> None:
    for value, applies in (
        (SAME, True),
        (OTHER, False),
        (f"W/{SAME}", False),
        (AT, True),
        (BEFORE, False),
        ("x", False),
    ):
        assert range_applies({"if-range": value}, ETAG, MODIFIED_NS) is applies
    assert range_applies({}, ETAG, MODIFIED_NS)


etags = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters='"'), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(
    listed=st.lists(st.tuples(etags, st.booleans()), max_size=5),
    wanted=etags,
    gap=st.sampled_from([",", ", ", " ,\t,"]),
)
def test_a_quoted_list_names_exactly_its_members(listed: list[tuple[str, bool]], wanted: str, gap: str) -> None:
    value = gap.join(f'{"W/" if weak else ""}"{etag}"' for etag, weak in listed)
    assert etag_listed(value, wanted, weak=True) == (wanted in [etag for etag, _ in listed])
    assert etag_listed(value, wanted, weak=False) == (wanted in [etag for etag, weak in listed if not weak])


@settings(max_examples=200, deadline=None)
@given(value=st.text('W/"*, ab', max_size=20))
def test_any_list_can_be_read(value: str) -> None:
    assert etag_listed(value, "a", weak=True) in (True, False)
