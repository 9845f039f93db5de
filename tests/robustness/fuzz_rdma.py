"""Fuzzes what the RDMA data plane reads from strangers: tokens, headers, messages of the same-host socket.

    python -m tests.robustness.fuzz_rdma --minutes 10 [--seed N] [--target token]

Inputs are mutations of well-formed ones, and of those that led to an outcome not seen before. Each target knows what a
correct answer is without asking the code under test. The first wrong answer ends the run with the input that caused it.
"""

import argparse
import random
import re
import string
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from s3verbs.rdma import headers
from s3verbs.rdma.errors import MalformedToken
from s3verbs.rdma.headers import DIALECTS, TOKEN_HEADERS, dialect_of
from s3verbs.rdma.samehost import protocol
from s3verbs.rdma.token import Token, Transport, parse

MAX_INPUT = 2048
MAX_CORPUS = 400
BATCH = 2000


@dataclass(frozen=True)
class Target:
    """`run` gives the outcome in words. Whatever it raises means that the answer was wrong."""

    name: str
    seeds: tuple[bytes, ...]
    run: Callable[[bytes], str]


def fuzz(target: Target, chance: random.Random, rounds: int, corpus: list[bytes], seen: Counter[str]) -> None:
    """So many inputs. `corpus` and `seen` go on from call to call. Raises AssertionError with the input."""
    if not corpus:
        corpus.extend(target.seeds)
        for each in corpus:
            seen[_outcome(target, each)] += 1
    for _ in range(rounds):
        data = mutated(chance, corpus)
        outcome = _outcome(target, data)
        if not seen[outcome]:
            corpus.append(data)
            if len(corpus) > MAX_CORPUS:
                del corpus[chance.randrange(len(target.seeds), len(corpus))]
        seen[outcome] += 1


def _outcome(target: Target, data: bytes) -> str:
    try:
        return target.run(data)
    except Exception as error:
        raise AssertionError(f"{target.name}: {data!r}") from error


def mutated(chance: random.Random, corpus: Sequence[bytes]) -> bytes:
    data = bytearray(chance.choice(corpus))
    for _ in range(1 + min(int(chance.expovariate(1.0)), 12)):
        chance.choice(MUTATIONS)(chance, data, corpus)
    return bytes(data[:MAX_INPUT])


