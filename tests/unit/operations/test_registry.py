import ast
import inspect
import pkgutil
from importlib import import_module

import pytest

from s3verbs.gateway import operations
from s3verbs.gateway.operations import unsupported
from s3verbs.gateway.operations.base import Operation
from s3verbs.gateway.operations.registry import OPERATIONS, find
from tests.unit.operations.endpoint import Endpoint

IMPLEMENTED = {
    "ListBuckets",
    "CreateBucket",
    "HeadBucket",
    "DeleteBucket",
    "GetBucketLocation",
    "PutObject",
    "GetObject",
    "HeadObject",
    "DeleteObject",
    "DeleteObjects",
    "CopyObject",
    "ListObjects",
    "ListObjectsV2",
    "ListObjectVersions",
    "GetObjectAttributes",
    "GetBucketAcl",
    "PutBucketAcl",
    "GetObjectAcl",
    "PutObjectAcl",
    "CreateMultipartUpload",
    "UploadPart",
    "UploadPartCopy",
    "CompleteMultipartUpload",
    "AbortMultipartUpload",
    "ListParts",
    "ListMultipartUploads",
}


def test_what_is_implemented() -> None:
    assert set(OPERATIONS) == IMPLEMENTED
    for name, operation in OPERATIONS.items():
        assert operation.name == name
        assert operation.action.startswith("s3:")
        assert find(name) is operation
    assert OPERATIONS["CompleteMultipartUpload"].slow
    assert not OPERATIONS["GetObject"].slow


def test_an_operation_needs_an_action() -> None:
    with pytest.raises(ValueError, match="no IAM action"):
        Operation("PutObject", "", OPERATIONS["PutObject"].handler)


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("GetObjectTagging", "s3:GetObjectTagging"),
        ("PutBucketVersioning", "s3:PutBucketVersioning"),
        ("GetBucketLifecycleConfiguration", "s3:GetLifecycleConfiguration"),
    ],
)
async def test_everything_else_says_by_name_that_it_is_not_there(endpoint: Endpoint, name: str, action: str) -> None:
    error = await endpoint.fails("NotImplemented", name, "bucket", "key")
    assert error.status == 501
    assert error.message.startswith(f"{name} is not implemented")
    assert find(name).action == action
    assert unsupported.operation(name) is find(name)


def test_operations_import_no_framework() -> None:
    for module in pkgutil.iter_modules(operations.__path__):
        source = inspect.getsource(import_module(f"{operations.__name__}.{module.name}"))
        for node in ast.walk(ast.parse(source)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                assert name.split(".")[0] not in {"aiohttp", "xmltodict", "lmdb", "xml"}, (module.name, name)
