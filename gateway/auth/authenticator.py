"""Who sent a request, and how its payload is verified."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from s3verbs.gateway.auth import credential, sigv4
from s3verbs.gateway.auth.access_keys import AccessKey, AccessKeys, Status
from s3verbs.gateway.auth.credential import Signing
from s3verbs.gateway.auth.payload_hash import (
    UNSIGNED,
    UNSIGNED_PAYLOAD,
    ChunkSignatures,
    PayloadMode,
    parse_payload_hash,
    signature_mismatch,
)
from s3verbs.gateway.auth.principal import ANONYMOUS, Principal
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.aws_chunked import ChunkVerifier
from s3verbs.gateway.http.headers import AUTHORIZATION, HOST, X_AMZ_CONTENT_SHA256
from s3verbs.gateway.http.request import S3Request
from s3verbs.rdma import headers as rdma

MAX_SKEW = 15 * 60
"""Seconds that a request's clock may differ from ours."""

_NANOSECONDS = 1_000_000_000

_MUST_BE_SIGNED = ("x-amz-", "x-s3verbs-", *rdma.TOKEN_HEADERS)
"""Beginnings of the headers that change what a request does: whoever holds a presigned URL must not add one, nor aim
an RDMA transfer at other memory."""


@dataclass(frozen=True, slots=True)
class Verified:
    """`verifier` is set exactly when the chunks of the body are signed. A body in `payload` mode EXACT or STREAMING_*
    is verified by whoever reads it."""

    principal: Principal
    payload: PayloadMode
    verifier: ChunkVerifier | None = None


class Authenticator:
    """Verifies Signature Version 4, in headers and presigned. Stateless but for caches; any thread.

    `clock` gives nanoseconds since the epoch. With `enforce_region` a credential must be of `region`.
    """

    def __init__(self, access_keys: AccessKeys, *, clock: Callable[[], int], region: str, enforce_region: bool) -> None:
        self._access_keys = access_keys
        self._clock = clock
        self._region = region
        self._enforce_region = enforce_region

    def authenticate(self, request: S3Request) -> Verified:
        """The principal of a request, ANONYMOUS when it carries no authentication (an empty header is none).

        The canonical request takes the value of `host` from `request.host`: it must be the Host header as the client
        sent it. Raises S3Error: AccessDenied (expired, not yet valid, headers not signed, no date),
        AuthorizationHeaderMalformed, AuthorizationQueryParametersError, ExpiredToken, InvalidAccessKeyId,
        InvalidArgument, InvalidRequest, InvalidToken, NotImplemented, RequestTimeTooSkewed, SignatureDoesNotMatch.
        """
        headers = request.headers
        target = request.target
        authorization = headers.get(AUTHORIZATION)
        in_query = bool(target.query) and credential.uses_query_authentication(target)
        if not authorization:
            if not in_query:
                return Verified(ANONYMOUS, _anonymous_payload(headers))
            signing = credential.from_query(target)
            payload_hash = target.get("X-Amz-Content-Sha256") or headers.get(X_AMZ_CONTENT_SHA256) or UNSIGNED_PAYLOAD
            excluded = "X-Amz-Signature"
        elif in_query:
            raise S3Error(
                "InvalidArgument",
                "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string "
                "parameter or the Authorization header should be specified",
                details={"ArgumentName": "Authorization", "ArgumentValue": authorization},
            )
        else:
            signing = credential.from_headers(headers)
            payload_hash = headers.get(X_AMZ_CONTENT_SHA256, "")
            if not payload_hash:
                raise S3Error("InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
            excluded = ""
        scope = signing.credential
        if self._enforce_region and scope.region != self._region:
            raise credential.region_fault(signing, self._region)
        now = self._clock() // _NANOSECONDS
        _check_time(signing, now)
        mode = parse_payload_hash(payload_hash)
        key = self._key(signing, now)
        _check_signed_headers(headers, signing.signed_headers)

        canonical = sigv4.canonical_request(
            request.method,
            target.canonical_path,
            sigv4.canonical_query(target.query, without=excluded),
            headers if headers.get(HOST) == request.host else {**headers, HOST: request.host},
            signing.signed_headers,
            payload_hash,
        )
        text = sigv4.string_to_sign(signing.timestamp, scope.scope, canonical)
        secret_key = sigv4.signing_key(key.secret, scope.date, scope.region)
        signature = sigv4.sign(secret_key, text)
        if not sigv4.equal(signature, signing.signature):
            raise signature_mismatch(scope.access_key, text, signing.signature, canonical)
        verifier = None
        if mode.signed_chunks:
            verifier = ChunkSignatures(
                key=secret_key,
                timestamp=signing.timestamp,
                scope=scope.scope,
                seed=signature,
                access_key=scope.access_key,
            )
        return Verified(key.principal, mode, verifier)

    def _key(self, signing: Signing, now: int) -> AccessKey:
        access_key = signing.credential.access_key
        key = self._access_keys.get(access_key)
        if key is None or key.status is not Status.ACTIVE or (key.session_token and not signing.security_token):
            raise S3Error("InvalidAccessKeyId", details={"AWSAccessKeyId": access_key})
        if signing.security_token and not sigv4.equal(key.session_token, signing.security_token):
            raise S3Error("InvalidToken", details={"Token-0": signing.security_token})
        if key.expires_ns and key.expires_ns // _NANOSECONDS <= now:
            raise S3Error("ExpiredToken", details={"Token-0": signing.security_token})
        return key


def _check_time(signing: Signing, now: int) -> None:
    if signing.expires is None:
        if abs(now - signing.signed_at) > MAX_SKEW:
            raise S3Error(
                "RequestTimeTooSkewed",
                details={
                    "RequestTime": signing.timestamp,
                    "ServerTime": _iso(now),
                    "MaxAllowedSkewMilliseconds": str(MAX_SKEW * 1000),
                },
            )
        return
    expiry = signing.signed_at + signing.expires
    if signing.signed_at - now > MAX_SKEW:
        raise S3Error(
            "AccessDenied",
            "Request is not yet valid",
            details={"X-Amz-Date": str(signing.signed_at * 1000), "Expires": _iso(expiry), "ServerTime": _iso(now)},
        )
    if expiry < now or not signing.expires:
        raise S3Error(
            "AccessDenied",
            "Request has expired",
            details={"X-Amz-Expires": str(signing.expires), "Expires": _iso(expiry), "ServerTime": _iso(now)},
        )


def _check_signed_headers(headers: Mapping[str, str], signed: tuple[str, ...]) -> None:
    unsigned = [name for name in headers if name.startswith(_MUST_BE_SIGNED) and name not in signed]
    if HOST not in signed:
        unsigned.insert(0, HOST)
    if unsigned:
        raise S3Error(
            "AccessDenied",
            "There were headers present in the request which were not signed",
            details={"HeadersNotSigned": ", ".join(unsigned)},
        )


def _anonymous_payload(headers: Mapping[str, str]) -> PayloadMode:
    value = headers.get(X_AMZ_CONTENT_SHA256)
    if not value:
        return UNSIGNED
    mode = parse_payload_hash(value)
    if mode.signed_chunks:
        raise S3Error(
            "InvalidRequest",
            "Anonymous requests don't support this x-amz-content-sha256 value. Please use UNSIGNED-PAYLOAD or "
            "STREAMING-UNSIGNED-PAYLOAD-TRAILER.",
        )
    return mode


def _iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
