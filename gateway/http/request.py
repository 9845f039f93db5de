"""The request as the gateway sees it, free of any web framework."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Scope(Enum):
    """What a request is addressed to."""

    SERVICE = "service"
    BUCKET = "bucket"
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed request target.

    `path` is the raw path as sent, without scheme, authority or query (an absolute-form target is reduced to its
    path); `canonical_path` is that path decoded once and encoded again as SigV4 does. `query` holds the decoded
    pairs in the order sent; a name without "=" has the value "". `bucket` and `key` are decoded; `key` may hold
    `//`, `.`, `..`, anything that is valid UTF-8.
    """

    path: str
    canonical_path: str
    query: tuple[tuple[str, str], ...]
    bucket: str
    key: str
    scope: Scope

    def get(self, name: str, default: str | None = None) -> str | None:
        """The first value of a query parameter."""
        for candidate, value in self.query:
            if candidate == name:
                return value
        return default

    def has(self, name: str) -> bool:
        return any(candidate == name for candidate, _ in self.query)


@dataclass(frozen=True, slots=True)
class S3Request:
    """One request's head. `headers` has lower-case names; repeated headers are joined with "," in the order sent.
    Header values are str decoded as UTF-8 with surrogateescape. `host` is the Host header as the client signed it, with
    its port and in its case; behind a trusted proxy it is the forwarded one."""

    method: str
    target: Target
    headers: Mapping[str, str]
    host: str
    remote: str
    request_id: str
    secure: bool = False

    def header(self, name: str, default: str = "") -> str:
        return self.headers.get(name, default)
