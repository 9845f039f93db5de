"""Text of response documents: escaping, encoding-type=url, times, elements.

XML 1.0 cannot carry most control characters, not even as references, while S3 keys may hold them. A client that must
see such keys asks for encoding-type=url; without it each such character becomes U+FFFD, so that the document stays
well-formed.
"""

import re
from datetime import date
from functools import lru_cache
from urllib.parse import quote

DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"

_REPLACEMENT = "\ufffd"
_REFERENCES = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    '"': "&quot;",
    # Parsers turn a bare carriage return into a line feed, and some drop white space.
    "\t": "&#9;",
    "\n": "&#10;",
    "\r": "&#13;",
}
_SPECIAL = re.compile('[\x00-\x1f&<>"\ud800-\udfff\ufffe\uffff]')

# What Amazon S3 leaves alone in an encoding-type=url listing.
_URL_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-~*/]+")

_EPOCH = date(1970, 1, 1).toordinal()
_TWO_DIGITS = tuple(f"{number:02}" for number in range(60))


def _reference(match: re.Match[str]) -> str:
    return _REFERENCES.get(match[0], _REPLACEMENT)


def escape(text: str) -> str:
    """Element content for any text. Never fails; see the module for characters that XML cannot carry."""
    return text if _SPECIAL.search(text) is None else _SPECIAL.sub(_reference, text)


@lru_cache(maxsize=4096)
def _percent_encode(run: str) -> str:
    return quote(run, errors="replace")


def _percent(match: re.Match[str]) -> str:
    # The keys of a page mostly share their separators.
    return _percent_encode(match[0])


def url_encode(text: str) -> str:
    """Element content for encoding-type=url: percent-encoded UTF-8, "/" kept.

    A space becomes "%20", where Amazon S3 writes "+": every decoder reads it, also one that knows no plus sign.
    """
    return _URL_UNSAFE.sub(_percent, text)


@lru_cache(maxsize=64)
def _day(days: int) -> str:
    return date.fromordinal(_EPOCH + days).isoformat()


@lru_cache(maxsize=8192)
def _instant(seconds: int) -> str:
    days, seconds = divmod(seconds, 86_400)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{_day(days)}T{_TWO_DIGITS[hours]}:{_TWO_DIGITS[minutes]}:{_TWO_DIGITS[seconds]}.000Z"


def timestamp(ns: int) -> str:
    """`2026-11-29T15:00:00.000Z`. S3 keeps whole seconds, as Last-Modified does: listings and HEAD must agree."""
    return _instant(ns // 1_000_000_000)


def boolean(value: bool) -> str:
    return "true" if value else "false"


def element(name: str, content: str) -> str:
    """An element around content that is already escaped."""
    return f"<{name}>{content}</{name}>" if content else f"<{name}/>"


def optional(name: str, content: str) -> str:
    """The element, or nothing when there is no content."""
    return f"<{name}>{content}</{name}>" if content else ""


def document(root: str, content: str) -> str:
    """A root element in the namespace of S3, without declaration."""
    return f'<{root} xmlns="{NAMESPACE}">{content}</{root}>' if content else f'<{root} xmlns="{NAMESPACE}"/>'
