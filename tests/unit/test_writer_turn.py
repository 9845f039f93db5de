"""Turns of commit among processes: each open file description stands for a process here."""

import threading
from pathlib import Path

from s3verbs.storage.writer_turn import WriterTurn


def opened(directory: Path) -> WriterTurn:
    turn = WriterTurn.open(directory)
    assert turn is not None
    return turn


def test_one_waits_for_the_other(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    order = []

    def wait() -> None:
        with second.taken():
            order.append("second")

    waiting = threading.Thread(target=wait)
    with first.taken():
        waiting.start()
        waiting.join(0.2)
        order.append("first")
    waiting.join(5)
    assert order == ["first", "second"]
    first.close()
    second.close()


def test_a_turn_ends_with_an_exception_and_with_its_process(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    try:
        with first.taken():
            raise KeyError
    except KeyError:
        pass
    with second.taken():
        second.close()  # as the kernel does for a process that is killed
        with first.taken():
            pass
    first.close()


def test_without_a_file_there_are_no_turns(tmp_path: Path) -> None:
    assert WriterTurn.open(tmp_path / "absent") is None
