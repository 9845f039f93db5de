"""The picture of a run: times and client CPU by context length, on logarithmic axes. Needs matplotlib."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from s3verbs.bench.plan import readable_bytes, readable_tokens
from s3verbs.bench.results import LOAD, STORE, Results, Series
from s3verbs.bench.table import NAMES

COLOURS = {"http": "#c2571a", "rdma": "#1f5fa8", "recompute": "#6b6b6b"}
"""Told apart by the colour-blind as well, and by their markers."""
MARKERS = {"http": "s", "rdma": "o"}
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
}


def draw(results: Results, path: Path) -> None:
    """Write the picture; the suffix of `path` says its format. Raises OSError, ValueError for an unknown suffix."""
    matplotlib = importlib.import_module("matplotlib")
    figures = importlib.import_module("matplotlib.figure")
    with matplotlib.rc_context(STYLE):
        figure = figures.Figure(figsize=(11, 7.4), layout="constrained")
        load, store, rate, cpu = figure.subplots(2, 2).flat
        _times(load, results, LOAD)
        _times(store, results, STORE)
        _rates(rate, results)
        _cpu(cpu, results)
        for axes in (load, store, rate, cpu):
            _by_context(axes, results)
        figure.suptitle(_title(results), fontsize=12.5, fontweight="bold", x=0.012, ha="left")
        figure.supxlabel(_circumstances(results), fontsize=8.5, color="#6b6b6b", x=0.012, ha="left")
        figure.savefig(path, dpi=150)


def _title(results: Results) -> str:
    about = results.about
    split = f", one worker of {about['tp']}" if about.get("tp", 1) > 1 else ""
    size = readable_bytes(about["object_bytes"]) if "object_bytes" in about else "?"
    return f"KV cache of {about.get('model', '?')}{split} through NIXL OBJ, objects of {size}"


def _circumstances(results: Results) -> str:
    names = ("nixl", "endpoint", "machine", "started")
    return "Median and range.  " + "  ·  ".join(str(results.about[name]) for name in names if name in results.about)


def _times(axes: Any, results: Results, operation: str) -> None:
    for transport in results.transports:
        series = results.of(transport, operation)
        middle = [each.seconds for each in series]
        below = [each.seconds - each.fastest for each in series]
        above = [each.slowest - each.seconds for each in series]
        axes.errorbar(
            [each.context.tokens for each in series],
            middle,
            yerr=[below, above],
            label=NAMES[transport],
            color=COLOURS[transport],
            marker=MARKERS[transport],
            capsize=3,
            elinewidth=1,
        )
    if operation == LOAD and results.recompute is not None:
        tokens = [context.tokens for context in results.contexts]
        times = [results.recompute.seconds(each) for each in tokens]
        axes.plot(tokens, times, label="recompute", color=COLOURS["recompute"], linestyle="--", zorder=1)
        for transport, found in results.crossovers().items():
            if found.tokens is not None and not found.at_shortest:
                axes.plot(
                    found.tokens,
                    results.recompute.seconds(found.tokens),
                    marker="*",
                    markersize=13,
                    color=COLOURS[transport],
                    markeredgecolor="white",
                    linestyle="none",
                    label=f"{NAMES[transport]} pays from {found.tokens:,} tokens",
                    zorder=5,
                )
    _logarithmic(axes)
    axes.set_title(f"Time to {operation}", pad=8)
    axes.set_ylabel("seconds")
    axes.legend(loc="upper left")


def _rates(axes: Any, results: Results) -> None:
    _lines(axes, results, lambda each: each.gb_s)
    axes.set_ylim(bottom=0)
    axes.set_title("Throughput", pad=8)
    axes.set_ylabel("GB/s")


def _cpu(axes: Any, results: Results) -> None:
    _lines(axes, results, lambda each: each.cpu_per_gb)
    _logarithmic(axes)
    axes.set_title("Client CPU", pad=8)
    axes.set_ylabel("seconds per GB")


def _lines(axes: Any, results: Results, value: Callable[[Series], float]) -> None:
    """Of every transport, both operations."""
    for transport in results.transports:
        for operation, line in ((LOAD, "-"), (STORE, ":")):
            series = results.of(transport, operation)
            axes.plot(
                [each.context.tokens for each in series],
                [value(each) for each in series],
                label=f"{NAMES[transport]}, {operation}",
                color=COLOURS[transport],
                marker=MARKERS[transport],
                linestyle=line,
                markerfacecolor=COLOURS[transport] if operation == LOAD else "white",
            )
    axes.legend(loc="best", ncols=2)


def _logarithmic(axes: Any) -> None:
    """With numbers as people write them: 0.1, 1, 10."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _by_context(axes: Any, results: Results) -> None:
    contexts = results.contexts
    axes.set_xscale("log", base=2)
    axes.set_xticks([context.tokens for context in contexts])
    axes.set_xticklabels([f"{readable_tokens(each.tokens)}\n{readable_bytes(each.total_bytes)}" for each in contexts])
    axes.tick_params(axis="x", which="minor", length=0)
    axes.tick_params(axis="x", labelsize=7.5)
    axes.set_xlabel("context, tokens and size of its KV cache", fontsize=9)
