"""Every S3 error code the endpoint can give: status and default message, as AWS documents them
(Amazon S3 API Reference, "Error responses"). InsufficientStorage is ours: AWS has no full disk."""

from typing import NamedTuple


class ErrorCode(NamedTuple):
    status: int
    message: str


ERROR_CODES: dict[str, ErrorCode] = {
    "AccessControlListNotSupported": ErrorCode(400, "The bucket does not allow ACLs"),
    "AccessForbidden": ErrorCode(403, "CORSResponse: CORS is not enabled for this bucket."),
    "AccessDenied": ErrorCode(403, "Access Denied"),
    "AuthorizationHeaderMalformed": ErrorCode(400, "The authorization header that you provided is not valid."),
    "AuthorizationQueryParametersError": ErrorCode(
        400, "The authorization query parameters that you provided are not valid."
    ),
    "BadDigest": ErrorCode(
        400, "The Content-MD5 or checksum value that you specified did not match what the server received."
    ),
    "BadRequest": ErrorCode(400, "Bad Request"),
    "BucketAlreadyExists": ErrorCode(
        409,
        "The requested bucket name is not available. The bucket namespace is shared by all users of the system. Select a different name and try again.",
    ),
    "BucketAlreadyOwnedByYou": ErrorCode(
        409, "Your previous request to create the named bucket succeeded and you already own it."
    ),
    "BucketNotEmpty": ErrorCode(409, "The bucket that you tried to delete is not empty."),
    "ConditionalRequestConflict": ErrorCode(409, "A conflicting operation occurred. Retry the request."),
    "CredentialsNotSupported": ErrorCode(400, "This request does not support credentials."),
    "EntityTooLarge": ErrorCode(400, "Your proposed upload exceeds the maximum allowed object size."),
    "EntityTooSmall": ErrorCode(400, "Your proposed upload is smaller than the minimum allowed object size."),
    "ExpiredToken": ErrorCode(400, "The provided token has expired."),
    "IllegalLocationConstraintException": ErrorCode(
        400,
        "The unspecified location constraint is incompatible for the region specific endpoint this request was sent to.",
    ),
    "IncompleteBody": ErrorCode(
        400, "You did not provide the number of bytes specified by the Content-Length HTTP header."
    ),
    "InsufficientStorage": ErrorCode(
        507, "The server has no room to store this; nothing was stored. Deleting objects frees space."
    ),
    "InternalError": ErrorCode(500, "We encountered an internal error. Please try again."),
    "InvalidAccessKeyId": ErrorCode(403, "The AWS Access Key Id you provided does not exist in our records."),
    "InvalidArgument": ErrorCode(400, "Invalid Argument"),
    "InvalidBucketAclWithObjectOwnership": ErrorCode(
        400, "Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting"
    ),
    "InvalidBucketName": ErrorCode(400, "The specified bucket is not valid."),
    "InvalidChunkSizeError": ErrorCode(403, "Only the last chunk is allowed to have a size less than 8192 bytes"),
    "InvalidDigest": ErrorCode(400, "The Content-MD5 you specified was invalid."),
    "InvalidLocationConstraint": ErrorCode(400, "The specified location-constraint is not valid"),
    "InvalidObjectState": ErrorCode(403, "The operation is not valid for the current state of the object."),
    "InvalidPart": ErrorCode(
        400,
        "One or more of the specified parts could not be found. The part may not have been uploaded, or the specified entity tag may not match the part's entity tag.",
    ),
    "InvalidPartNumber": ErrorCode(416, "The requested partnumber is not satisfiable"),
    "InvalidPartOrder": ErrorCode(
        400, "The list of parts was not in ascending order. The parts list must be specified in order by part number."
    ),
    "InvalidRange": ErrorCode(416, "The requested range is not satisfiable"),
    "InvalidRedirectLocation": ErrorCode(
        400, "The website redirect location must have a prefix of 'http://' or 'https://' or '/'."
    ),
    "InvalidRequest": ErrorCode(400, "Invalid Request"),
    "InvalidSecurity": ErrorCode(403, "The provided security credentials are not valid."),
    "InvalidStorageClass": ErrorCode(400, "The storage class you specified is not valid"),
    "InvalidTag": ErrorCode(400, "The tag provided was not a valid tag."),
    "InvalidToken": ErrorCode(400, "The provided token is malformed or otherwise invalid."),
    "InvalidURI": ErrorCode(400, "Couldn't parse the specified URI."),
    "KeyTooLongError": ErrorCode(400, "Your key is too long"),
    "MalformedACLError": ErrorCode(
        400, "The XML you provided was not well-formed or did not validate against our published schema"
    ),
    "MalformedPOSTRequest": ErrorCode(400, "The body of your POST request is not well-formed multipart/form-data."),
    "MalformedTrailerError": ErrorCode(
        400, "The request contained trailing data that was not well-formed or did not conform to our published schema."
    ),
    "MalformedXML": ErrorCode(
        400, "The XML you provided was not well-formed or did not validate against our published schema"
    ),
    "MaxMessageLengthExceeded": ErrorCode(400, "Your request was too big."),
    "MetadataTooLarge": ErrorCode(400, "Your metadata headers exceed the maximum allowed metadata size"),
    "MethodNotAllowed": ErrorCode(405, "The specified method is not allowed against this resource."),
    "MissingContentLength": ErrorCode(411, "You must provide the Content-Length HTTP header."),
    "MissingRequestBodyError": ErrorCode(400, "Request body is empty."),
    "MissingSecurityHeader": ErrorCode(400, "Your request was missing a required header"),
    "NoSuchBucket": ErrorCode(404, "The specified bucket does not exist"),
    "NoSuchKey": ErrorCode(404, "The specified key does not exist."),
    "NoSuchUpload": ErrorCode(
        404,
        "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or completed.",
    ),
    "NoSuchVersion": ErrorCode(404, "The specified version does not exist."),
    "NotImplemented": ErrorCode(501, "A header or query you provided implies functionality that is not implemented."),
    "PreconditionFailed": ErrorCode(412, "At least one of the pre-conditions you specified did not hold"),
    "RequestHeaderSectionTooLarge": ErrorCode(
        400, "Your request header section exceeds the maximum allowed request header section size."
    ),
    "RequestTimeTooSkewed": ErrorCode(
        403, "The difference between the request time and the current time is too large."
    ),
    "RequestTimeout": ErrorCode(
        400,
        "Your socket connection to the server was not read from or written to within the timeout period. Idle connections will be closed.",
    ),
    "ServiceUnavailable": ErrorCode(503, "Service is unable to handle request."),
    "SignatureDoesNotMatch": ErrorCode(
        403,
        "The request signature we calculated does not match the signature you provided. Check your key and signing method.",
    ),
    "SlowDown": ErrorCode(503, "Please reduce your request rate."),
    "TooManyBuckets": ErrorCode(400, "You have attempted to create more buckets than allowed"),
    "UnexpectedContent": ErrorCode(400, "This request contains unsupported content."),
    "XAmzContentSHA256Mismatch": ErrorCode(
        400, "The provided 'x-amz-content-sha256' header does not match what was computed."
    ),
}
