"""Headers of the S3-over-RDMA control plane, in lower case, and the dialects that clients speak. Pure.

A dialect is a row of DIALECTS: the header that brings the token, and what its clients make of an answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from s3verbs.rdma.errors import MalformedToken

AGENT = "x-amz-rdma-agent"
AGENTS = frozenset({"cuobj"})
"""What AGENT may say; anything else is a client whose way of moving bytes is not known."""

REPLY = "x-amz-rdma-reply"
BYTES_TRANSFERRED = "x-amz-rdma-bytes-transferred"

DECLINED = "501"
"""The value of REPLY when the server has no transport for a token."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """`reads_bodies`: a GET that is declined may be answered with the object in the HTTP body. A client without it
    takes any 2xx as "the data is in my buffer"."""

    name: str
    token_header: str
    reads_bodies: bool


CUOBJ = Dialect("cuobj", "x-amz-rdma-token", reads_bodies=True)
"""cuObject, MinIO, NooBaa, Ceph and versitygw clients, and ours."""

NIXL = Dialect("nixl", "x-rdma-info", reads_bodies=False)
"""NIXL's accelerated engine, `type: "dell"`."""

DIALECTS = (CUOBJ, NIXL)

TOKEN_HEADERS = frozenset(dialect.token_header for dialect in DIALECTS)
"""A request is only believed when these are among its signed headers."""

TOKEN = CUOBJ.token_header
INFO = NIXL.token_header


def dialect_of(headers: Mapping[str, str]) -> Dialect | None:
    """The dialect of a request, by its lower-case header names; None for an ordinary one. Raises MalformedToken when
    it speaks two at once."""
    spoken = [dialect for dialect in DIALECTS if dialect.token_header in headers]
    if len(spoken) > 1:
        raise MalformedToken("A request can carry only one RDMA token.")
    return spoken[0] if spoken else None
