"""Section 5, failure: memory that the server may not reach, and clients that are gone. Needs a transport."""

from collections.abc import Iterator

from conformance.rdma import case
from conformance.rdma.case import Case, declined, moving
from conformance.rdma.expect import REPLY, Expected, moved, require
from conformance.rdma.trial import CONTENT, DIALECTS, Attempt, Dialect, Operation, Trial


def _wrong_memory(trial: Trial, dialect: Dialect, operation: Operation) -> None:
    """400, nothing stored, not a byte outside the region touched; the same client's next request works."""
    buffer = trial.buffer(len(CONTENT), CONTENT)
    for name, token in trial.lane.wrong_tokens(buffer.memory, buffer.exposure).items():
        attempt = Attempt(trial, operation)
        Expected(400, "InvalidArgument", {REPLY: None}, why=name).check(attempt.send({dialect.header: token}))
        attempt.check_untouched()
        buffer.check_guards()
    key, good = trial.key(), trial.buffer(len(CONTENT), CONTENT)
    moved(200, len(CONTENT)).check(trial.send("PUT", key, headers={dialect.header: good.token()}))
    trial.holds(key, CONTENT)


def _overwrite(trial: Trial, dialect: Dialect) -> None:
    """A PUT that fails leaves the object that was there."""
    buffer, key = trial.buffer(len(CONTENT), CONTENT), trial.store(CONTENT[::-1])
    for name, token in trial.lane.wrong_tokens(buffer.memory, buffer.exposure).items():
        Expected(400, "InvalidArgument", why=name).check(trial.send("PUT", key, headers={dialect.header: token}))
        trial.holds(key, CONTENT[::-1])


def _taken_back(trial: Trial, dialect: Dialect) -> None:
    """Memory that the client took back is out of reach, for a token made before."""
    buffer, key = trial.buffer(len(CONTENT), CONTENT), trial.key()
    token = buffer.token()
    moved(200, len(CONTENT)).check(trial.send("PUT", key, headers={dialect.header: token}))
    buffer.exposure.close()
    attempt = Attempt(trial, Operation.PUT)
    Expected(400, "InvalidArgument", {REPLY: None}).check(attempt.send({dialect.header: token}))
    attempt.check_untouched()


def _dead(trial: Trial, dialect: Dialect, operation: Operation) -> None:
    """A client that is gone: a decline where no transport is left, 503 where one was chosen and failed."""
    for name, (token, status) in trial.lane.dead_tokens().items():
        attempt = Attempt(trial, operation)
        answer = attempt.send({dialect.header: token})
        if status == 501:
            declined(dialect, operation).check(answer)
        else:
            Expected(status, headers={REPLY: None}, why=name).check(answer)
            require("retry-after" in answer.headers, "Retry-After", answer)
        attempt.check_untouched()


def _cases() -> Iterator[Case]:
    for operation in Operation:

        def wrong(trial: Trial, dialect: Dialect, operation: Operation = operation) -> None:
            _wrong_memory(trial, dialect, operation)

        def dead(trial: Trial, dialect: Dialect, operation: Operation = operation) -> None:
            _dead(trial, dialect, operation)

        yield from moving(case.FAILURE, DIALECTS, f"{operation.value}, wrong memory", wrong)
        yield from moving(case.FAILURE, DIALECTS, f"{operation.value}, the client is gone", dead)
    yield from moving(case.FAILURE, DIALECTS, "PUT over an object, wrong memory", _overwrite)
    yield from moving(case.FAILURE, DIALECTS, "PUT from memory that was taken back", _taken_back)


CASES = tuple(_cases())
