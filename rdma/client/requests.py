"""From arguments of put_from and get_into to header fields. Pure."""

import re
from collections.abc import Mapping

from s3verbs.rdma.client.checksums import ALGORITHMS, header

ByteRange = tuple[int, int | None] | str
"""(start, stop), `stop` exclusive and None for the object's end; or an HTTP range, "bytes=-100"."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")
_RANGE = re.compile(r"bytes=(?:(\d{1,18})-(\d{0,18})|-\d{1,18})")

_OURS = frozenset(
    {
        *(
            "authorization",
            "connection",
            "content-length",
            "expect",
            "host",
            "range",
            "transfer-encoding",
            "user-agent",
        ),
        *("x-amz-content-sha256", "x-amz-date", "x-amz-security-token", "x-rdma-info", "if-match", "if-none-match"),
    }
)


def put_headers(
    *,
    metadata: Mapping[str, str] | None,
    content_type: str | None,
    if_match: str | None,
    if_none_match: str | None,
    headers: Mapping[str, str] | None,
) -> dict[str, str]:
    """Raises ValueError: a name or value that cannot be a header, or a header that has an argument of its own."""
    found = extra_headers(headers)
    for name, value in (metadata or {}).items():
        found[f"x-amz-meta-{name.lower()}"] = value
    if content_type is not None:
        found["content-type"] = content_type
    return _checked(_with_conditions(found, if_match, if_none_match))


def get_headers(
    *,
    selected: ByteRange | None,
    if_match: str | None,
    if_none_match: str | None,
    verify: bool,
    headers: Mapping[str, str] | None,
) -> dict[str, str]:
    """Raises ValueError, as put_headers."""
    if selected is None and if_match is None and if_none_match is None and headers is None:
        return {"x-amz-checksum-mode": "ENABLED"} if verify else {}
    found = extra_headers(headers)
    if selected is not None:
        found["range"] = range_header(selected)
    if verify:
        found["x-amz-checksum-mode"] = "ENABLED"
    return _checked(_with_conditions(found, if_match, if_none_match))


def checksum_headers(checksum: Mapping[str, str]) -> dict[str, str]:
    """Of checksums that the caller knows: S3's base64 by algorithm. Raises ValueError."""
    unknown = set(checksum) - set(ALGORITHMS)
    if unknown:
        raise ValueError(f"checksum {sorted(unknown)[0]!r} is none of {', '.join(ALGORITHMS)}")
    return _checked({header(name): value for name, value in checksum.items()})


def extra_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    found = {name.lower(): value for name, value in (headers or {}).items()}
    for name in found:
        if name in _OURS or name.startswith("x-amz-rdma-"):
            raise ValueError(f"the header {name} is the client's own")
    return found


def range_header(selected: ByteRange) -> str:
    """Raises ValueError."""
    if isinstance(selected, str):
        if not _RANGE.fullmatch(selected):
            raise ValueError(f"range is {selected!r}, not one range like 'bytes=0-99'")
        return selected
    start, stop = selected
    if start < 0 or (stop is not None and stop <= start):
        raise ValueError(f"range is {selected!r}: it selects nothing")
    return f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"


def split_range(selected: ByteRange | None) -> tuple[int, int | None] | None:
    """(start, stop) of what can be got in parts; None for a suffix, whose start is not known. Raises ValueError."""
    if selected is None:
        return 0, None
    match = _RANGE.fullmatch(range_header(selected))
    if match is None or match[1] is None:
        return None
    return int(match[1]), int(match[2]) + 1 if match[2] else None


def _with_conditions(headers: dict[str, str], if_match: str | None, if_none_match: str | None) -> dict[str, str]:
    if if_match is not None:
        headers["if-match"] = if_match
    if if_none_match is not None:
        headers["if-none-match"] = if_none_match
    return headers


def _checked(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise ValueError(f"the header {name!r} cannot have the value {value!r}: only printable ASCII can be signed")
    return headers
