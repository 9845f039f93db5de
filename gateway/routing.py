"""From a request's method, scope, query and headers to the name of its S3 operation. Pure.

The table below holds every operation of the S3 API, also those that the endpoint does not implement, so that each can
be refused by its own name. A line matches when its query parameters and its header are there; among matching lines
the first counts. `x-id` and parameters that the table does not know are ignored.

A sub-resource that does not go with the method is never taken for its bucket or object: `DELETE /bucket/key?policy`
must not delete the key.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.request import Scope, Target

ALIASES: Mapping[str, str] = {
    "GetBucketLifecycle": "GetBucketLifecycleConfiguration",
    "GetBucketNotification": "GetBucketNotificationConfiguration",
    "PutBucketLifecycle": "PutBucketLifecycleConfiguration",
    "PutBucketNotification": "PutBucketNotificationConfiguration",
    "ListDirectoryBuckets": "ListBuckets",
}
"""Names whose requests cannot be told from another operation's: deprecated ones, and one that has its own host."""

_TABLE = """
GET     /  ListBuckets
OPTIONS /  PreflightRequest

HEAD    /bucket  HeadBucket
OPTIONS /bucket  PreflightRequest

GET     /bucket?list-type=2             ListObjectsV2
GET     /bucket?uploads                 ListMultipartUploads
GET     /bucket?versions                ListObjectVersions
GET     /bucket?location                GetBucketLocation
GET     /bucket?versioning              GetBucketVersioning
GET     /bucket?acl                     GetBucketAcl
GET     /bucket?policy                  GetBucketPolicy
GET     /bucket?policyStatus            GetBucketPolicyStatus
GET     /bucket?tagging                 GetBucketTagging
GET     /bucket?cors                    GetBucketCors
GET     /bucket?lifecycle               GetBucketLifecycleConfiguration
GET     /bucket?encryption              GetBucketEncryption
GET     /bucket?object-lock             GetObjectLockConfiguration
GET     /bucket?publicAccessBlock       GetPublicAccessBlock
GET     /bucket?ownershipControls       GetBucketOwnershipControls
GET     /bucket?notification            GetBucketNotificationConfiguration
GET     /bucket?replication             GetBucketReplication
GET     /bucket?requestPayment          GetBucketRequestPayment
GET     /bucket?accelerate              GetBucketAccelerateConfiguration
GET     /bucket?logging                 GetBucketLogging
GET     /bucket?website                 GetBucketWebsite
GET     /bucket?abac                    GetBucketAbac
GET     /bucket?analytics&id            GetBucketAnalyticsConfiguration
GET     /bucket?analytics               ListBucketAnalyticsConfigurations
GET     /bucket?intelligent-tiering&id  GetBucketIntelligentTieringConfiguration
GET     /bucket?intelligent-tiering     ListBucketIntelligentTieringConfigurations
GET     /bucket?inventory&id            GetBucketInventoryConfiguration
GET     /bucket?inventory               ListBucketInventoryConfigurations
GET     /bucket?metrics&id              GetBucketMetricsConfiguration
GET     /bucket?metrics                 ListBucketMetricsConfigurations
GET     /bucket?metadataConfiguration   GetBucketMetadataConfiguration
GET     /bucket?metadataTable           GetBucketMetadataTableConfiguration
GET     /bucket?session                 CreateSession
GET     /bucket                         ListObjects

PUT     /bucket?versioning              PutBucketVersioning
PUT     /bucket?acl                     PutBucketAcl
PUT     /bucket?policy                  PutBucketPolicy
PUT     /bucket?tagging                 PutBucketTagging
PUT     /bucket?cors                    PutBucketCors
PUT     /bucket?lifecycle               PutBucketLifecycleConfiguration
PUT     /bucket?encryption              PutBucketEncryption
PUT     /bucket?object-lock             PutObjectLockConfiguration
PUT     /bucket?publicAccessBlock       PutPublicAccessBlock
PUT     /bucket?ownershipControls       PutBucketOwnershipControls
PUT     /bucket?notification            PutBucketNotificationConfiguration
PUT     /bucket?replication             PutBucketReplication
PUT     /bucket?requestPayment          PutBucketRequestPayment
PUT     /bucket?accelerate              PutBucketAccelerateConfiguration
PUT     /bucket?logging                 PutBucketLogging
PUT     /bucket?website                 PutBucketWebsite
PUT     /bucket?abac                    PutBucketAbac
PUT     /bucket?analytics               PutBucketAnalyticsConfiguration
PUT     /bucket?intelligent-tiering     PutBucketIntelligentTieringConfiguration
PUT     /bucket?inventory               PutBucketInventoryConfiguration
PUT     /bucket?metrics                 PutBucketMetricsConfiguration
PUT     /bucket?metadataAnnotationTable UpdateBucketMetadataAnnotationTableConfiguration
PUT     /bucket?metadataInventoryTable  UpdateBucketMetadataInventoryTableConfiguration
PUT     /bucket?metadataJournalTable    UpdateBucketMetadataJournalTableConfiguration
PUT     /bucket                         CreateBucket

DELETE  /bucket?policy                  DeleteBucketPolicy
DELETE  /bucket?tagging                 DeleteBucketTagging
DELETE  /bucket?cors                    DeleteBucketCors
DELETE  /bucket?lifecycle               DeleteBucketLifecycle
DELETE  /bucket?encryption              DeleteBucketEncryption
DELETE  /bucket?publicAccessBlock       DeletePublicAccessBlock
DELETE  /bucket?ownershipControls       DeleteBucketOwnershipControls
DELETE  /bucket?replication             DeleteBucketReplication
DELETE  /bucket?website                 DeleteBucketWebsite
DELETE  /bucket?analytics               DeleteBucketAnalyticsConfiguration
DELETE  /bucket?intelligent-tiering     DeleteBucketIntelligentTieringConfiguration
DELETE  /bucket?inventory               DeleteBucketInventoryConfiguration
DELETE  /bucket?metrics                 DeleteBucketMetricsConfiguration
DELETE  /bucket?metadataConfiguration   DeleteBucketMetadataConfiguration
DELETE  /bucket?metadataTable           DeleteBucketMetadataTableConfiguration
DELETE  /bucket                         DeleteBucket

POST    /bucket?delete                  DeleteObjects
POST    /bucket?metadataConfiguration   CreateBucketMetadataConfiguration
POST    /bucket?metadataTable           CreateBucketMetadataTableConfiguration
POST    /bucket                         WriteGetObjectResponse  x-amz-request-route
POST    /bucket                         PostObject

HEAD    /bucket/key  HeadObject
OPTIONS /bucket/key  PreflightRequest

GET     /bucket/key?uploadId    ListParts
GET     /bucket/key?attributes  GetObjectAttributes
GET     /bucket/key?tagging     GetObjectTagging
GET     /bucket/key?acl         GetObjectAcl
GET     /bucket/key?retention   GetObjectRetention
GET     /bucket/key?legal-hold  GetObjectLegalHold
GET     /bucket/key?torrent     GetObjectTorrent
GET     /bucket/key?annotation&annotationName  GetObjectAnnotation
GET     /bucket/key?annotation  ListObjectAnnotations
GET     /bucket/key             GetObject

PUT     /bucket/key?uploadId      UploadPartCopy  x-amz-copy-source
PUT     /bucket/key?uploadId      UploadPart
PUT     /bucket/key?partNumber    UploadPart
PUT     /bucket/key?tagging       PutObjectTagging
PUT     /bucket/key?acl           PutObjectAcl
PUT     /bucket/key?retention     PutObjectRetention
PUT     /bucket/key?legal-hold    PutObjectLegalHold
PUT     /bucket/key?annotation    PutObjectAnnotation
PUT     /bucket/key?renameObject  RenameObject
PUT     /bucket/key?encryption    UpdateObjectEncryption
PUT     /bucket/key               CopyObject  x-amz-copy-source
PUT     /bucket/key               PutObject

DELETE  /bucket/key?uploadId    AbortMultipartUpload
DELETE  /bucket/key?tagging     DeleteObjectTagging
DELETE  /bucket/key?annotation  DeleteObjectAnnotation
DELETE  /bucket/key             DeleteObject

POST    /bucket/key?uploads   CreateMultipartUpload
POST    /bucket/key?uploadId  CompleteMultipartUpload
POST    /bucket/key?restore   RestoreObject
POST    /bucket/key?select    SelectObjectContent
POST    /bucket/key           WriteGetObjectResponse  x-amz-request-route
"""

