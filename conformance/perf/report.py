"""The table of a run: the median over rounds, and each server against the others."""

import statistics
from collections.abc import Iterable
from typing import Any


def _median(rows: Iterable[dict[str, Any]], field: str) -> float:
    return statistics.median(row[field] for row in rows)


def as_markdown(results: list[dict[str, Any]], disk: float) -> str:
    cells: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    order: list[tuple[str, int]] = []
    names: list[str] = []
    for row in results:
        cells.setdefault((row["workload"], row["connections"], row["peer"]), []).append(row)
        if (row["workload"], row["connections"]) not in order:
            order.append((row["workload"], row["connections"]))
        if row["peer"] not in names:
            names.append(row["peer"])
    lines = [f"The disk's own rate (8 MiB writes, each with fdatasync): {disk:.0f} MB/s.", ""]
    lines.append("| workload | C | " + " | ".join(f"{name} (server CPU us/req)" for name in names) + " |")
    lines.append("|---|---|" + "---|" * len(names))
    for workload, connections in order:
        row = [workload, str(connections)]
        for name in names:
            measured = cells.get((workload, connections, name))
            if not measured:
                row.append("-")
                continue
            errors = sum(each["errors"] for each in measured)
            text = f"{_median(measured, 'rate'):,.0f} {measured[0]['unit']} ({_median(measured, 'server_cpu_us'):,.0f})"
            row.append(text + (f" **{errors} errors**" if errors else ""))
        lines.append("| " + " | ".join(row) + " |")
    lines += ["", "| server | largest RSS, MB | largest PSS, MB |", "|---|---|---|"]
    for name in names:
        mine = [row for row in results if row["peer"] == name]
        lines.append(
            f"| {name} | {max(row['rss'] for row in mine) / 1e6:.0f} | {max(row['pss'] for row in mine) / 1e6:.0f} |"
        )
    return "\n".join(lines)
