"""What a request says about how it was signed: the Authorization header, or the X-Amz-* query parameters.

Messages are those of AWS, which tell a user which part of the credential is wrong.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from s3verbs.gateway.auth.sigv4 import ALGORITHM, SERVICE, TERMINATOR
from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.dates import parse_http_date
from s3verbs.gateway.http.headers import AUTHORIZATION, DATE, X_AMZ_DATE, X_AMZ_SECURITY_TOKEN
from s3verbs.gateway.http.request import Target

MAX_EXPIRES = 604_800
"""Seconds that a presigned URL may be valid: seven days."""

_ECDSA_ALGORITHM = "AWS4-ECDSA-P256-SHA256"
_V4_PARAMETERS = frozenset(
    {"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Signature", "X-Amz-SignedHeaders", "X-Amz-Expires"}
)
_V2_PARAMETERS = frozenset({"AWSAccessKeyId", "Signature"})
_QUERY_PARAMETERS = _V4_PARAMETERS | _V2_PARAMETERS

Fault = Callable[[str], S3Error]


@dataclass(frozen=True, slots=True)
class Credential:
    """`access_key/date/region/service/aws4_request`; `scope` is all but the access key."""

    access_key: str
    date: str
    region: str
    scope: str


@dataclass(frozen=True, slots=True)
class Signing:
    """How a request was signed.

    `signed_headers` is sorted, `timestamp` is yyyymmddThhmmssZ and `signed_at` the same in seconds since the epoch.
    `expires` is None for header authentication, else seconds of validity, at most MAX_EXPIRES; 0 is always expired.
    `security_token` is "" where there is none.
    """

    credential: Credential
    signed_headers: tuple[str, ...]
    signature: str
    timestamp: str
    signed_at: int
    security_token: str
    expires: int | None = None


def uses_query_authentication(target: Target) -> bool:
    """Whether the query holds any parameter of presigned requests, of version 4 or 2."""
    return any(name in _QUERY_PARAMETERS for name, _ in target.query)


def from_headers(headers: Mapping[str, str]) -> Signing:
    """Read header authentication; the Authorization header must be there.

    Raises S3Error: AuthorizationHeaderMalformed, AccessDenied (no valid date), InvalidArgument (another kind of
    authorization), InvalidRequest (Signature Version 2), NotImplemented (Signature Version 4A).
    """
    value = headers[AUTHORIZATION]
    algorithm, _, fields = value.partition(" ")
    if algorithm != ALGORITHM:
        raise _unsupported(algorithm, value)
    credential = signature = None
    signed_headers: tuple[str, ...] = ()
    for field in fields.split(","):
        name, _, content = field.strip().partition("=")
        if name == "Credential":
            credential = _parse_credential(content, _header_fault)
        elif name == "SignedHeaders":
            signed_headers = _split_signed_headers(content)
        elif name == "Signature":
            signature = content
    if credential is None or not signature or not signed_headers:
        raise _header_fault(
            "the authorization header requires three components: Credential, SignedHeaders, and Signature."
        )
    timestamp, signed_at = _header_date(headers)
    if not timestamp.startswith(credential.date):
        raise _header_fault(
            f'Invalid credential date "{credential.date}". This date is not the same as X-Amz-Date: "{timestamp[:8]}".'
        )
    return Signing(credential, signed_headers, signature, timestamp, signed_at, headers.get(X_AMZ_SECURITY_TOKEN, ""))


def from_query(target: Target) -> Signing:
    """Read query authentication (a presigned URL); whether it is expired is not looked at.

    Raises S3Error: AuthorizationQueryParametersError, InvalidRequest (Signature Version 2), NotImplemented (Signature
    Version 4A).
    """
    parameters: dict[str, str] = {}
    for name, content in target.query:
        parameters.setdefault(name, content)
    if not parameters.keys() & _V4_PARAMETERS:
        raise _unsupported("AWS", "")
    algorithm = parameters.get("X-Amz-Algorithm", "")
    if algorithm == _ECDSA_ALGORITHM:
        raise _unsupported(algorithm, "")
    if algorithm not in (ALGORITHM, ""):
        raise _query_fault(f'X-Amz-Algorithm only supports "{ALGORITHM} and {_ECDSA_ALGORITHM}"')
    date = parameters.get("X-Amz-Date", "")
    signature = parameters.get("X-Amz-Signature", "")
    signed_headers = parameters.get("X-Amz-SignedHeaders", "")
    expires = parameters.get("X-Amz-Expires", "")
    if not (algorithm and date and signature and signed_headers and expires and parameters.get("X-Amz-Credential")):
        raise _query_fault(
            "Query-string authentication version 4 requires the X-Amz-Algorithm, X-Amz-Credential, X-Amz-Signature, "
            "X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters."
        )
    credential = _parse_credential(parameters["X-Amz-Credential"], _query_credential_fault)
    signed_at = parse_timestamp(date)
    if signed_at is None:
        raise _query_fault("X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\"")
    if not date.startswith(credential.date):
        raise _query_fault(
            f'Invalid credential date "{credential.date}". This date is not the same as X-Amz-Date: "{date[:8]}".'
        )
    return Signing(
        credential,
        _split_signed_headers(signed_headers),
        signature,
        date,
        signed_at,
        parameters.get("X-Amz-Security-Token", ""),
        _parse_expires(expires),
    )


@lru_cache(maxsize=1024)
def parse_timestamp(text: str) -> int | None:
    """Seconds since the epoch of yyyymmddThhmmssZ, or None."""
    if len(text) != 16 or text[8] != "T" or text[15] != "Z" or not text.isascii():
        return None
    digits = text[:8] + text[9:15]
    if not digits.isdigit():
        return None
    try:
        moment = datetime(
            int(digits[:4]),
            int(digits[4:6]),
            int(digits[6:8]),
            int(digits[8:10]),
            int(digits[10:12]),
            int(digits[12:]),
            tzinfo=UTC,
        )
    except ValueError:
        return None
    return int(moment.timestamp())


def _header_date(headers: Mapping[str, str]) -> tuple[str, int]:
    text = headers.get(X_AMZ_DATE) or headers.get(DATE, "")
    seconds = parse_timestamp(text)
    if seconds is not None:
        return text, seconds
    seconds = parse_http_date(text)
    if seconds is None:
        raise S3Error("AccessDenied", "AWS authentication requires a valid Date or x-amz-date header")
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%SZ"), seconds


@lru_cache(maxsize=1024)
def _parse_credential(text: str, fault: Fault) -> Credential:
    # An access key may hold slashes, so the scope is taken from the right.
    fields = text.rsplit("/", 4)
    if len(fields) != 5 or not fields[0] or not text.isascii():
        raise fault('the Credential is mal-formed; expecting "<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request".')
    access_key, date, region, service, terminator = fields
    if len(date) != 8 or parse_timestamp(date + "T000000Z") is None:
        raise fault(f'incorrect date format "{date}". This date in the credential must be in the format "yyyyMMdd".')
    if service != SERVICE:
        raise fault(f'incorrect service "{service}". This endpoint belongs to "{SERVICE}".')
    if terminator != TERMINATOR:
        raise fault(f'incorrect terminal "{terminator}". This endpoint uses "{TERMINATOR}".')
    return Credential(access_key, date, region, f"{date}/{region}/{service}/{terminator}")


@lru_cache(maxsize=1024)
def _split_signed_headers(text: str) -> tuple[str, ...]:
    return tuple(sorted(name for name in text.lower().split(";") if name))


def _parse_expires(text: str) -> int:
    sign = text.startswith("-")
    digits = text[1:] if sign else text
    if not (digits.isascii() and digits.isdigit()):
        raise _query_fault("X-Amz-Expires should be a number")
    if sign:
        raise _query_fault("X-Amz-Expires must be non-negative")
    digits = digits.lstrip("0")
    if len(digits) > 6 or int(digits or "0") > MAX_EXPIRES:
        raise _query_fault(
            "X-Amz-Expires must be less than a week (in seconds); that is, the given X-Amz-Expires must be less than "
            f"{MAX_EXPIRES} seconds"
        )
    return int(digits or "0")


def region_fault(signing: Signing, expected: str) -> S3Error:
    """The error for a credential of another region; clients read `Region` and sign again for it."""
    text = f"the region '{signing.credential.region}' is wrong; expecting '{expected}'"
    details = {"Region": expected}
    if signing.expires is None:
        return S3Error(
            "AuthorizationHeaderMalformed", f"The authorization header is malformed; {text}", details=details
        )
    return S3Error(
        "AuthorizationQueryParametersError", f"Error parsing the X-Amz-Credential parameter; {text}", details=details
    )


def _header_fault(text: str) -> S3Error:
    return S3Error("AuthorizationHeaderMalformed", f"The authorization header is malformed; {text}")


def _query_fault(text: str) -> S3Error:
    return S3Error("AuthorizationQueryParametersError", text)


def _query_credential_fault(text: str) -> S3Error:
    return _query_fault(f"Error parsing the X-Amz-Credential parameter; {text}")


def _unsupported(algorithm: str, value: str) -> S3Error:
    if algorithm == "AWS" and value and ":" not in value:
        return S3Error(
            "InvalidArgument",
            "AWS authorization header is invalid.  Expected AwsAccessKeyId:signature",
            details={"ArgumentName": "Authorization", "ArgumentValue": value},
        )
    if algorithm == "AWS":
        return S3Error(
            "InvalidRequest",
            "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.",
        )
    if algorithm == _ECDSA_ALGORITHM:
        return S3Error("NotImplemented", "Signature Version 4A is not implemented. Please use AWS4-HMAC-SHA256.")
    return S3Error(
        "InvalidArgument",
        "Unsupported Authorization Type",
        details={"ArgumentName": "Authorization", "ArgumentValue": value},
    )
