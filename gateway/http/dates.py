"""HTTP dates (RFC 9110 section 5.6.7), read in all three forms, written in the preferred one.

Times are seconds since the epoch, UTC.
"""

import time
from calendar import timegm
from datetime import datetime
from functools import lru_cache

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTH_NUMBERS = {name: number for number, name in enumerate(_MONTHS, 1)}


@lru_cache(maxsize=1024)
def parse_http_date(text: str) -> int | None:
    """Seconds since the epoch; None when it is not an HTTP date (the name of the day is not checked).

    `Sun, 06 Nov 1994 08:49:37 GMT`, `Sunday, 06-Nov-94 08:49:37 GMT` (years 70 to 99 are 19xx) and
    `Sun Nov  6 08:49:37 1994`. `+0000`, `-0000`, `UTC` and `Z` pass for GMT, as some clients send them.
    """
    fields = text.split()
    try:
        if text.isascii() and len(fields) == 6 and fields[0].endswith(","):
            _, day, month, year, clock, zone = fields
        elif text.isascii() and len(fields) == 4 and fields[0].endswith(","):
            day, month, year = fields[1].split("-")
            clock, zone = fields[2:]
            year = ("19" if year >= "70" else "20") + year if len(year) == 2 else year
        elif text.isascii() and len(fields) == 5 and not fields[0].endswith(","):
            _, month, day, clock, year = fields
            zone = "GMT"
        else:
            return None
        hour, minute, second = clock.split(":")
        digits = (day, year, hour, minute, second)
        if (
            zone not in ("GMT", "UTC", "+0000", "-0000", "Z")
            or len(year) != 4
            or not all(_two_or_four(item) for item in digits)
        ):
            return None
        # A leap second is read as the second before it.
        moment = datetime(
            int(year),
            _MONTH_NUMBERS[month],
            int(day),
            int(hour),
            int(minute),
            min(int(second), 59) if second == "60" else int(second),
        )
    except (ValueError, KeyError):
        return None
    return timegm(moment.timetuple())


@lru_cache(maxsize=1024)
def format_http_date(seconds: int) -> str:
    """`Sun, 06 Nov 1994 08:49:37 GMT`, whatever the locale."""
    moment = time.gmtime(seconds)
    return (
        f"{_DAYS[moment.tm_wday]}, {moment.tm_mday:02} {_MONTHS[moment.tm_mon - 1]} {moment.tm_year:04} "
        f"{moment.tm_hour:02}:{moment.tm_min:02}:{moment.tm_sec:02} GMT"
    )


def _two_or_four(text: str) -> bool:
    return 1 <= len(text) <= 4 and text.isdigit()
