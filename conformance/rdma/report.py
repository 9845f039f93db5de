"""Results of a run, as text and as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from conformance.rdma.offers import SPOKEN, Offers


class Outcome(Enum):
    PASSED = "passed"
    FAILED = "failed"
    DEVIATION = "deviation"
    """Failed as a profile says that this server does."""
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Result:
    """`transport` is "" for a case that needs none. `why`: of a deviation, or of one that is not applicable."""

    section: str
    name: str
    transport: str
    outcome: Outcome
    expected: str = ""
    seen: str = ""
    why: str = ""

    @property
    def title(self) -> str:
        return f"{self.name} [{self.transport}]" if self.transport else self.name


def summary(results: list[Result]) -> str:
    """`N passed, N failed, N not applicable`; known deviations are named where a profile has any."""
    count = {outcome: sum(result.outcome is outcome for result in results) for outcome in Outcome}
    text = f"{count[Outcome.PASSED]} passed, {count[Outcome.FAILED]} failed"
    if count[Outcome.DEVIATION]:
        text += f", {count[Outcome.DEVIATION]} known deviations"
    return f"{text}, {count[Outcome.NOT_APPLICABLE]} not applicable"


def offers_text(offers: Offers) -> list[str]:
    groups: Mapping[str, Mapping[str, str]] = {
        "dialects": offers.dialects,
        "extensions": offers.extensions,
        "transports": offers.transports,
    }
    words = {"dialects": "spoken", "extensions": "spoken", "transports": "moves bytes"}
    return [
        f"{group + ':' if number == 0 else '':12} {name}: {words[group] if seen == SPOKEN else seen}"
        for group, found in groups.items()
        for number, (name, seen) in enumerate(found.items())
    ]


def as_lines(results: list[Result], *, quiet: bool) -> list[str]:
    """Each case, by section; with `quiet` only those that failed or deviate."""
    lines: list[str] = []
    section = ""
    words = {
        Outcome.PASSED: "pass",
        Outcome.FAILED: "FAIL",
        Outcome.DEVIATION: "known",
        Outcome.NOT_APPLICABLE: "n/a",
    }
    for result in results:
        if quiet and result.outcome in (Outcome.PASSED, Outcome.NOT_APPLICABLE):
            continue
        if result.section != section:
            section = result.section
            lines.append(f"section {section}")
        why = f" ({result.why})" if result.why else ""
        lines.append(f"  {words[result.outcome]:5} {result.title}{why}")
        if result.expected:
            lines += [f"        expected: {result.expected}", f"        seen:     {result.seen}"]
    return lines


def as_json(endpoint: str, offers: Offers, results: list[Result]) -> dict[str, Any]:
    return {
        "endpoint": endpoint,
        "offers": asdict(offers),
        "summary": {outcome.value: sum(result.outcome is outcome for result in results) for outcome in Outcome},
        "results": [{**asdict(result), "outcome": result.outcome.value} for result in results],
    }
