"""The content that proves that the bytes moved, and moved to where they belong."""

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.bench.nixl_worker import BLOCK, Pattern

PATTERN = Pattern(numpy)
SIZES = [1, 7, 8, 4096, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 13]
NUMBERS = st.integers(0, 1 << 20)


def filled(size: int, salt: int, number: int) -> "numpy.typing.NDArray[numpy.uint8]":
    slot = numpy.zeros(size, dtype=numpy.uint8)
    PATTERN.fill(slot, salt, number)
    return slot


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SIZES), NUMBERS, NUMBERS)
def test_what_was_filled_is_recognized(size: int, salt: int, number: int) -> None:
    assert PATTERN.first_difference(filled(size, salt, number), salt, number) is None


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SIZES), NUMBERS, st.data())
def test_one_wrong_byte_is_found_where_it_is(size: int, salt: int, data: st.DataObject) -> None:
    slot = filled(size, salt, 3)
    place = data.draw(st.integers(0, size - 1))
    slot[place] ^= data.draw(st.integers(1, 255))
    assert PATTERN.first_difference(slot, salt, 3) == place


@settings(max_examples=20, deadline=None)
@given(NUMBERS, NUMBERS)
def test_other_objects_and_older_stores_are_told_apart(salt: int, number: int) -> None:
    slot = filled(2 * BLOCK, salt, number)
    assert PATTERN.first_difference(slot, salt, number + 1) is not None
    assert PATTERN.first_difference(slot, salt + 1, number) is not None


def test_blocks_of_one_object_are_told_apart() -> None:
    slot = filled(2 * BLOCK, 1, 1)
    swapped = numpy.concatenate([slot[BLOCK:], slot[:BLOCK]])
    assert PATTERN.first_difference(swapped, 1, 1) == pytest.approx(0, abs=8)
