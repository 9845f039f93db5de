"""Header names of the S3-over-RDMA control plane, in lower case."""

TOKEN = "x-amz-rdma-token"  # noqa: S105  a header's name
INFO = "x-rdma-info"
"""The same token from NIXL's accelerated engine, which takes any 2xx as "the data is in my buffer"."""

REPLY = "x-amz-rdma-reply"
BYTES_TRANSFERRED = "x-amz-rdma-bytes-transferred"

DECLINED = "501"
"""The value of REPLY when the server has no transport for a token."""
