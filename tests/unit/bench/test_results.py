"""Medians, the tables and the JSON file of made-up measurements."""

import json
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3verbs.bench.plan import Context
from s3verbs.bench.recompute import parse
from s3verbs.bench.results import LOAD, STORE, Results, Sample, Series
from s3verbs.bench.table import aligned, tables

SAMPLES = st.lists(st.builds(Sample, st.floats(1e-3, 1e3), st.floats(0, 1e3)), min_size=1, max_size=9).map(tuple)


def made_up(recompute: str | None = None) -> Results:
    """HTTP at 1 GB/s with 0.5 CPU seconds a GB, RDMA at twice that with a fiftieth; loads at half of the rate."""
    results = Results(
        ["http", "rdma"], parse(recompute) if recompute else None, {"model": "M", "object_bytes": 256 << 10}
    )
    for tokens in (1000, 4096):
        context = Context(tokens, 256, 1000)
        for transport, rate, cpu in (("http", 1e9, 0.5), ("rdma", 2e9, 0.01)):
            for operation, factor in ((STORE, 1.0), (LOAD, 0.5)):
                seconds = context.total_bytes / rate / factor
                samples = tuple(Sample(seconds * off, cpu * context.total_bytes / 1e9) for off in (0.9, 1.0, 1.3))
                results.series.append(Series(context, transport, operation, samples))
    return results


@given(SAMPLES, st.integers(1, 10_000))
def test_a_series_is_told_by_its_median_and_spread(samples: tuple[Sample, ...], tokens: int) -> None:
    series = Series(Context(tokens, 256, 512), "http", LOAD, samples)
    times = sorted(sample.seconds for sample in samples)
    assert series.seconds == statistics.median(times)
    assert series.spread * series.seconds == pytest.approx((times[-1] - times[0]) / 2)
    assert series.gb_s * series.seconds == pytest.approx(tokens * 512 / 1e9)
    written = json.loads(json.dumps(series.as_json()))
    assert [(each["seconds"], each["client_cpu_seconds"]) for each in written["samples"]] == [
        (sample.seconds, sample.cpu) for sample in samples
    ]


def test_the_json_holds_what_a_reader_relies_on() -> None:
    written = json.loads(json.dumps(made_up("0.001ms").as_json()))
    assert written["schema"] == 1
    assert written["transports"] == ["http", "rdma"]
    assert len(written["measurements"]) == 8
    for each in written["measurements"]:
        assert set(each) == {
            "context_tokens",
            "kv_bytes",
            "objects",
            "transport",
            "operation",
            "seconds",
            "spread",
            "gb_per_second",
            "client_cpu_seconds_per_gb",
            "samples",
        }
    assert written["recompute_seconds"] == pytest.approx({"1000": 0.001, "4096": 0.004096})
    assert set(written["crossover_tokens"]) == {"http", "rdma"}


def test_without_a_recompute_time_there_is_no_crossover() -> None:
    written = made_up().as_json()
    assert (written["recompute_seconds"], written["crossover_tokens"]) == (None, {})
    assert "recompute" not in tables(made_up())


def test_the_table_sets_the_transports_side_by_side() -> None:
    _, load, _, store, last = tables(made_up("0.0015")).split("\n\n")
    head, _, first, second = load.splitlines()
    cells = [cell.strip() for cell in second.strip("|").split("|")]
    assert cells == [
        "4K",
        "3.91 MiB",
        "16",
        "0.008",
        "20%",
        "0.50",
        "0.500",
        "0.004",
        "20%",
        "1.00",
        "0.010",
        "2.00x",
        "98%",
        "0.006",
    ]
    assert [cell.strip() for cell in head.strip("|").split("|")][-3:] == ["RDMA faster", "less CPU", "recompute, s"]
    assert len({len(line) for line in load.splitlines()}) == 1
    assert first.split("|")[1].strip() == "1000"
    assert "recompute" not in store
    assert last.splitlines() == [
        "HTTP: recomputing is faster up to 4K tokens, the longest measured",
        "RDMA: loading is faster from 1000 tokens on, the shortest measured",
    ]


@given(st.lists(st.lists(st.text("abc ", max_size=5), min_size=3, max_size=3), min_size=1, max_size=6))
def test_an_aligned_table_keeps_every_cell(rows: list[list[str]]) -> None:
    lines = aligned(rows).splitlines()
    assert len({len(line) for line in lines}) == 1
    found = [[cell.strip() for cell in line[1:-1].split("|")] for line in [lines[0], *lines[2:]]]
    assert found == [[cell.strip() for cell in row] for row in rows]
