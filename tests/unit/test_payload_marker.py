"""Numbering payload directories: order does not matter, and what is missing, foreign or doubled is refused."""

import json
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3verbs.storage.errors import StoreUnusable
from s3verbs.storage.payload_marker import MARKER_NAME, Marker, number_directories, read_marker, write_marker

STORE = UUID(int=1)
PATHS = [Path(f"/drive{number}") for number in range(6)]


@given(st.permutations(range(6)), st.integers(1, 6))
def test_directories_keep_their_numbers_in_any_order(order: list[int], known: int) -> None:
    old = [number for number in order if number < known]
    new = [number for number in order if number >= known]
    paths = [PATHS[number] for number in old + new]
    markers = [Marker(STORE, number, known) for number in old] + [None] * len(new)
    numbering = number_directories(paths, markers, STORE)
    assert {numbering.paths[number] for number in range(6)} == set(PATHS)
    assert all(numbering.paths[number] == PATHS[number] for number in range(known))
    assert list(numbering.added) == list(range(known, 6))
    assert set(numbering.outdated) == (set(range(known)) if known < 6 else set())


def test_a_missing_directory_is_named() -> None:
    with pytest.raises(StoreUnusable, match=r"of the store's 3 payload directories, number 1 is missing; add .*--data"):
        number_directories([PATHS[0], PATHS[2]], [Marker(STORE, 0, 3), Marker(STORE, 2, 3)], STORE)


def test_an_empty_mount_point_is_not_taken_for_a_new_drive() -> None:
    with pytest.raises(StoreUnusable, match=r"number 1 is missing; /drive1 has no .* is its drive mounted"):
        number_directories([PATHS[0], PATHS[1]], [Marker(STORE, 0, 2), None], STORE)


def test_another_stores_directory_is_refused_by_name() -> None:
    with pytest.raises(StoreUnusable, match=r"/drive0 belongs to store 00000000-0000-0000-0000-000000000002"):
        number_directories(PATHS[:1], [Marker(UUID(int=2), 0, 1)], STORE)


def test_a_copy_of_a_directory_is_refused() -> None:
    with pytest.raises(StoreUnusable, match="/drive1 and /drive0 are both payload directory 0"):
        number_directories(PATHS[:2], [Marker(STORE, 0, 1), Marker(STORE, 0, 1)], STORE)


def test_no_directory_at_all_is_refused() -> None:
    with pytest.raises(StoreUnusable, match="--data"):
        number_directories([], [], STORE)


def test_a_marker_is_read_back(tmp_path: Path) -> None:
    assert read_marker(tmp_path) is None
    assert read_marker(tmp_path / "absent") is None
    write_marker(tmp_path, Marker(STORE, 2, 3), replace=False)
    assert read_marker(tmp_path) == Marker(STORE, 2, 3)
    with pytest.raises(FileExistsError):
        write_marker(tmp_path, Marker(STORE, 0, 1), replace=False)
    write_marker(tmp_path, Marker(STORE, 2, 4), replace=True)
    assert read_marker(tmp_path) == Marker(STORE, 2, 4)
    assert [path.name for path in tmp_path.iterdir()] == [MARKER_NAME]


GOOD = {"format": "s3verbs-payloads", "version": 1, "store": str(STORE), "number": 0, "directories": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "damaged"),
        ("[]", "damaged"),
        ("{", "damaged"),
        (json.dumps(GOOD | {"format": "other"}), "damaged"),
        (json.dumps(GOOD | {"version": "1"}), "damaged"),
        (json.dumps(GOOD | {"store": "not a uuid"}), "damaged"),
        (json.dumps(GOOD | {"number": 1}), "damaged"),
        (json.dumps(GOOD | {"number": -1}), "damaged"),
        (json.dumps(GOOD | {"version": 2}), "format version 2, this program knows up to 1"),
    ],
)
def test_a_marker_that_cannot_be_right_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / MARKER_NAME).write_text(text)
    with pytest.raises(StoreUnusable, match=message):
        read_marker(tmp_path)


def test_a_marker_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / MARKER_NAME).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StoreUnusable, match="damaged"):
        read_marker(tmp_path)


def test_a_file_given_as_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnusable, match="not a directory"):
        read_marker(tmp_path / "file")
