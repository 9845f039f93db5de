"""Writers of one key on two workers at the same moment, and listings while keys come and go."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.integration.endpoint import BUCKET, Endpoint, Response, Wire
from tests.robustness.server_load import (
    Value,
    begin_upload,
    complete_upload,
    continue_upload,
    found,
    listed,
    look,
)

WRITERS = 64


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    data: Path = tmp_path_factory.mktemp("races") / "data"
    with Endpoint(data, workers=2) as running:
        yield running
        assert "Traceback" not in running.errors


@pytest.fixture(scope="module")
def wires(endpoint: Endpoint) -> Iterator[list[Wire]]:
    """One connection for each writer; the parent spreads them evenly over both workers."""
    connected = [endpoint.connect() for _ in range(WRITERS)]
    yield connected
    for wire in connected:
        wire.close()


def all_at_once(wires: list[Wire], ask: Callable[[int, Wire], Response]) -> list[Response]:
    """`ask` on every connection, as near to the same moment as threads get."""
    answers: list[Response | None] = [None] * len(wires)
    barrier = threading.Barrier(len(wires))

    def run(number: int) -> None:
        barrier.wait()
        answers[number] = ask(number, wires[number])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(wires))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    done = [answer for answer in answers if answer is not None]
    assert len(done) == len(wires)
    return done


def winner(answers: list[Response], refusal: str) -> int:
    """The number of the only one that got 200; all others must have been refused."""
    outcomes = Counter(answer.code or str(answer.status) for answer in answers)
    assert outcomes == {"200": 1, refusal: len(answers) - 1}
    return next(number for number, answer in enumerate(answers) if answer.status == 200)


@pytest.mark.parametrize("size", [0, 1000, 60_000], ids=["empty", "in the record", "in a file"])
def test_one_of_64_concurrent_creators_wins(wires: list[Wire], size: int) -> None:
    for turn in range(4):
        key = f"once/{size}/{turn}"
        values = [Value(turn * 1000 + number, (size,)) for number in range(WRITERS)]
        answers = all_at_once(
            wires,
            lambda number, wire, key=key, values=values: wire.request(  # type: ignore[misc]
                "PUT", f"/{BUCKET}/{key}", values[number].body, if_none_match="*"
            ),
        )
        look(wires[0], key, [values[winner(answers, "PreconditionFailed")]])


def test_one_of_64_concurrent_updates_of_a_known_version_wins(wires: list[Wire]) -> None:
    current = Value(1, (500,))
    assert wires[0].request("PUT", f"/{BUCKET}/update", current.body).status == 200
    for turn in range(4):
        values = [Value(turn * 1000 + number + 10, (20_000 if number % 2 else 500,)) for number in range(WRITERS)]
        answers = all_at_once(
            wires,
            lambda number, wire, etag=current.etag, values=values: wire.request(  # type: ignore[misc]
                "PUT", f"/{BUCKET}/update", values[number].body, if_match=f'"{etag}"'
            ),
        )
        current = values[winner(answers, "PreconditionFailed")]
        look(wires[0], "update", [current])


def test_one_of_64_concurrent_conditional_completions_wins(wires: list[Wire]) -> None:
    values = [Value(number + 1, (30_000,), multipart=True) for number in range(WRITERS)]
    uploads = []
    for number, wire in enumerate(wires):
        upload = begin_upload(wire, "assembled", values[number])
        assert upload is not None
        assert continue_upload(wire, upload) is None
        uploads.append(upload)
    answers = all_at_once(wires, lambda number, wire: complete_upload(wire, uploads[number], if_none_match="*"))
    number = winner(answers, "PreconditionFailed")
    look(wires[0], "assembled", [values[number]])
    # The losers' uploads are still open: they may complete without the condition, or be aborted.
    for loser, upload in enumerate(uploads):
        wanted = "NoSuchUpload" if loser == number else ""
        assert wires[0].request("DELETE", f"/{BUCKET}/assembled?uploadId={upload.id}").code == wanted
    look(wires[0], "assembled", [values[number]])


def test_completing_one_upload_64_times_at_once_gives_one_object_and_one_answer(wires: list[Wire]) -> None:
    value = Value(7, (30_000,), multipart=True)
    upload = begin_upload(wires[0], "repeated", value)
    assert upload is not None
    assert continue_upload(wires[0], upload) is None
    answers = all_at_once(wires, lambda _, wire: complete_upload(wire, upload))
    assert {answer.status for answer in answers} == {200}
    assert len({found(answer.body, "ETag") for answer in answers}) == 1
    look(wires[0], "repeated", [value])


def test_unconditional_writers_of_one_key_leave_one_whole_value(wires: list[Wire]) -> None:
    values = [Value(number + 1, ((40_000, 700)[number % 2],)) for number in range(WRITERS)]

    def write_and_look(number: int, wire: Wire) -> Response:
        answer = wire.request("PUT", f"/{BUCKET}/contended", values[number].body)
        look(wire, "contended", values)
        return answer

    assert {answer.status for answer in all_at_once(wires, write_and_look)} == {200}
    look(wires[0], "contended", values)


def test_readers_of_a_key_that_is_replaced_and_deleted_get_whole_values_or_none(wires: list[Wire]) -> None:
    values = [Value(number + 1, ((300_000, 700, 17_000)[number % 3],)) for number in range(60)]
    stop = threading.Event()
    faults: list[str] = []

    def read(wire: Wire) -> None:
        try:
            while not stop.is_set():
                look(wire, "flickering", [*values, None])
        except AssertionError as error:
            faults.append(str(error))

    readers = [threading.Thread(target=read, args=(wire,)) for wire in wires[:8]]
    for reader in readers:
        reader.start()
    for number, value in enumerate(values):
        assert wires[-1].request("PUT", f"/{BUCKET}/flickering", value.body).status == 200
        if number % 5 == 4:
            assert wires[-1].request("DELETE", f"/{BUCKET}/flickering").status == 204
    stop.set()
    for reader in readers:
        reader.join(30)
    assert not faults, faults


def test_a_listing_never_misses_or_repeats_a_key_that_is_there_throughout(endpoint: Endpoint) -> None:
    stop = threading.Event()
    faults: list[str] = []
    with endpoint.connect() as wire:
        steady = [f"list/{number:04d}" for number in range(400)]
        for key in steady:
            assert wire.request("PUT", f"/{BUCKET}/{key}", b"here").status == 200

        def come_and_go(writer: int) -> None:
            chance = random.Random(writer)
            with endpoint.connect() as mine:
                while not stop.is_set():
                    # Between, before and behind the steady ones.
                    key = f"list/{chance.randrange(400):04d}{chance.choice(('-', '0', '~'))}w{writer}"
                    for method in ("PUT", "DELETE"):
                        status = mine.request(method, f"/{BUCKET}/{key}").status
                        if status not in (200, 204):
                            faults.append(f"{method} {status}")

        writers = [threading.Thread(target=come_and_go, args=(number,)) for number in range(4)]
        for writer in writers:
            writer.start()
        try:
            for size in (7, 50, 100, 1000, 33):
                seen = [key for page in pages(wire, size) for key in page]
                assert seen == sorted(seen)
                assert len(seen) == len(set(seen))
                assert [key for key in seen if len(key) == 9] == steady
        finally:
            stop.set()
            for writer in writers:
                writer.join(30)
        assert not faults
        assert list(listed(wire, "list/")) == steady


def pages(wire: Wire, size: int) -> Iterator[list[str]]:
    """Pages of ListObjects (version 1), each from the last key of the one before."""
    marker = ""
    while True:
        response = wire.request("GET", f"/{BUCKET}?prefix=list%2F&max-keys={size}&marker={quote(marker, '')}")
        assert response.status == 200, response.code
        keys = [found(item, "Key") for item in response.body.split(b"<Contents>")[1:]]
        yield keys
        if found(response.body, "IsTruncated") == "false":
            return
        marker = keys[-1]
