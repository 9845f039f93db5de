"""What those who wait see: on a terminal one line that changes, elsewhere one line for each measurement."""

import sys
from typing import TextIO

from s3verbs.bench.plan import Context, readable_bytes, readable_tokens
from s3verbs.bench.results import Series
from s3verbs.bench.table import NAMES, measured_line

WIDTH = 24


class Progress:
    """Writes to `out`. One thread."""

    def __init__(self, *, quiet: bool, out: TextIO = sys.stderr) -> None:
        self._out = out
        self._quiet = quiet
        self._terminal = out.isatty()

    def say(self, text: str) -> None:
        """One line that stays."""
        if not self._quiet:
            self._out.write(f"{self._clear}{text}\n")
            self._out.flush()

    def moving(self, context: Context, transport: str, operation: str, round_name: str, done: int) -> None:
        """`done`: bytes of the context so far."""
        if self._quiet or not self._terminal:
            return
        filled = WIDTH * done // context.total_bytes
        bar = "#" * filled + "." * (WIDTH - filled)
        size = f"{readable_bytes(done)} of {readable_bytes(context.total_bytes)}"
        name = f"{readable_tokens(context.tokens)} {NAMES[transport]} {operation} {round_name}"
        self._out.write(f"{self._clear}{name:<28} [{bar}] {size}")
        self._out.flush()

    def measured(self, context: Context, series: Series) -> None:
        self.say(measured_line(context, series))

    def end(self) -> None:
        """Take the changing line away."""
        if not self._quiet and self._terminal:
            self._out.write(self._clear)
            self._out.flush()

    @property
    def _clear(self) -> str:
        return "\r\x1b[K" if self._terminal else ""
