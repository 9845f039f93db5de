"""The tables of a run, as aligned Markdown."""

from collections.abc import Sequence

from s3verbs.bench.plan import Context, readable_bytes, readable_tokens
from s3verbs.bench.results import LOAD, STORE, Results, Series

NAMES = {"http": "HTTP", "rdma": "RDMA"}


def tables(results: Results) -> str:
    """Loading first: it is what a request waits for. Then, with a recompute time, where loading begins to pay."""
    parts = [f"{title}\n\n{_table(results, operation)}" for operation, title in ((LOAD, "Load"), (STORE, "Store"))]
    if crossovers := results.crossovers():
        longest = results.contexts[-1].tokens
        parts.append("\n".join(found.sentence(NAMES[name], longest) for name, found in crossovers.items()))
    return "\n\n".join(parts) + "\n"


def _table(results: Results, operation: str) -> str:
    transports = list(results.transports)
    base, others = transports[0], transports[1:]
    recompute = results.recompute if operation == LOAD else None
    head = ["context", "KV cache", "objects"]
    for transport in transports:
        head += [f"{NAMES[transport]}, s", "+-", "GB/s", "CPU, s/GB"]
    for transport in others:
        head += [f"{NAMES[transport]} faster", "less CPU"]
    if recompute is not None:
        head.append("recompute, s")
    rows = []
    for context in results.contexts:
        found = {name: results.find(context.tokens, name, operation) for name in transports}
        row = [readable_tokens(context.tokens), readable_bytes(context.total_bytes), str(context.objects)]
        for transport in transports:
            row += _figures(found[transport])
        for transport in others:
            row += _comparison(found[base], found[transport])
        if recompute is not None:
            row.append(f"{recompute.seconds(context.tokens):.3f}")
        rows.append(row)
    return aligned([head, *rows])


def _figures(series: Series | None) -> list[str]:
    if series is None:
        return ["-"] * 4
    return [f"{series.seconds:.3f}", f"{series.spread:.0%}", f"{series.gb_s:.2f}", f"{series.cpu_per_gb:.3f}"]


def _comparison(base: Series | None, other: Series | None) -> list[str]:
    if base is None or other is None:
        return ["-", "-"]
    less = f"{1 - other.cpu_per_gb / base.cpu_per_gb:.0%}" if base.cpu_per_gb else "-"
    return [f"{base.seconds / other.seconds:.2f}x", less]


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the head; all cells are right-aligned, as numbers are."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join(lines)


def measured_line(context: Context, series: Series) -> str:
    """One measurement, for those who watch."""
    return (
        f"{readable_tokens(context.tokens):>6} {NAMES[series.transport]:<4} {series.operation:<5} "
        f"{readable_bytes(context.total_bytes):>8} in {series.seconds:7.3f} s  {series.gb_s:6.2f} GB/s  "
        f"client CPU {series.cpu_per_gb:.3f} s/GB"
    )
