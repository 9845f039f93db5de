"""An S3-compatible object store whose payloads can bypass HTTP."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from s3verbs.rdma.client.client import Client as Client
    from s3verbs.rdma.client.region import Region as Region

__version__ = "0.1.0"

__all__ = ["Client", "Region", "__version__"]

_LAZY = {"Client": "s3verbs.rdma.client.client", "Region": "s3verbs.rdma.client.region"}


def __getattr__(name: str) -> object:
    """The client is imported when it is first asked for: the server's processes import this package too."""
    if name not in _LAZY:
        raise AttributeError(f"module 's3verbs' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
