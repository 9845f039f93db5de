"""A row of the contract's table."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from conformance.rdma.expect import DECLINED, Expected, served_over_http
from conformance.rdma.trial import CONTENT, Attempt, Dialect, Operation, Trial

TOKEN = "2 token"
HEADERS = "3 headers"
SUCCESS = "4 success"
DECLINE = "5 decline"
FAILURE = "5 failure"
LIMITS = "8 limits"
"""Sections of the contract."""


@dataclass(frozen=True)
class Case:
    """`run` returns when the server does as the contract says, else raises Failed or NotApplicable.

    `dialect` must be spoken by the server, and so must `extension` (rc1, cma1; "" is the bare token). `moves` cases run
    once with each transport that moves bytes.
    """

    section: str
    name: str
    run: Callable[[Trial], None]
    dialect: Dialect | None = None
    extension: str = ""
    moves: bool = False


def one_request(
    section: str,
    name: str,
    dialect: Dialect,
    operation: Operation,
    headers: Mapping[str, str],
    expected: Expected,
    *,
    extension: str = "",
    **options: Any,
) -> Case:
    """The commonest row: one request of `operation`, its answer, and nothing stored or changed by it. `options` as for
    `Server.send`."""

    def run(trial: Trial) -> None:
        attempt = Attempt(trial, operation)
        expected.check(attempt.send(headers, **options))
        attempt.check_untouched()

    return Case(section, f"{name}, {operation.value}, {dialect.header}", run, dialect, extension)


def moving(section: str, dialects: Iterable[Dialect], name: str, run: Callable[[Trial, Dialect], None]) -> list[Case]:
    """One row per dialect of what needs a transport."""

    def bound(dialect: Dialect) -> Callable[[Trial], None]:
        return lambda trial: run(trial, dialect)

    return [Case(section, f"{name}, {each.header}", bound(each), each, moves=True) for each in dialects]


def declined(dialect: Dialect, operation: Operation) -> Expected:
    """Section 5's table, for an object of CONTENT."""
    return served_over_http(CONTENT) if operation is Operation.GET and dialect.reads_bodies else DECLINED
