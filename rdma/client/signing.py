"""Signature Version 4 for the few requests of this client.

Source: "Signature Calculations for the Authorization Header" of the S3 API reference. botocore's S3SigV4Auth takes 140
microseconds a request, two thirds of what a whole get_into may cost; this takes a tenth, and
tests/oracle/test_client_signing.py compares the two.
"""

import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
UNSIGNED = "UNSIGNED-PAYLOAD"


@dataclass(frozen=True, slots=True)
class Keys:
    """An access key. `token` is the session token of temporary credentials."""

    access_key: str
    secret_key: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"Keys({self.access_key})"


def encoded_path(bucket: str, key: str = "") -> str:
    """The path of a path-style request; signed as it is sent."""
    path = "/" + quote(bucket, safe="-_.~")
    return path + "/" + quote(key, safe="-_.~/") if key else path


def encoded_query(parameters: Mapping[str, str]) -> str:
    """Sorted, as it is signed and sent."""
    pairs = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in parameters.items())
    return "&".join(f"{name}={value}" for name, value in pairs)


class Signer:
    """Signs for one endpoint. Any thread."""

    def __init__(self, host: str, region: str, clock: Callable[[], float] = time.time) -> None:
        self._host = host
        self._region = region
        self._clock = clock
        self._stamp = (-1, "")
        self._key: tuple[str, str, str, str, hmac.HMAC] | None = None
        self._skew = 0.0
        """Seconds by which the server's clock is ahead of this machine's."""

    def head(self, method: str, path: str, query: str, headers: Mapping[str, str], keys: Keys | None) -> str:
        """The request line and all header fields of a signed request, without Content-Length and the last empty line.

        `headers` has lower-case names and single-line ASCII values; it must hold x-amz-content-sha256 and neither host
        nor x-amz-date. All of them are signed. Without keys the request is anonymous.
        """
        stamp = self._amz_date()
        target = f"{path}?{query}" if query else path
        fields = {"host": self._host, "x-amz-date": stamp, **headers}
        if keys is None:
            return self._lines(method, target, fields)
        if keys.token:
            fields["x-amz-security-token"] = keys.token
        names = sorted(fields)
        canonical = "".join([f"{name}:{fields[name]}\n" for name in names])
        if "  " in canonical or ": " in canonical or " \n" in canonical or "\t" in canonical:
            canonical = "".join([f"{name}:{_folded(fields[name])}\n" for name in names])
        signed = ";".join(names)
        text = f"{method}\n{path}\n{query}\n{canonical}\n{signed}\n{fields['x-amz-content-sha256']}"
        scope, signature = self._of_day(keys, stamp[:8])
        digest = hashlib.sha256(text.encode("ascii")).hexdigest()
        signature.update(f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}".encode("ascii"))
        fields["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={keys.access_key}/{scope}, SignedHeaders={signed}, "
            f"Signature={signature.hexdigest()}"
        )
        return self._lines(method, target, fields)

    def follow(self, server_time: float) -> None:
        """Sign with the server's clock from now on: `server_time` is what it shows."""
        self._skew = server_time - self._clock()

    @staticmethod
    def _lines(method: str, target: str, fields: Mapping[str, str]) -> str:
        lines = "".join([f"{name}: {value}\r\n" for name, value in fields.items()])
        return f"{method} {target} HTTP/1.1\r\n{lines}"

    def _amz_date(self) -> str:
        second = int(self._clock() + self._skew)
        known = self._stamp
        if known[0] != second:
            known = (second, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second)))
            self._stamp = known
        return known[1]

    def _of_day(self, keys: Keys, date: str) -> tuple[str, hmac.HMAC]:
        """The scope, and an HMAC with the day's signing key that has seen nothing yet; the caller's own."""
        known = self._key
        if known is None or known[0] != keys.access_key or known[1] != keys.secret_key or known[2] != date:
            key = b"AWS4" + keys.secret_key.encode()
            for word in (date, self._region, "s3", "aws4_request"):
                key = hmac.digest(key, word.encode(), "sha256")
            scope = f"{date}/{self._region}/s3/aws4_request"
            known = (keys.access_key, keys.secret_key, date, scope, hmac.new(key, digestmod="sha256"))
            self._key = known
        # A copy takes half of the time that the library takes to find the digest and to begin with the key.
        return known[3], known[4].copy()


def _folded(value: str) -> str:
    """Without spaces around it, and with one for several within, as it is signed."""
    return " ".join(value.split()) if "  " in value or value[:1] in " \t" or value[-1:] in " \t" else value