_PATHS = {"/": Scope.SERVICE, "/bucket": Scope.BUCKET, "/bucket/key": Scope.OBJECT}
_PLAIN_PARAMETERS = frozenset({"list-type", "partNumber"})
"""First parameters of lines that are no sub-resources: other operations take them too."""

_WRITES = frozenset({"PUT", "POST", "DELETE"})
_FORM = "multipart/form-data"


@dataclass(frozen=True, slots=True)
class _Route:
    rank: int
    operation: str
    header: str
    value: str
    """What the first parameter must equal, or "" for anything."""
    second: str
    """Another parameter that must be there, or ""."""

    def matches(self, value: str, target: Target, headers: Mapping[str, str]) -> bool:
        return (
            (not self.value or self.value == value)
            and (not self.second or target.has(self.second))
            and (not self.header or self.header in headers)
        )


@dataclass(slots=True)
class _Routes:
    """The lines of one method and scope: by their first query parameter, and those without one."""

    by_parameter: dict[str, list[_Route]] = field(default_factory=dict)
    plain: list[tuple[str, str]] = field(default_factory=list)


class RouteTable:
    """Resolves requests. Immutable once made; one serves all."""

    def __init__(self) -> None:
        self._routes: dict[Scope, dict[str, _Routes]] = {scope: {} for scope in Scope}
        names: dict[Scope, set[str]] = {scope: set() for scope in Scope}
        operations = set()
        for rank, line in enumerate(line for line in _TABLE.splitlines() if line):
            method, path, operation, *header = line.split()
            path, _, query = path.partition("?")
            scope = _PATHS[path]
            routes = self._routes[scope].setdefault(method, _Routes())
            operations.add(operation)
            if not query:
                routes.plain.append(("".join(header), operation))
                continue
            first, _, second = query.partition("&")
            name, _, value = first.partition("=")
            routes.by_parameter.setdefault(name, []).append(_Route(rank, operation, "".join(header), value, second))
            if name not in _PLAIN_PARAMETERS:
                names[scope].add(name)
        self.operations: frozenset[str] = frozenset(operations)
        """Every name that `resolve` can return."""
        self._own: Mapping[Scope, frozenset[str]] = {scope: frozenset(found) for scope, found in names.items()}
        self._any = frozenset().union(*names.values())
        self._object = self._routes[Scope.OBJECT]

    def resolve(self, method: str, scope: Scope, target: Target, headers: Mapping[str, str]) -> str:
        """The S3 operation name. `headers` has lower-case names.

        Raises S3Error: MethodNotAllowed for what fits no operation, PreconditionFailed for a POST to a bucket that
        is no form.
        """
        # Hashing an Enum member runs Python code: most requests are for objects and skip it.
        routes = (self._object if scope is Scope.OBJECT else self._routes[scope]).get(method)
        if routes is None:
            raise self._not_allowed(method, scope)
        if target.query and method != "HEAD":
            operation = self._by_query(routes, method, scope, target, headers)
            if operation:
                return operation
        for header, operation in routes.plain:
            if not header or header in headers:
                if operation == "PostObject" and not headers.get("content-type", "").lower().startswith(_FORM):
                    raise S3Error(
                        "PreconditionFailed",
                        details={"Condition": f"Bucket POST must be of the enclosure-type {_FORM}"},
                    )
                return operation
        raise self._not_allowed(method, scope)

    def _by_query(
        self, routes: _Routes, method: str, scope: Scope, target: Target, headers: Mapping[str, str]
    ) -> str | None:
        best: _Route | None = None
        misfit = ""
        known = self._any if method in _WRITES else self._own[scope]
        for name, value in target.query:
            found = routes.by_parameter.get(name)
            if found is None:
                if name in known:
                    misfit = name
                continue
            for route in found:
                if (best is None or route.rank < best.rank) and route.matches(value, target, headers):
                    best = route
        if best is not None:
            return best.operation
        if misfit:
            raise self._not_allowed(method, scope, misfit)
        return None

    def _not_allowed(self, method: str, scope: Scope, subresource: str = "") -> S3Error:
        if subresource:
            fitting = [name for name, routes in self._routes[scope].items() if subresource in routes.by_parameter]
        else:
            fitting = [
                name for name, routes in self._routes[scope].items() if any(not header for header, _ in routes.plain)
            ]
        return S3Error(
            "MethodNotAllowed",
            details={"Method": method, "ResourceType": subresource.replace("-", "").upper() or scope.name},
            headers={"Allow": ", ".join(sorted(fitting))},
        )
