"""A raw S3 client: every header, whether it is signed, and how the payload is declared are the caller's.

botocore signs; http.client writes. One connection per request, so that no case sees what another left behind.
"""

import http.client
import re
import ssl
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from urllib.parse import quote, urlsplit

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.compat import HTTPHeaders
from botocore.credentials import Credentials

UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
STREAMING_UNSIGNED = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
STREAMING_SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"

_CODE = re.compile(rb"<Code>(\w+)</Code>")
_NOTHING: frozenset[str] = frozenset()


class Signing(Enum):
    """Where the signature is: in the Authorization header, in the query (a presigned URL), nowhere."""

    HEADER = "header"
    QUERY = "query"
    NONE = "none"


@dataclass(frozen=True)
class Answer:
    """A response. `headers` has lower-case names; of a header that came twice, the values are joined by ", "."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The S3 error code, of the body or of the header that some servers use where a body would do harm."""
        found = _CODE.search(self.body) if self.status >= 300 else None
        return found[1].decode() if found else self.headers.get("x-amz-error-code", "")

    def __str__(self) -> str:
        words = [str(self.status)]
        words += [self.code] if self.code else []
        words += [f"{name}: {value}" for name, value in self.headers.items() if name.startswith("x-amz-rdma-")]
        words += [f"content-length: {self.headers['content-length']}"] if "content-length" in self.headers else []
        return ", ".join([*words, f"a body of {len(self.body)} bytes"] if self.status < 300 else words)


class _HeaderSigner(S3SigV4Auth):  # type: ignore[misc, unused-ignore]
    payload_hash = UNSIGNED_PAYLOAD
    unsigned: AbstractSet[str] = _NOTHING

    def payload(self, request: AWSRequest) -> str:
        return self.payload_hash

    def headers_to_sign(self, request: AWSRequest) -> HTTPHeaders:
        return _without(super().headers_to_sign(request), self.unsigned)


class _QuerySigner(S3SigV4QueryAuth):  # type: ignore[misc, unused-ignore]
    unsigned: AbstractSet[str] = _NOTHING

    def headers_to_sign(self, request: AWSRequest) -> HTTPHeaders:
        return _without(super().headers_to_sign(request), self.unsigned)


def _without(headers: HTTPHeaders, names: AbstractSet[str]) -> HTTPHeaders:
    for name in names:
        del headers[name]
    return headers


@dataclass(frozen=True)
class Server:
    """An endpoint and the credentials for it. Any thread."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str = "us-east-1"
    verify_tls: bool = True
    timeout: float = 60.0

    @property
    def host(self) -> str:
        return urlsplit(self.endpoint).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.endpoint)
        return parts.port or (443 if parts.scheme == "https" else 80)

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        chunked: bool = False,
        payload_hash: str = UNSIGNED_PAYLOAD,
        signing: Signing = Signing.HEADER,
        unsigned: AbstractSet[str] = _NOTHING,
    ) -> Answer:
        """One request and its response. `path` is "/bucket/key", not encoded. `unsigned` names headers (lower case)
        that are sent but kept out of the signature. `chunked` sends the body with Transfer-Encoding.

        Raises OSError and http.client.HTTPException.
        """
        target = quote(path, safe="/~")
        if query:
            pairs = [f"{quote(name, safe='')}={quote(value, safe='-_.~')}" for name, value in sorted(query.items())]
            target += "?" + "&".join(pairs)
        target, fields = self._signed(method, target, headers or {}, payload_hash, signing, unsigned)
        connection = self._connect()
        try:
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in fields:
                connection.putheader(name, value)
            names = {name.lower() for name, _ in fields}
            if chunked:
                connection.putheader("Transfer-Encoding", "chunked")
            elif (body or method in ("PUT", "POST")) and "content-length" not in names:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body or None, encode_chunked=chunked)
            response = connection.getresponse()
            found: dict[str, str] = {}
            for name, value in response.getheaders():
                name = name.lower()
                found[name] = f"{found[name]}, {value}" if name in found else value
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def _signed(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        payload_hash: str,
        signing: Signing,
        unsigned: AbstractSet[str],
    ) -> tuple[str, list[tuple[str, str]]]:
        """The target and the headers to send, Host first."""
        authority = urlsplit(self.endpoint).netloc
        request = AWSRequest(method, self.endpoint.rstrip("/") + target, headers=dict(headers))
        credentials = Credentials(self.access_key, self.secret_key)
        if signing is Signing.HEADER:
            signer = _HeaderSigner(credentials, "s3", self.region)
            signer.payload_hash, signer.unsigned = payload_hash, unsigned
            signer.add_auth(request)
        elif signing is Signing.QUERY:
            presigner = _QuerySigner(credentials, "s3", self.region, expires=300)
            presigner.unsigned = unsigned
            presigner.add_auth(request)
            parts = urlsplit(request.url)
            target = f"{parts.path}?{parts.query}"
        fields = [(name, value) for name, value in request.headers.items() if name.lower() != "host"]
        return target, [("Host", authority), *fields]

    def _connect(self) -> http.client.HTTPConnection:
        if urlsplit(self.endpoint).scheme != "https":
            return http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        context = ssl.create_default_context()
        if not self.verify_tls:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection(self.host, self.port, timeout=self.timeout, context=context)
