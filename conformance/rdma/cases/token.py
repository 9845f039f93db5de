"""Section 2: what is a token and what is none. No transport is needed: a token is judged before anything else."""

from collections.abc import Iterator

from conformance.rdma import case, token
from conformance.rdma.case import Case, declined, one_request
from conformance.rdma.expect import MALFORMED
from conformance.rdma.trial import CONTENT, DIALECTS, Dialect, Operation, Trial


def _before_other_work(dialect: Dialect) -> Iterator[Case]:
    """What is wrong with the token is told before what is wrong with the rest."""
    header = {dialect.header: "token"}

    def missing_key(trial: Trial) -> None:
        MALFORMED.check(trial.send("GET", trial.key(), headers=header))

    def missing_upload(trial: Trial) -> None:
        query = {"partNumber": "1", "uploadId": "none"}
        MALFORMED.check(trial.send("PUT", trial.key(), query=query, headers=header))

    def failing_condition(trial: Trial) -> None:
        key = trial.store()
        MALFORMED.check(trial.send("PUT", key, headers={**header, "If-None-Match": "*"}))
        trial.holds(key, CONTENT)

    def checksum_of_nothing(trial: Trial) -> None:
        key = trial.key()
        MALFORMED.check(trial.send("PUT", key, headers={**header, "x-amz-checksum-crc32": "AAAAAA=="}))
        trial.absent(key)

    for name, run in {
        "GET of a missing key": missing_key,
        "UploadPart to a missing upload": missing_upload,
        "PUT whose condition fails": failing_condition,
        "PUT with the checksum of no bytes": checksum_of_nothing,
    }.items():
        yield Case(case.TOKEN, f"malformed token, {name}, {dialect.header}", run, dialect)


def _cases() -> Iterator[Case]:
    for dialect in DIALECTS:
        for name, text in token.malformed().items():
            for operation in Operation:
                headers = {dialect.header: text}
                yield one_request(case.TOKEN, f"malformed: {name}", dialect, operation, headers, MALFORMED)
        for name, text in token.accepted_forms().items():
            for operation in Operation:
                headers, expected = {dialect.header: text}, declined(dialect, operation)
                yield one_request(case.TOKEN, f"accepted: {name}", dialect, operation, headers, expected)
        yield from _before_other_work(dialect)


CASES = tuple(_cases())
