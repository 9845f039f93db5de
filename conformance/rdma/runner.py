"""Runs the table against one server."""

import http.client
from collections.abc import Iterator

from conformance.rdma.case import Case
from conformance.rdma.cases import CASES
from conformance.rdma.expect import Failed, NotApplicable
from conformance.rdma.lanes import Lane
from conformance.rdma.offers import SPOKEN, Offers
from conformance.rdma.profiles import Profile
from conformance.rdma.report import Outcome, Result
from conformance.rdma.trial import Trial
from conformance.rdma.wire import Server


class Runner:
    """`lanes` are the transports that move bytes; of those in `offers` only these can be tested."""

    def __init__(
        self, server: Server, bucket: str, prefix: str, offers: Offers, lanes: list[Lane], profile: Profile
    ) -> None:
        self._server = server
        self._bucket = bucket
        self._prefix = prefix
        self._offers = offers
        self._lanes = lanes
        self._profile = profile

    def run(self, select: str = "") -> Iterator[Result]:
        """Every case whose name contains `select`, in the table's order."""
        for case in CASES:
            if select not in case.name:
                continue
            missing = self._missing(case)
            if missing:
                yield Result(case.section, case.name, "", Outcome.NOT_APPLICABLE, why=missing)
            elif not case.moves:
                yield self._one(case, None)
            else:
                yield from (self._one(case, lane) for lane in self._lanes)

    def _missing(self, case: Case) -> str:
        """Why the case says nothing about this server; "" when it does."""
        if case.dialect is not None and not self._offers.tests(case.dialect):
            return f"{case.dialect.header} is not spoken"
        if case.extension and self._offers.extensions.get(case.extension) != SPOKEN:
            return f"{case.extension} is not spoken"
        return "no transport moves bytes" if case.moves and not self._lanes else ""

    def _one(self, case: Case, lane: Lane | None) -> Result:
        trial = Trial(self._server, self._bucket, self._prefix, lane)
        transport = lane.name if lane is not None else ""
        result = Result(case.section, case.name, transport, Outcome.PASSED)
        try:
            try:
                case.run(trial)
            finally:
                trial.close()
        except Failed as failed:
            result = self._failed(case, transport, failed.expected, failed.seen)
        except NotApplicable as reason:
            result = Result(case.section, case.name, transport, Outcome.NOT_APPLICABLE, why=str(reason))
        except (OSError, http.client.HTTPException) as error:
            result = self._failed(case, transport, "a response", f"{type(error).__name__}: {error}")
        return result

    def _failed(self, case: Case, transport: str, expected: str, seen: str) -> Result:
        result = Result(case.section, case.name, transport, Outcome.FAILED, expected, seen)
        why = self._profile.why(result.title)
        outcome = Outcome.DEVIATION if why else Outcome.FAILED
        return Result(case.section, case.name, transport, outcome, expected, seen, why)
