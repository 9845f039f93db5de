"""Tables of a run of RDMA against HTTP: medians over the rounds, and ratios against one client."""

import statistics
from typing import Any

Rows = list[dict[str, Any]]

_MIB = 1 << 20


def line(row: dict[str, Any]) -> str:
    """One measurement, as it is made."""
    errors = f"  {row['errors']} errors: {row['first_error']}" if row["errors"] else ""
    return (
        f"{row['operation']} {row['size'] // _MIB:3} MiB C={row['connections']:<3} {row['client']:18}"
        f"{row['mb_s']:9.0f} MB/s{row['p50_ms']:9.2f} ms  CPU s/GB: client {row['client_cpu']:.3f}"
        f" server {row['server_cpu']:.3f}{errors}"
    )


def _cell(results: Rows, **where: Any) -> Rows:
    return [row for row in results if all(row[name] == value for name, value in where.items())]


def _median(rows: Rows, field: str) -> float:
    return float(statistics.median(row[field] for row in rows))


def _spread(rows: Rows) -> str:
    """Half of the distance between the fastest and the slowest round, as a part of the median."""
    rates = [row["mb_s"] for row in rows]
    return f"{(max(rates) - min(rates)) / 2 / statistics.median(rates):.0%}"


def as_markdown(results: Rows, against: str) -> str:
    """Every client in every setting; "x" is its rate against `against`'s in the same setting."""
    lines = [
        f"| operation | size | C | client | MB/s | +- | x {against} | p50, ms | p99, ms | client CPU, s/GB "
        "| server CPU, s/GB | both |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    settings = dict.fromkeys((row["operation"], row["size"], row["connections"]) for row in results)
    for operation, size, connections in settings:
        setting = _cell(results, operation=operation, size=size, connections=connections)
        base = _cell(setting, client=against)
        for client in dict.fromkeys(row["client"] for row in setting):
            rows = _cell(setting, client=client)
            rate = _median(rows, "mb_s")
            ratio = f"{rate / _median(base, 'mb_s'):.2f}" if base else "-"
            errors = sum(row["errors"] for row in rows)
            lines.append(
                f"| {operation} | {size // _MIB} MiB | {connections} | {client} | {rate:,.0f} | {_spread(rows)} "
                f"| {ratio} "
                f"| {_median(rows, 'p50_ms'):.2f} | {_median(rows, 'p99_ms'):.2f} | {_median(rows, 'client_cpu'):.3f} "
                f"| {_median(rows, 'server_cpu'):.3f} "
                f"| {_median(rows, 'client_cpu') + _median(rows, 'server_cpu'):.3f} |"
                + (f" **{errors} errors**" if errors else "")
            )
    return "\n".join(lines)


def _figures(results: Rows, client: str, size: int, connections: int) -> dict[str, float] | None:
    rows = _cell(results, operation="GET", client=client, size=size, connections=connections)
    return {name: _median(rows, name) for name in ("mb_s", "client_cpu", "server_cpu")} if rows else None


def targets(results: Rows, http: str, rdma: str) -> str:
    """What the same-host transport should reach, GET against `http`, and what it did."""
    lines = ["| target (GET) | size | C | reached | |", "|---|---|---|---|---|"]
    for size, connections in dict.fromkeys((row["size"], row["connections"]) for row in results):
        base, mine = (_figures(results, client, size, connections) for client in (http, rdma))
        if base is None or mine is None:
            continue
        rate = mine["mb_s"] / base["mb_s"]
        client = 1 - mine["client_cpu"] / base["client_cpu"] if base["client_cpu"] else 0.0
        server = mine["server_cpu"] / base["server_cpu"] if base["server_cpu"] else 0.0
        rows = [
            ("client CPU per GB at least 90 % lower", f"{client:.0%} lower", client >= 0.9),
            ("server CPU per GB at most 1.3x", f"{server:.2f}x", server <= 1.3),
        ]
        if connections == 1:
            rows.insert(0, ("throughput at least 2.5x", f"{rate:.2f}x", rate >= 2.5))
        lines += [
            f"| {name} | {size // _MIB} MiB | {connections} | {seen} | {'met' if met else '**missed**'} |"
            for name, seen, met in rows
        ]
        bare = _cell(results, client="process_vm_writev", size=size)
        if connections == 1 and bare:
            limit = _median(bare, "mb_s") / base["mb_s"]
            lines.append(f"| (process_vm_writev without a server) | {size // _MIB} MiB | 1 | {limit:.2f}x | |")
    return "\n".join(lines)
