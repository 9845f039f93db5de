"""Routing rules that the model's own requests do not show: precedence, misfits, forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.http.request import Scope, Target
from s3verbs.gateway.routing import RouteTable

TABLE = RouteTable()
Query = tuple[tuple[str, str], ...]


def pairs(query: str) -> Query:
    return tuple((name, value) for name, _, value in (part.partition("=") for part in query.split("&") if part))


def resolve(method: str, path: str, query: str = "", **headers: str) -> str:
    _, bucket, key = (*path.split("/", 2), "", "")[:3]
    scope = Scope.OBJECT if key else Scope.BUCKET if bucket else Scope.SERVICE
    target = Target(path, path, pairs(query), bucket, key, scope)
    return TABLE.resolve(method, scope, target, {name.replace("_", "-"): value for name, value in headers.items()})


def refused(method: str, path: str, query: str = "", **headers: str) -> S3Error:
    with pytest.raises(S3Error) as caught:
        resolve(method, path, query, **headers)
    return caught.value


@pytest.mark.parametrize(
    ("method", "path", "operation"),
    [
        ("GET", "/", "ListBuckets"),
        ("GET", "/b", "ListObjects"),
        ("HEAD", "/b", "HeadBucket"),
        ("PUT", "/b", "CreateBucket"),
        ("DELETE", "/b", "DeleteBucket"),
        ("GET", "/b/k", "GetObject"),
        ("HEAD", "/b/k", "HeadObject"),
        ("PUT", "/b/k", "PutObject"),
        ("DELETE", "/b/k", "DeleteObject"),
        ("OPTIONS", "/b/k", "PreflightRequest"),
        ("OPTIONS", "/b", "PreflightRequest"),
    ],
)
def test_plain_requests(method: str, path: str, operation: str) -> None:
    assert resolve(method, path) == operation


@pytest.mark.parametrize(
    ("method", "path", "query", "operation"),
    [
        ("GET", "/b/k", "x-id=GetObject&response-content-type=a&partNumber=1&versionId=null", "GetObject"),
        ("GET", "/b", "x-id=ListObjects&prefix=a&list-type=1", "ListObjects"),
        ("GET", "/b", "prefix=a&list-type=2", "ListObjectsV2"),
        ("GET", "/b", "colour=red", "ListObjects"),
        ("PUT", "/b/k", "x-id=PutObject&X-Amz-Signature=0", "PutObject"),
        ("PUT", "/b/k", "partNumber=1&uploadId=u", "UploadPart"),
        ("DELETE", "/b/k", "versionId=v", "DeleteObject"),
        ("HEAD", "/b/k", "acl", "HeadObject"),
        ("POST", "/b/k", "uploads=", "CreateMultipartUpload"),
        ("GET", "/b", "metrics", "ListBucketMetricsConfigurations"),
        ("GET", "/b", "id=1&metrics", "GetBucketMetricsConfiguration"),
    ],
)
def test_parameters(method: str, path: str, query: str, operation: str) -> None:
    assert resolve(method, path, query) == operation


def test_a_copy_source_makes_a_copy_of_an_object_or_a_part() -> None:
    assert resolve("PUT", "/b/k", x_amz_copy_source="/b/j") == "CopyObject"
    assert resolve("PUT", "/b/k", "partNumber=1&uploadId=u", x_amz_copy_source="/b/j") == "UploadPartCopy"
    assert resolve("PUT", "/b", x_amz_copy_source="/b/j") == "CreateBucket"


@pytest.mark.parametrize("query", ["uploadId=u", "partNumber=1"])
def test_half_a_part_request_never_overwrites_the_object(query: str) -> None:
    assert resolve("PUT", "/b/k", query) == "UploadPart"


def test_the_first_line_of_the_table_counts_whatever_the_order_of_the_query() -> None:
    assert resolve("GET", "/b", "acl&uploads") == "ListMultipartUploads"
    assert resolve("GET", "/b", "uploads&acl") == "ListMultipartUploads"


def test_a_form_upload_is_a_post_to_the_bucket() -> None:
    assert resolve("POST", "/b", content_type="multipart/form-data; boundary=x") == "PostObject"
    error = refused("POST", "/b", content_type="text/plain")
    assert (error.code, error.details) == (
        "PreconditionFailed",
        {"Condition": "Bucket POST must be of the enclosure-type multipart/form-data"},
    )


@pytest.mark.parametrize(
    ("method", "path", "query", "resource", "allow"),
    [
        ("POST", "/b/k", "", "OBJECT", "DELETE, GET, HEAD, OPTIONS, PUT"),
        ("PATCH", "/b/k", "", "OBJECT", "DELETE, GET, HEAD, OPTIONS, PUT"),
        ("PATCH", "/b", "", "BUCKET", "DELETE, GET, HEAD, OPTIONS, POST, PUT"),
        ("PUT", "/", "", "SERVICE", "GET, OPTIONS"),
        ("HEAD", "/", "", "SERVICE", "GET, OPTIONS"),
        ("DELETE", "/b", "versioning", "VERSIONING", "GET, PUT"),
        ("DELETE", "/b", "uploads", "UPLOADS", "GET"),
        ("DELETE", "/b", "object-lock", "OBJECTLOCK", "GET, PUT"),
        ("GET", "/b", "delete", "DELETE", "POST"),
        ("GET", "/b/k", "uploads", "UPLOADS", "POST"),
        ("DELETE", "/b/k", "policy", "POLICY", ""),
        ("PUT", "/b/k", "versioning", "VERSIONING", ""),
        ("DELETE", "/b", "uploadId=u", "UPLOADID", ""),
    ],
)
def test_what_fits_no_operation_is_not_allowed(method: str, path: str, query: str, resource: str, allow: str) -> None:
    error = refused(method, path, query)
    assert error.code == "MethodNotAllowed"
    assert list(error.details.items()) == [("Method", method), ("ResourceType", resource)]
    assert error.headers == {"Allow": allow}


@given(
    st.sampled_from(["GET", "PUT", "HEAD", "DELETE", "POST", "OPTIONS", "PATCH", "get", ""]),
    st.sampled_from(Scope),
    st.lists(
        st.tuples(
            st.sampled_from(["uploads", "acl", "id", "list-type", "uploadId", "policy", ""]) | st.text(), st.text()
        )
    ),
    st.dictionaries(st.sampled_from(["x-amz-copy-source", "content-type", "x-amz-request-route"]), st.text()),
)
def test_any_request_has_a_known_name_or_an_s3_error(
    method: str, scope: Scope, query: list[tuple[str, str]], headers: dict[str, str]
) -> None:
    target = Target("/", "/", tuple(query), "b", "k", scope)
    try:
        name = TABLE.resolve(method, scope, target, headers)
    except S3Error as error:
        name = error.code
    assert name in TABLE.operations | {"MethodNotAllowed", "PreconditionFailed"}
