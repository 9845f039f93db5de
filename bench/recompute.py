"""The time to compute a prompt's KV cache again, and from which context length loading it is faster."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from s3verbs.bench.plan import readable_tokens

ALLOWED = "MS (milliseconds a token), N/s (tokens a second), or TOKENS:MS,TOKENS:MS,... (measured contexts)"


@dataclass(frozen=True, slots=True)
class Recompute:
    """Measured (tokens, seconds), tokens ascending; straight lines between them, from no tokens in no time, and on from
    the last two."""

    points: tuple[tuple[int, float], ...]

    def seconds(self, tokens: float) -> float:
        points = ((0, 0.0), *self.points)
        right = min(max(bisect_left(points, (tokens, 0.0)), 1), len(points) - 1)
        (x0, y0), (x1, y1) = points[right - 1], points[right]
        return y0 + (tokens - x0) * (y1 - y0) / (x1 - x0)


@dataclass(frozen=True, slots=True)
class Crossover:
    """From `tokens` on loading is the faster one for every longer context that was measured. None: at the longest one
    it is not. `at_shortest`: it is from the shortest one on, and shorter ones were not measured."""

    tokens: int | None
    at_shortest: bool = False

    def sentence(self, name: str, longest: int) -> str:
        if self.tokens is None:
            return f"{name}: recomputing is faster up to {readable_tokens(longest)} tokens, the longest measured"
        if self.at_shortest:
            return f"{name}: loading is faster from {readable_tokens(self.tokens)} tokens on, the shortest measured"
        return f"{name}: loading is faster from about {self.tokens:,} tokens on"


def parse(text: str) -> Recompute:
    """See ALLOWED. Raises ValueError."""
    try:
        if ":" in text:
            pairs = [part.split(":") for part in text.split(",")]
            points = sorted((parse_tokens(tokens), float(ms.removesuffix("ms")) / 1e3) for tokens, ms in pairs)
        elif text.endswith("/s"):
            points = [(1, 1 / float(text.removesuffix("/s")))]
        else:
            points = [(1, float(text.removesuffix("ms")) / 1e3)]
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{text!r}: must be {ALLOWED}") from None
    if len({tokens for tokens, _ in points}) < len(points) or not all(0 < s < float("inf") for _, s in points):
        raise ValueError(f"{text!r}: times must be positive, and each context be there once")
    return Recompute(tuple(points))


def parse_tokens(text: str) -> int:
    """8192 or 8K (of 1,024 tokens). Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+)([kK]?)\s*", text)
    tokens = int(match[1]) << (10 if match[2] else 0) if match else 0
    if not tokens:
        raise ValueError(f"{text!r}: must be a number of tokens, such as 4096 or 4K")
    return tokens


def crossover(loads: Sequence[tuple[int, float]], recompute: Recompute) -> Crossover:
    """`loads`: (tokens, seconds), tokens ascending. Between two contexts the difference goes in a straight line."""
    gains = [(tokens, recompute.seconds(tokens) - seconds) for tokens, seconds in loads]
    losing = [number for number, (_, gain) in enumerate(gains) if gain <= 0]
    if not losing:
        return Crossover(gains[0][0], at_shortest=True)
    last = losing[-1]
    if last == len(gains) - 1:
        return Crossover(None)
    (x0, y0), (x1, y1) = gains[last], gains[last + 1]
    return Crossover(round(x0 + (x1 - x0) * -y0 / (y1 - y0)))
