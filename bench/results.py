"""What was measured, its medians, and the JSON file."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from s3verbs.bench.plan import Context
from s3verbs.bench.recompute import Crossover, Recompute, crossover

SCHEMA = 1
"""Of the JSON file; it grows when a field changes its meaning or goes."""

STORE, LOAD = "store", "load"


@dataclass(frozen=True, slots=True)
class Sample:
    """One whole cache, once: seconds on the clock and CPU seconds (user and system, all threads) of the process that
    runs NIXL, both summed over the windows."""

    seconds: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Series:
    """One operation of one transport with one context, repeated."""

    context: Context
    transport: str
    operation: str
    samples: tuple[Sample, ...]

    @property
    def seconds(self) -> float:
        return statistics.median(sample.seconds for sample in self.samples)

    @property
    def fastest(self) -> float:
        return min(sample.seconds for sample in self.samples)

    @property
    def slowest(self) -> float:
        return max(sample.seconds for sample in self.samples)

    @property
    def spread(self) -> float:
        """Half the distance between the slowest and the fastest, as a share of the median."""
        return (self.slowest - self.fastest) / 2 / self.seconds

    @property
    def gb_s(self) -> float:
        """10^9 bytes a second."""
        return self.context.total_bytes / 1e9 / self.seconds

    @property
    def cpu_per_gb(self) -> float:
        """Client CPU seconds for 10^9 bytes."""
        return statistics.median(sample.cpu for sample in self.samples) / (self.context.total_bytes / 1e9)

    def as_json(self) -> dict[str, Any]:
        return {
            "context_tokens": self.context.tokens,
            "kv_bytes": self.context.total_bytes,
            "objects": self.context.objects,
            "transport": self.transport,
            "operation": self.operation,
            "seconds": self.seconds,
            "spread": self.spread,
            "gb_per_second": self.gb_s,
            "client_cpu_seconds_per_gb": self.cpu_per_gb,
            "samples": [{"seconds": sample.seconds, "client_cpu_seconds": sample.cpu} for sample in self.samples],
        }


@dataclass(slots=True)
class Results:
    """Of one run. `transports` are in the order of the columns; the first is what the others are compared with. `about`
    says how the run was made; it holds no secret."""

    transports: Sequence[str]
    recompute: Recompute | None = None
    about: dict[str, Any] = field(default_factory=dict)
    series: list[Series] = field(default_factory=list)

    def find(self, tokens: int, transport: str, operation: str) -> Series | None:
        for series in self.series:
            if (series.context.tokens, series.transport, series.operation) == (tokens, transport, operation):
                return series
        return None

    def of(self, transport: str, operation: str) -> list[Series]:
        """By context, the shortest first."""
        found = [each for each in self.series if (each.transport, each.operation) == (transport, operation)]
        return sorted(found, key=lambda series: series.context.tokens)

    @property
    def contexts(self) -> list[Context]:
        return sorted({series.context for series in self.series}, key=lambda context: context.tokens)

    def crossovers(self) -> Mapping[str, Crossover]:
        """By transport; empty without a recompute time."""
        if self.recompute is None:
            return {}
        return {
            transport: crossover([(each.context.tokens, each.seconds) for each in loads], self.recompute)
            for transport in self.transports
            if (loads := self.of(transport, LOAD))
        }

    def as_json(self) -> dict[str, Any]:
        recompute = self.recompute
        return {
            "schema": SCHEMA,
            **self.about,
            "transports": list(self.transports),
            "measurements": [series.as_json() for series in self.series],
            "recompute_seconds": None
            if recompute is None
            else {str(context.tokens): recompute.seconds(context.tokens) for context in self.contexts},
            "crossover_tokens": {transport: found.tokens for transport, found in self.crossovers().items()},
        }
