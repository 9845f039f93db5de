"""Request targets: from the raw request line to bucket, key and query.

The raw path is split first and decoded once, so `//`, `.`, `..` and an encoded slash stay part of the key. Sources:
RFC 9112 section 3.2 (forms of the target), RFC 3986 (percent-encoding), Amazon S3 User Guide, "Virtual hosting of
general purpose buckets" and "General purpose bucket naming rules".
"""

from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.request import Scope, Target
from s3verbs.storage.model import MAX_KEY_BYTES

_HEX_BYTES = {
    high + low: bytes((int(high + low, 16),)) for high in "0123456789abcdefABCDEF" for low in "0123456789abcdefABCDEF"
}
_BUCKET_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-")
_MAX_HOST = 325
"""Characters of a bucket, a domain and a port. Longer names are not worth a place in a cache: anybody can send them."""

_RESERVED_PREFIXES = ("xn--", "sthree-", "amzn-s3-demo-")
_RESERVED_SUFFIXES = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")


def parse_target(raw: str, host: str, domains: Sequence[str]) -> Target:
    """Parse a request target. `raw` is the target as sent (UTF-8 with surrogateescape), `host` the Host header.

    A host of `<bucket>.<domain>` for one of `domains` (case-insensitive, any port) names the bucket; every other
    host is path-style. In a query "+" stands for a space, as AWS reads it; in a path it is itself.

    Raises S3Error: InvalidURI (asterisk and authority form, control characters, a bad percent-escape, bytes that
    are not UTF-8), InvalidBucketName, KeyTooLongError.
    """
    path, query = _split(raw)
    decoded = _decode(path)
    bucket = host_bucket(host, tuple(domains))
    if bucket:
        key = decoded[1:]
    else:
        raw_bucket = path[1:].partition("/")[0]
        bucket = _decode(raw_bucket)
        key = decoded[len(bucket) + 2 :]
    if bucket:
        if not valid_bucket_name(bucket):
            raise S3Error("InvalidBucketName", details={"BucketName": bucket})
        scope = Scope.OBJECT if key else Scope.BUCKET
    elif len(path) > 1:
        raise S3Error("InvalidBucketName", details={"BucketName": ""})
    else:
        scope = Scope.SERVICE
    if len(key) > MAX_KEY_BYTES // 4:
        _check_key_length(key)
    return Target(path, quote(decoded, "/"), parse_query(query) if query else (), bucket, key, scope)


def parse_query(query: str) -> tuple[tuple[str, str], ...]:
    """The decoded pairs of a query string, in the order sent. Raises S3Error InvalidURI."""
    pairs = []
    for item in query.split("&"):
        if item:
            name, _, value = item.partition("=")
            pairs.append((_decode(name.replace("+", " ")), _decode(value.replace("+", " "))))
    return tuple(pairs)


def host_bucket(host: str, domains: tuple[str, ...]) -> str:
    """The bucket that a Host header names, in lower case, or "" when the request is path-style."""
    return _host_bucket(host, domains) if len(host) <= _MAX_HOST else ""


@lru_cache(maxsize=4096)
def _host_bucket(host: str, domains: tuple[str, ...]) -> str:
    name = _host_name(host)
    longest = -1
    bucket = ""
    for domain in domains:
        base = _host_name(domain)
        if name == base:
            return ""
        if base and len(base) > longest and name.endswith("." + base):
            longest = len(base)
            bucket = name[: -len(base) - 1]
    return bucket


def valid_bucket_name(name: str) -> bool:
    """Whether AWS's rules for general purpose buckets allow the name (legacy names are not allowed).

    Each dot-separated label starts and ends with a letter or digit, which also rules out adjacent dots.
    """
    return 3 <= len(name) <= 63 and _valid_bucket_name(name)


@lru_cache(maxsize=4096)
def _valid_bucket_name(name: str) -> bool:
    if not _BUCKET_CHARACTERS.issuperset(name):
        return False
    labels = name.split(".")
    if any(not label or label[0] == "-" or label[-1] == "-" for label in labels):
        return False
    if len(labels) == 4 and all(label.isdigit() for label in labels):
        return False
    return not name.startswith(_RESERVED_PREFIXES) and not name.endswith(_RESERVED_SUFFIXES)


def _split(raw: str) -> tuple[str, str]:
    """Raw path and raw query of an origin-form or absolute-form target."""
    if not raw.isascii():
        raw = raw.encode("utf-8", "surrogateescape").decode("latin-1")
        raw = "".join(character if character < "\x80" else f"%{ord(character):02X}" for character in raw)
    if not raw.isprintable() or " " in raw or "#" in raw:
        raise _invalid()
    target, _, query = raw.partition("?")
    if target.startswith("/"):
        return target, query
    scheme, separator, rest = target.partition("://")
    if not separator or scheme.lower() not in ("http", "https"):
        raise _invalid()
    authority, slash, path = rest.partition("/")
    if not authority:
        raise _invalid()
    return (slash + path) or "/", query


def _decode(text: str) -> str:
    """Percent-decode ASCII text once, to UTF-8."""
    if "%" not in text:
        return text
    first, *escaped = text.split("%")
    parts = [first.encode("ascii")]
    try:
        for item in escaped:
            parts.append(_HEX_BYTES[item[:2]])
            parts.append(item[2:].encode("ascii"))
        return b"".join(parts).decode("utf-8")
    except (KeyError, UnicodeDecodeError):
        raise _invalid() from None


def _check_key_length(key: str) -> None:
    size = len(key.encode())
    if size > MAX_KEY_BYTES:
        raise S3Error("KeyTooLongError", details={"Size": str(size), "MaxSizeAllowed": str(MAX_KEY_BYTES)})


def _host_name(host: str) -> str:
    """A host in lower case without its port and trailing dot; an IPv6 literal is left alone, it matches no domain."""
    if host.startswith("["):
        return host
    return host.partition(":")[0].lower().removesuffix(".")


def _invalid() -> S3Error:
    return S3Error("InvalidURI")
