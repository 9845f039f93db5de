"""Contexts, objects, windows and buffers: what holds for any numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3verbs.bench.plan import Context, readable_bytes, readable_tokens, slots_within, windows


@given(st.integers(1, 5000), st.integers(1, 300))
def test_windows_cover_all_objects_exactly_once_and_fit_the_buffer(objects: int, slots: int) -> None:
    found = windows(objects, slots)
    assert [number for window in found for number in window] == list(range(objects))
    assert all(0 < len(window) <= slots for window in found)
    assert len(found) == -(-objects // slots)


@given(st.integers(1, 300_000), st.integers(1, 1024), st.integers(1, 1 << 20))
def test_objects_hold_the_whole_cache(tokens: int, chunk: int, per_token: int) -> None:
    context = Context(tokens, chunk, per_token)
    sizes = [context.size_of(number) for number in range(context.objects)]
    assert sum(sizes) == context.total_bytes == tokens * per_token
    assert set(sizes[:-1]) <= {chunk * per_token}
    assert 0 < sizes[-1] <= chunk * per_token


@given(st.integers(0, 1 << 40), st.integers(1, 4), st.integers(1, 1 << 30), st.integers(1, 10_000))
def test_buffers_together_stay_within_the_memory(memory: int, buffers: int, object_bytes: int, objects: int) -> None:
    slots = slots_within(memory, buffers, object_bytes, objects)
    assert slots * object_bytes * buffers <= memory
    assert slots == objects or (slots + 1) * object_bytes * buffers > memory


@pytest.mark.parametrize(
    ("tokens", "shown"), [(1024, "1K"), (8192, "8K"), (240_640, "235K"), (1000, "1000"), (1, "1"), (1025, "1025")]
)
def test_tokens_are_shown_as_people_write_them(tokens: int, shown: str) -> None:
    assert readable_tokens(tokens) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1000, "1000 B"),
        (32 << 20, "32 MiB"),
        (1 << 30, "1 GiB"),
        (31_541_166_080, "29.4 GiB"),
        (1 << 50, "1.02e+03 TiB"),
    ],
)
def test_bytes_are_shown_in_binary_units(count: int, shown: str) -> None:
    assert readable_bytes(count) == shown
