"""Recompute times and the context length from which loading pays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3verbs.bench.recompute import Crossover, Recompute, crossover, parse, parse_tokens

SECONDS = st.floats(1e-4, 1e3)
TOKENS = st.integers(1, 300_000)


@given(TOKENS, SECONDS)
def test_a_time_for_each_token_and_a_rate_say_the_same(tokens: int, ms: float) -> None:
    for text in (f"{ms!r}", f"{ms!r}ms", f"{1e3 / ms!r}/s"):
        assert parse(text).seconds(tokens) == pytest.approx(tokens * ms / 1e3)


@given(st.dictionaries(TOKENS, SECONDS, min_size=1, max_size=8))
def test_a_table_is_met_at_its_points(table: dict[int, float]) -> None:
    found = parse(",".join(f"{tokens}:{ms!r}" for tokens, ms in table.items()))
    for tokens, ms in table.items():
        assert found.seconds(tokens) == pytest.approx(ms / 1e3)
    assert found.seconds(0) == 0


def test_between_the_points_and_beyond_goes_a_straight_line() -> None:
    found = parse("4K:91,8K:191ms")
    assert found.seconds(2048) == pytest.approx(0.0455)
    assert found.seconds(6144) == pytest.approx(0.141)
    assert found.seconds(16384) == pytest.approx(0.391)


@given(st.dictionaries(TOKENS, st.tuples(SECONDS, SECONDS), min_size=1, max_size=9))
def test_from_the_crossover_on_loading_is_faster_wherever_it_was_measured(
    measured: dict[int, tuple[float, float]],
) -> None:
    order = sorted(measured)
    loads = [(tokens, measured[tokens][0]) for tokens in order]
    recompute = Recompute(tuple((tokens, measured[tokens][1]) for tokens in order))
    wins = [tokens for tokens, seconds in loads if seconds < recompute.seconds(tokens)]
    loses = [tokens for tokens, seconds in loads if seconds >= recompute.seconds(tokens)]
    found = crossover(loads, recompute)
    if found.tokens is None:
        assert order[-1] in loses
    elif found.at_shortest:
        assert not loses
        assert found.tokens == order[0]
    else:
        last = max(loses)
        assert last <= found.tokens <= min(tokens for tokens in wins if tokens > last)


@given(st.floats(2000, 100_000), st.floats(1e-6, 1e-3), st.floats(1.1, 100))
def test_the_crossover_of_straight_lines_is_exact(exact: float, per_token: float, factor: float) -> None:
    """Loading takes constant + per_token x, recomputing factor per_token x."""
    constant = exact * per_token * (factor - 1)
    contexts = [1024 << power for power in range(8)]
    loads = [(tokens, constant + per_token * tokens) for tokens in contexts]
    assert crossover(loads, parse(f"{factor * per_token * 1e3!r}")).tokens == pytest.approx(exact, abs=1)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (Crossover(None), "HTTP: recomputing is faster up to 8K tokens, the longest measured"),
        (Crossover(1024, at_shortest=True), "HTTP: loading is faster from 1K tokens on, the shortest measured"),
        (Crossover(9312), "HTTP: loading is faster from about 9,312 tokens on"),
    ],
)
def test_it_is_said_in_words(found: Crossover, sentence: str) -> None:
    assert found.sentence("HTTP", 8192) == sentence


@pytest.mark.parametrize(
    "text", ["", "fast", "0", "-1", "0/s", "nan", "inf", "4K", "4K:", "4K:1,4096:2", "0:1", "4K:-3"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse(text)


@pytest.mark.parametrize("text", ["", "K", "0", "0K", "-4", "4M", "1.5K"])
def test_what_is_no_context_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a number of tokens"):
        parse_tokens(text)
