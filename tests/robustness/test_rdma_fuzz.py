"""A short run of the fuzzer, and that it would notice."""

import random
from collections import Counter

import pytest

from s3verbs.rdma.errors import MalformedToken
from s3verbs.rdma.token import Token
from tests.robustness import fuzz_rdma
from tests.robustness.fuzz_rdma import TARGETS, Target, fuzz

ROUNDS = 20_000


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_no_input_is_answered_wrongly(target: Target) -> None:
    corpus: list[bytes] = []
    seen: Counter[str] = Counter()
    fuzz(target, random.Random(1), ROUNDS, corpus, seen)
    assert seen.total() == ROUNDS + len(target.seeds)
    # Well-formed and malformed inputs of several kinds were among them.
    assert len(seen) >= 6
    assert len(corpus) > len(target.seeds)


def test_a_parser_that_is_too_lenient_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def lenient(text: str) -> Token:
        try:
            return real(text.strip())
        except MalformedToken:
            raise
        except ValueError as error:
            raise MalformedToken(str(error)) from error

    real = fuzz_rdma.parse
    monkeypatch.setattr(fuzz_rdma, "parse", lenient)
    with pytest.raises(AssertionError, match="token: b'"):
        fuzz(TARGETS[0], random.Random(1), ROUNDS, [], Counter())


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz_rdma.main(["--minutes", "0.001", "--seed", "7", "--target", "token"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("seed 7, ")
    assert "token: " in told
    assert "protocol: " not in told
