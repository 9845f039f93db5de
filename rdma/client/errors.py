"""What the client library raises.

    ClientError
    ├── BufferRefused            register: this object cannot be exposed (also a TypeError)
    ├── BufferTooSmall           the object, or the range, has more bytes than the region
    ├── TransportMissing         the pinned transport cannot be used here
    ├── RegionError
    │   ├── RegionClosed         the region, or its client, is closed
    │   ├── RegionReadOnly       get_into with a region that can only be put from
    │   └── RegionQuarantined    a server may still move bytes of it; it comes back by itself
    ├── S3Error                  the server's own answer: status, code, message
    │   ├── NotModified          304
    │   ├── AccessDenied         403
    │   ├── NotFound             404
    │   └── PreconditionFailed   412
    ├── Declined                 the server has no transport for the token, and fallback is off
    ├── TokenIgnored             the server knows nothing of RDMA: it stored an EMPTY object
    ├── BadAnswer                the answer is not HTTP, or contradicts the contract
    │   └── ShortTransfer        fewer or more bytes were moved than should have been
    ├── ChecksumMismatch         the bytes that came are not those of the object's checksum
    ├── ChecksumUnavailable      no implementation of that algorithm is installed
    ├── ConnectFailed            no connection: the server has not seen the request
    ├── ConnectionBroken         the connection ended before the answer: the outcome is not known
    └── DeadlineExceeded         the time of `timeout=` is up (also a TimeoutError)

After any of them but NotModified and PreconditionFailed, the bytes of a get_into are undefined. After ConnectionBroken
and DeadlineExceeded the region was taken back from the server, or is in quarantine: `Region.quarantined` tells.
"""


class ClientError(Exception):
    """Base of all."""


class BufferRefused(ClientError, TypeError):
    """The text says what is wrong with the object, and what to do."""


class BufferTooSmall(ClientError):
    """Nothing, or only a beginning, is in the region."""


class TransportMissing(ClientError):
    """The text says why, and what would change it."""


class RegionError(ClientError):
    """The region cannot be used for this now."""


class RegionClosed(RegionError):
    """Also: its client is closed, or this process is a fork of the one that registered it."""


class RegionReadOnly(RegionError):
    """The registered object is not writable."""


class RegionQuarantined(RegionError):
    """An operation ended without the server's answer, and the transport cannot yet say that the server is done."""


class S3Error(ClientError):
    """`code` is S3's, or "" where the answer had none. `retry_after` in seconds, None where the server named none."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str = "",
        *,
        request_id: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{status} {code or 'without a code'}: {message}".rstrip(": "))
        self.status = status
        self.code = code
        self.message = message
        self.request_id = request_id
        self.retry_after = retry_after


class NotModified(S3Error):
    """The condition of the GET says that the caller has the object. Nothing was moved."""


class AccessDenied(S3Error):
    """Any 403, a wrong signature included."""


class NotFound(S3Error):
    """NoSuchKey, NoSuchBucket, NoSuchUpload."""


class PreconditionFailed(S3Error):
    """Nothing was moved, nothing was stored."""


_BY_STATUS: dict[int, type[S3Error]] = {304: NotModified, 403: AccessDenied, 404: NotFound, 412: PreconditionFailed}


def s3_error(
    status: int, code: str, message: str = "", *, request_id: str = "", retry_after: float | None = None
) -> S3Error:
    """The class that belongs to the status."""
    return _BY_STATUS.get(status, S3Error)(status, code, message, request_id=request_id, retry_after=retry_after)


class Declined(ClientError):
    """Nothing was stored, nothing was moved."""


class TokenIgnored(ClientError):
    """The object now exists and has no bytes. It was not deleted: another writer may have replaced it meanwhile."""


class BadAnswer(ClientError):
    """What a PUT stored is not known."""


class ShortTransfer(BadAnswer):
    """`moved` bytes by the server's count, `expected` by ours."""

    def __init__(self, moved: int, expected: int) -> None:
        super().__init__(f"the server moved {moved} bytes, {expected} were expected")
        self.moved = moved
        self.expected = expected


class ChecksumMismatch(ClientError):
    """The bytes of the region are not the object's."""


class ChecksumUnavailable(ClientError):
    """The text names the package to install."""


class ConnectFailed(ClientError):
    """Also: TLS verification failed, or the name did not resolve."""


class ConnectionBroken(ClientError):
    """A PUT may or may not have happened; the same PUT can be sent again."""


class DeadlineExceeded(ClientError, TimeoutError):
    """As ConnectionBroken where the request was already sent."""
