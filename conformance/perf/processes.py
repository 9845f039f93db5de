"""CPU and memory of a server, read from /proc for the process and all its descendants."""

import os
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """`cpu` seconds since each process began, `rss` and `pss` bytes (pss counts a shared page once)."""

    cpu: float
    rss: int
    pss: int


def descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [pid], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def usage(pids: list[int]) -> Usage:
    cpu, rss, pss = 0.0, 0, 0
    for pid in (each for root in pids for each in descendants(root)):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        cpu += (int(fields[11]) + int(fields[12])) / _TICK
        for line in rollup.splitlines():
            if line.startswith("Rss:"):
                rss += int(line.split()[1]) * 1024
            elif line.startswith("Pss:"):
                pss += int(line.split()[1]) * 1024
    return Usage(cpu, rss, pss)
