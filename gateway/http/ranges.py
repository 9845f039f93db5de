"""The Range header as Amazon S3 reads it (RFC 9110 section 14, single byte ranges only)."""

from dataclasses import dataclass

from s3verbs.gateway.errors import S3Error

# Longer numbers are only compared with sizes, and Python refuses to convert very long ones.
_MAX_DIGITS = 20
_HUGE = 10**_MAX_DIGITS


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`length` bytes, at least 1, from `start`; always inside the object."""

    start: int
    length: int

    @property
    def last(self) -> int:
        """Position of the last byte, as Content-Range shows it."""
        return self.start + self.length - 1


def parse_range(value: str | None, size: int) -> ByteRange | None:
    """The range to serve of an object of `size` bytes; None means all of it with 200.

    A header that is not a valid byte range, and one with several ranges, is ignored, as AWS does. Ends beyond the
    object are clipped. Raises S3Error InvalidRange when the start is not inside the object or the suffix is empty.
    """
    if value is None:
        return None
    unit, equals, spec = value.partition("=")
    if not equals or unit.strip().lower() != "bytes":
        return None
    first, dash, last = spec.strip().partition("-")
    if not dash or not (_number(first) or not first) or not (_number(last) or not last):
        return None
    if not first:
        if not last:
            return None
        length = min(_int(last), size)
        if length == 0:
            raise _not_satisfiable(value, size)
        return ByteRange(size - length, length)
    start = _int(first)
    end = _int(last) if last else _HUGE
    if start > end:
        return None
    if start >= size:
        raise _not_satisfiable(value, size)
    return ByteRange(start, min(end + 1, size) - start)


def _number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _int(digits: str) -> int:
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) <= _MAX_DIGITS else _HUGE


def _not_satisfiable(value: str, size: int) -> S3Error:
    return S3Error(
        "InvalidRange",
        details={"RangeRequested": value, "ActualObjectSize": str(size)},
        headers={"Content-Range": f"bytes */{size}"},
    )