def _flip(chance: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _replace(chance: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] = _byte(chance)


def _insert(chance: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    at = _place(chance, data)
    data[at:at] = chance.choice(WORDS) if chance.random() < 0.3 else bytes((_byte(chance),))


def _delete(chance: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    at = _place(chance, data)
    del data[at : at + chance.choice((1, 1, 1, 2, 4, 8, 17))]


def _repeat(chance: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    begin = _place(chance, data)
    end = min(len(data), begin + chance.choice((1, 2, 4, 16, 33, 200)))
    data[end:end] = data[begin:end]


def _fill(chance: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    begin = _place(chance, data)
    end = min(len(data), begin + chance.choice((2, 4, 8, 16, 32)))
    data[begin:end] = bytes((_byte(chance),)) * (end - begin)


def _splice(chance: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    other = chance.choice(corpus)
    data[_place(chance, data) :] = other[chance.randint(0, len(other)) :]


def _truncate(chance: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    del data[_place(chance, data) :]


def _swap_case(chance: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    data[:] = data.swapcase()


MUTATIONS = (_flip, _replace, _replace, _replace, _insert, _delete, _repeat, _fill, _splice, _truncate, _swap_case)
WORDS = (b":rc1:", b":cma1:", b":", b"0" * 16, b"f" * 16, b"\n", b"\0", "\u0660".encode(), "\uff11".encode(), b"\xff")


def _place(chance: random.Random, data: bytearray) -> int:
    """Ends and borders of fields are where parsers go wrong."""
    if chance.random() < 0.4:
        at = chance.choice((0, len(data), data.find(b":"), data.rfind(b":") + 1))
        return max(at, 0)
    return chance.randint(0, len(data))


def _byte(chance: random.Random) -> int:
    return chance.choice(b"0123456789abcdefABCDEF:\n \0\xff") if chance.random() < 0.7 else chance.randrange(256)


# The token. Reads it by splitting, where the code under test has one pattern.

_WIDTHS = (16, 8, 8, 4, 6, 1, 32)
_GID = bytes(10) + b"\xff\xff\x7f\0\0\1"
_TOKENS = (
    Token(0x7F1DC46FD010, 1 << 20, 0xABCD, 0, 0x1234, _GID),
    Token((1 << 64) - 1, 1, 0xFFFFFFFF, 0xFFFF, 0xFFFFFF, None),
    Token(0x7F1DC46FD010, 1 << 20, 0xABCD, 0, 18515, _GID, Transport.RC, bytes(range(16))),
    Token(0x7F1DC46FD010, 1 << 20, transport=Transport.SAMEHOST, secret=bytes(range(16))),
)


def expected_token(text: str) -> Token | None:
    """What docs/wire-format.md says about a text; None when it is no token."""
    fields = text.split(":")
    if len(fields) not in (7, 9):
        return None
    widths = _WIDTHS
    suffix = ""
    if len(fields) == 9:
        suffix = fields.pop(7) if fields[7] in ("rc1", "cma1") else ""
        widths = (*_WIDTHS, 32) if suffix else (*_WIDTHS, 16, 16)
    if [len(field) for field in fields] != list(widths) or set("".join(fields)) - set(string.hexdigits):
        return None
    address, size, rkey, lid, qp, has_gid, gid = (int(field, 16) for field in fields[:7])
    if has_gid > 1:
        return None
    if len(fields) == 9:
        address, size = int(fields[7], 16), int(fields[8], 16)
    if not size or address + size > 2**64:
        return None
    secret = bytes.fromhex(fields[7]) if suffix else b""
    shown = gid.to_bytes(16, "big") if has_gid else None
    if suffix == "rc1":
        valid = has_gid == 1 and 1 <= qp <= 65535
        return Token(address, size, rkey, lid, qp, shown, Transport.RC, secret) if valid else None
    if suffix == "cma1":
        valid = not (rkey or lid or qp or has_gid or gid)
        return Token(address, size, transport=Transport.SAMEHOST, secret=secret) if valid else None
    return Token(address, size, rkey, lid, qp, shown)


def run_token(data: bytes) -> str:
    text = data.decode("utf-8", "surrogateescape")
    expected = expected_token(text)
    try:
        token = parse(text)
    except MalformedToken as error:
        assert expected is None
        return str(error)
    assert token == expected
    if token.size < 1 << 32:
        assert parse(str(token)) == token
    assert token.secret.hex() not in repr(token) or token.transport is Transport.DC
    return f"{token.transport.value}, {'' if token.gid else 'no '}GID, {len(text)} characters"


# Headers: lines of `name: value`, as the gateway hands them over, names in lower case.


def run_headers(data: bytes) -> str:
    lines = [line.partition(":") for line in data.decode("utf-8", "surrogateescape").split("\n")]
    fields = {name.strip().lower(): value.strip() for name, _, value in lines}
    spoken = [dialect for dialect in DIALECTS if dialect.token_header in fields]
    try:
        dialect = dialect_of(fields)
    except MalformedToken as error:
        assert len(spoken) > 1
        return str(error)
    if dialect is None:
        assert not fields.keys() & TOKEN_HEADERS
        return "ordinary"
    assert spoken == [dialect]
    outcome = run_token(fields[dialect.token_header].encode("utf-8", "surrogateescape"))
    return f"{dialect.name}: {outcome}"


# The same-host socket: a packet that is read must be the one that its message is written as.


def run_protocol(data: bytes) -> str:
    try:
        message = protocol.decode(data)
    except protocol.MalformedMessage as error:
        return re.sub(r"[0-9]+|0x[0-9a-f]+", "#", str(error))
    assert protocol.encode(message) == data
    assert len(data) <= protocol.MAX_MESSAGE
    return f"{type(message).__name__}, {len(data) // 64}"


_MESSAGES = (
    protocol.Hello(1),
    protocol.Challenge(2, bytes(range(16))),
    protocol.Proof(3, bytes(16)),
    protocol.Session(4, bytes(16), 64),
    protocol.Register(5, 0x7F1DC46FD000, 1 << 20),
    protocol.Registered(6, 1),
    protocol.Unregister(7, (1 << 64) - 1),
    protocol.Unregistered(0xFFFFFFFF, 0),
    protocol.Refused(9, protocol.Refusal.FULL, "no room \u2014 later"),
    protocol.Refused(9, protocol.Refusal.MALFORMED, "x" * protocol.MAX_TEXT),
    protocol.Ended(10),
)

_SEED_TOKENS = (*(str(token) for token in _TOKENS), f"{_TOKENS[0]}:00007f1dc46fd010:0000000100000000")
_SEED_HEADERS = tuple(
    f"host: a\n{dialect.token_header}: {token}\n{headers.AGENT}: cuobj"
    for dialect in DIALECTS
    for token in _SEED_TOKENS
)

TARGETS = (
    Target("token", tuple(token.encode() for token in _SEED_TOKENS), run_token),
    Target("headers", tuple(text.encode() for text in (*_SEED_HEADERS, "\n".join(_SEED_HEADERS))), run_headers),
    Target("protocol", tuple(protocol.encode(message) for message in _MESSAGES), run_protocol),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.fuzz_rdma", description="Fuzz the wire formats.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--target", choices=[target.name for target in TARGETS], action="append")
    options = parser.parse_args(arguments)
    targets = [target for target in TARGETS if options.target is None or target.name in options.target]
    sys.stdout.write(f"seed {options.seed}, {options.minutes:g} minutes\n")
    chance = random.Random(options.seed)
    corpora: dict[str, list[bytes]] = {target.name: [] for target in targets}
    seen: dict[str, Counter[str]] = {target.name: Counter() for target in targets}
    end = time.monotonic() + options.minutes * 60
    while time.monotonic() < end:
        for target in targets:
            try:
                fuzz(target, chance, BATCH, corpora[target.name], seen[target.name])
            except AssertionError as error:
                sys.stdout.write(f"WRONG {error}: {error.__cause__!r}\n")
                return 1
    for target in targets:
        counts = seen[target.name]
        sys.stdout.write(f"{target.name}: {counts.total()} inputs, {len(counts)} outcomes\n")
        for outcome, count in counts.most_common(12):
            sys.stdout.write(f"  {count:>10} {outcome[:100]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
