"""Section 5, decline: no transport for the token. Each dialect, each operation, each kind of token."""

from collections.abc import Callable, Iterator

from conformance.rdma import case
from conformance.rdma.case import Case, declined, one_request
from conformance.rdma.expect import DECLINED, REPLY, Expected, moved, served_over_http
from conformance.rdma.token import unroutable
from conformance.rdma.trial import CONTENT, CUOBJ, DIALECTS, Dialect, Operation, Trial

_TOKENS = unroutable()
_NAMES = {"": "to a GID nobody has", "rc1": "rc1 to a GID nobody has", "cma1": "cma1 without a session"}
_WRITES = (Operation.PUT, Operation.PART)


def _range(trial: Trial, token: str) -> None:
    headers = {CUOBJ.header: token, "Range": "bytes=100-1099"}
    served_over_http(CONTENT[100:1100], 206).check(trial.send("GET", trial.store(), headers=headers))


def _part_number(trial: Trial, token: str) -> None:
    answer = trial.send("GET", trial.store(), query={"partNumber": "1"}, headers={CUOBJ.header: token})
    served_over_http(CONTENT, 206).check(answer)


def _empty(trial: Trial, token: str) -> None:
    """A server may find out that nothing has to be moved before it finds out that it could not."""
    answer = trial.send("GET", trial.store(b""), headers={CUOBJ.header: token})
    (moved(200, 0) if answer.headers.get(REPLY) == "200" else served_over_http(b"")).check(answer)


def _not_modified(trial: Trial, token: str) -> None:
    key = trial.key()
    etag = trial.ok("PUT", key, body=CONTENT).headers.get("etag", "")
    Expected(304, body=b"").check(trial.send("GET", key, headers={CUOBJ.header: token, "If-None-Match": etag}))


def _condition_failed(trial: Trial, token: str) -> None:
    headers = {CUOBJ.header: token, "If-Match": '"another"'}
    Expected(412, "PreconditionFailed").check(trial.send("GET", trial.store(), headers=headers))


def _unsatisfiable(trial: Trial, token: str) -> None:
    headers = {CUOBJ.header: token, "Range": f"bytes={len(CONTENT)}-"}
    Expected(416, "InvalidRange").check(trial.send("GET", trial.store(), headers=headers))


def _missing(trial: Trial, token: str) -> None:
    Expected(404, "NoSuchKey").check(trial.send("GET", trial.key(), headers={CUOBJ.header: token}))


_Check = Callable[[Trial, str], None]

_GETS: dict[str, _Check] = {
    "GET of a range": _range,
    "GET of a part": _part_number,
    "GET of an empty object": _empty,
    "GET, If-None-Match": _not_modified,
    "GET, If-Match fails": _condition_failed,
    "GET, range not satisfiable": _unsatisfiable,
    "GET of a missing key": _missing,
}


def _missing_for_dialect_without_bodies(dialect: Dialect) -> Case:
    def run(trial: Trial) -> None:
        answer = trial.send("GET", trial.key(), headers={dialect.header: _TOKENS[""]})
        Expected((404, 501), why="never 2xx").check(answer)

    return Case(case.DECLINE, f"GET of a missing key, {dialect.header}", run, dialect)


def _previous(dialect: Dialect, extension: str) -> Case:
    def run(trial: Trial) -> None:
        key = trial.store()
        DECLINED.check(trial.send("PUT", key, headers={dialect.header: _TOKENS[extension]}))
        trial.holds(key, CONTENT)

    name = f"declined overwrite leaves the object, token {_NAMES[extension]}, {dialect.header}"
    return Case(case.DECLINE, name, run, dialect, extension)


def _conditional_put(dialect: Dialect) -> Case:
    def run(trial: Trial) -> None:
        key = trial.store()
        headers = {dialect.header: _TOKENS[""], "If-None-Match": "*"}
        Expected((412, 501), why="never 2xx").check(trial.send("PUT", key, headers=headers))
        trial.holds(key, CONTENT)

    return Case(case.DECLINE, f"PUT whose condition fails, {dialect.header}", run, dialect)


_OF_NO_BYTES = {
    "Content-MD5": "1B2M2Y8AsgTpgAmY7PhCfg==",
    "x-amz-checksum-crc32": "AAAAAA==",
    "x-amz-checksum-crc64nvme": "AAAAAAAAAAA=",
}
"""Right for the empty HTTP body: a server that overlooks the token would store an empty object."""


def _cases() -> Iterator[Case]:
    for dialect in DIALECTS:
        for extension, token in _TOKENS.items():
            headers = {dialect.header: token}
            for operation in Operation:
                expected = declined(dialect, operation)
                name = f"token {_NAMES[extension]}"
                yield one_request(case.DECLINE, name, dialect, operation, headers, expected, extension=extension)
            yield _previous(dialect, extension)
        headers = {dialect.header: _TOKENS[""]}
        for operation in _WRITES:
            for name, value in _OF_NO_BYTES.items():
                fields = {**headers, name: value}
                yield one_request(case.DECLINE, f"{name} of no bytes", dialect, operation, fields, DECLINED)
            fields = {**headers, "Expect": "100-continue"}
            yield one_request(case.DECLINE, "Expect: 100-continue", dialect, operation, fields, DECLINED)
        yield _conditional_put(dialect)
        if not dialect.reads_bodies:
            yield _missing_for_dialect_without_bodies(dialect)
            for name, extra in {"a range": {"Range": "bytes=0-9"}, "If-Match": {"If-Match": "*"}}.items():
                fields = {**headers, **extra}
                yield one_request(case.DECLINE, f"GET with {name}", dialect, Operation.GET, fields, DECLINED)
    for name, check in _GETS.items():
        for extension, token in _TOKENS.items():

            def run(trial: Trial, check: _Check = check, token: str = token) -> None:
                check(trial, token)

            name_of_token = _NAMES[extension]
            yield Case(case.DECLINE, f"{name}, token {name_of_token}, {CUOBJ.header}", run, CUOBJ, extension)


CASES = tuple(_cases())
