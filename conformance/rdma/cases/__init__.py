"""The contract's table: CASES, in the order of its sections."""

from conformance.rdma.case import Case
from conformance.rdma.cases import decline, failure, get, headers, put, token

CASES: tuple[Case, ...] = (
    *token.CASES,
    *headers.CASES,
    *put.CASES,
    *get.CASES,
    *decline.CASES,
    *failure.CASES,
)
