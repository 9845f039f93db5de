"""Every operation of botocore's S3 model, serialised by botocore, resolves to its own name."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import boto3
import pytest
from botocore import xform_name
from botocore.awsrequest import AWSPreparedRequest
from botocore.config import Config
from botocore.model import OperationModel, Shape

from s3verbs.gateway.http.request import Scope, Target
from s3verbs.gateway.routing import ALIASES, RouteTable

TABLE = RouteTable()
VALUES = {"Bucket": "bucket", "Key": "key/of an/object", "CopySource": "other/key", "RequestRoute": "route"}


class CapturedError(Exception):
    """Carries the request that botocore was about to send."""

    def __init__(self, request: AWSPreparedRequest) -> None:
        super().__init__(request.url)
        self.request = request


def capture(request: AWSPreparedRequest, **_: object) -> None:
    raise CapturedError(request)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    made = boto3.client(
        "s3",
        endpoint_url="http://127.0.0.1:9",
        region_name="us-east-1",
        aws_access_key_id="access",
        aws_secret_access_key="secret",
        config=Config(s3={"addressing_style": "path"}, inject_host_prefix=False, retries={"total_max_attempts": 1}),
    )
    made.meta.events.register("before-send.s3", capture)
    yield made
    made.close()


def example(shape: Shape, name: str = "") -> Any:
    """The smallest valid value of a shape."""
    if name in VALUES:
        return VALUES[name]
    match shape.type_name:
        case "string":
            return shape.enum[0] if shape.enum else "x" * max(1, int(shape.metadata.get("min", 1)))
        case "integer" | "long":
            return 1
        case "float" | "double":
            return 1.0
        case "boolean":
            return True
        case "timestamp":
            return datetime(2026, 11, 29, tzinfo=UTC)
        case "blob":
            return b"x"
        case "list":
            return [example(shape.member)]
        case "map":
            return {"k": example(shape.value)}
        case _:
            wanted = shape.required_members or (list(shape.members)[:1] if shape.is_tagged_union else [])
            return {member: example(shape.members[member], member) for member in wanted}


def parameters(operation: OperationModel, *, optional: bool) -> dict[str, Any]:
    """Required members and, with `optional`, whatever else goes into the query or the headers."""
    shape = operation.input_shape
    if shape is None:
        return {}
    return {
        name: example(member, name)
        for name, member in shape.members.items()
        if name in shape.required_members
        or (optional and member.serialization.get("location") in {"querystring", "header", "headers"})
    }


def resolve(client: Any, operation: OperationModel, *, optional: bool) -> str:
    with pytest.raises(CapturedError) as caught:
        getattr(client, xform_name(operation.name))(**parameters(operation, optional=optional))
    request = caught.value.request
    url = urlsplit(request.url)
    bucket, _, key = unquote(url.path.removeprefix("/")).partition("/")
    scope = Scope.OBJECT if key else Scope.BUCKET if bucket else Scope.SERVICE
    query = tuple(parse_qsl(url.query, keep_blank_values=True))
    headers = {name.lower(): value for name, value in request.headers.items()}
    return TABLE.resolve(request.method, scope, Target(url.path, url.path, query, bucket, key, scope), headers)


@pytest.mark.parametrize("optional", [False, True], ids=["required", "everything"])
def test_each_operation_of_the_model_resolves_to_its_name(client: Any, optional: bool) -> None:
    model = client.meta.service_model
    wrong = {}
    for name in model.operation_names:
        found = resolve(client, model.operation_model(name), optional=optional)
        if found != ALIASES.get(name, name):
            wrong[name] = found
    assert not wrong
    assert len(model.operation_names) >= 100


def test_the_table_names_nothing_but_the_model_and_the_requests_of_browsers(client: Any) -> None:
    assert TABLE.operations - set(client.meta.service_model.operation_names) == {"PostObject", "PreflightRequest"}


def test_aliases_are_of_the_model_and_lead_to_the_table(client: Any) -> None:
    assert ALIASES.keys() <= set(client.meta.service_model.operation_names)
    assert set(ALIASES.values()) <= TABLE.operations
    assert not ALIASES.keys() & TABLE.operations
