"""Conditional requests: the If-* headers of reads, copies and writes.

Precedence as RFC 9110 section 13.2.2 and Amazon S3 User Guide, "Conditional requests": If-Match before
If-Unmodified-Since, If-None-Match before If-Modified-Since; the second of each pair counts only when the first is
absent. Dates that are not HTTP dates are ignored.
"""

from collections.abc import Mapping

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.dates import parse_http_date
from s3verbs.gateway.http.headers import (
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    IF_RANGE,
    IF_UNMODIFIED_SINCE,
    X_AMZ_COPY_SOURCE_IF_MATCH,
    X_AMZ_COPY_SOURCE_IF_MODIFIED_SINCE,
    X_AMZ_COPY_SOURCE_IF_NONE_MATCH,
    X_AMZ_COPY_SOURCE_IF_UNMODIFIED_SINCE,
)
from s3verbs.storage.model import WriteCondition

_NANOSECONDS = 1_000_000_000


def check_read(headers: Mapping[str, str], etag: str, modified_ns: int) -> bool:
    """Whether a GET or HEAD serves the object of that ETag (without quotes) and time: False means 304 Not Modified.

    Raises S3Error PreconditionFailed.
    """
    match = headers.get(IF_MATCH)
    if match is not None:
        if not etag_listed(match, etag, weak=False):
            raise _failed("If-Match")
    elif _modified_after(headers.get(IF_UNMODIFIED_SINCE), modified_ns) is True:
        raise _failed("If-Unmodified-Since")
    none_match = headers.get(IF_NONE_MATCH)
    if none_match is not None:
        return not etag_listed(none_match, etag, weak=True)
    return _modified_after(headers.get(IF_MODIFIED_SINCE), modified_ns) is not False


def check_copy_source(headers: Mapping[str, str], etag: str, modified_ns: int) -> None:
    """Check the `x-amz-copy-source-if-*` headers against the source. Raises S3Error PreconditionFailed."""
    match = headers.get(X_AMZ_COPY_SOURCE_IF_MATCH)
    if match is not None:
        if not etag_listed(match, etag, weak=False):
            raise _failed("x-amz-copy-source-If-Match")
    elif _modified_after(headers.get(X_AMZ_COPY_SOURCE_IF_UNMODIFIED_SINCE), modified_ns) is True:
        raise _failed("x-amz-copy-source-If-Unmodified-Since")
    none_match = headers.get(X_AMZ_COPY_SOURCE_IF_NONE_MATCH)
    if none_match is not None:
        if etag_listed(none_match, etag, weak=True):
            raise _failed("x-amz-copy-source-If-None-Match")
    elif _modified_after(headers.get(X_AMZ_COPY_SOURCE_IF_MODIFIED_SINCE), modified_ns) is False:
        raise _failed("x-amz-copy-source-If-Modified-Since")


def range_applies(headers: Mapping[str, str], etag: str, modified_ns: int) -> bool:
    """Whether Range is to be honoured: False when If-Range names another state of the object (RFC 9110, 13.1.5)."""
    value = headers.get(IF_RANGE)
    if value is None:
        return True
    date = parse_http_date(value)
    if date is not None:
        return date == modified_ns // _NANOSECONDS
    return value.strip() == f'"{etag}"'


def write_condition(headers: Mapping[str, str]) -> WriteCondition | None:
    """The condition of a PutObject, CopyObject, CompleteMultipartUpload or DeleteObject, or None.

    Each takes one ETag, quoted or not, or "*"; AWS knows no If-None-Match but "*". Raises S3Error NotImplemented for a
    list, a weak or an empty If-None-Match, and for both headers at once, as AWS does.
    """
    match = headers.get(IF_MATCH)
    none_match = headers.get(IF_NONE_MATCH)
    if match is None and none_match is None:
        return None
    if match is not None and none_match is not None:
        raise _not_implemented("If-Match, If-None-Match", "Multiple conditional request headers present in the request")
    if match is not None:
        return WriteCondition(if_match=_unquote(match.strip()))
    unwanted = (none_match or "").strip()
    etag = _unquote(unwanted)
    if unwanted != "*" and (etag in ("", "*") or '"' in etag or "," in etag):
        raise _not_implemented(
            "If-None-Match", "We don't accept the provided value of If-None-Match header for this API"
        )
    return WriteCondition(if_none_match=etag)


def etag_listed(value: str, etag: str, *, weak: bool) -> bool:
    """Whether a list of ETags, quoted or not, or "*", names `etag`; weak ones count only with `weak`.

    An empty list names nothing. A quoted ETag may hold commas.
    """
    position = 0
    while position < len(value):
        if value[position] in " \t,":
            position += 1
            continue
        is_weak = value.startswith(("W/", "w/"), position)
        start = position + 2 if is_weak else position
        if value.startswith('"', start):
            start += 1
            end = value.find('"', start)
            position = end + 1 if end >= 0 else len(value)
        else:
            end = value.find(",", start)
            position = end if end >= 0 else len(value)
        item = (value[start:end] if end >= 0 else value[start:]).strip()
        if (item == etag or (item == "*" and value.strip() == "*")) and (weak or not is_weak):
            return True
    return False


def _modified_after(date: str | None, modified_ns: int) -> bool | None:
    """Whether the object changed after the date, whole seconds compared; None without a valid date."""
    seconds = parse_http_date(date) if date is not None else None
    return None if seconds is None else modified_ns // _NANOSECONDS > seconds


def _unquote(etag: str) -> str:
    return etag[1:-1] if len(etag) >= 2 and etag[0] == etag[-1] == '"' else etag


def _failed(condition: str) -> S3Error:
    return S3Error("PreconditionFailed", details={"Condition": condition})


def _not_implemented(header: str, explanation: str) -> S3Error:
    return S3Error(
        "NotImplemented",
        "A header you provided implies functionality that is not implemented",
        details={"Header": header, "additionalMessage": explanation},
    )
