"""The parts of the RDMA conformance runner: tokens against the server's own parser, what it notices, its reports."""

import base64
import json
import zlib
from pathlib import Path

import pytest

from conformance.rdma import checksums, profiles, report, token
from conformance.rdma.cases import CASES
from conformance.rdma.expect import DECLINED, MALFORMED, Expected, Failed, moved, served_over_http
from conformance.rdma.memory import GUARD, Memory
from conformance.rdma.offers import Offers
from conformance.rdma.report import Outcome, Result
from conformance.rdma.trial import Buffer
from conformance.rdma.wire import Answer
from s3verbs.rdma.errors import MalformedToken
from s3verbs.rdma.token import Transport, parse


@pytest.mark.parametrize("name", token.malformed())
def test_every_malformed_token_is_one(name: str) -> None:
    with pytest.raises(MalformedToken):
        parse(token.malformed()[name])


def test_unroutable_tokens_are_tokens_of_each_transport() -> None:
    kinds = {name: parse(text).transport for name, text in token.unroutable().items()}
    assert kinds == {"": Transport.DC, "rc1": Transport.RC, "cma1": Transport.SAMEHOST}


@pytest.mark.parametrize("name", token.accepted_forms())
def test_accepted_forms_are_tokens(name: str) -> None:
    assert parse(token.accepted_forms()[name]).transport is Transport.DC


def test_case_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))


def test_checksums_have_their_published_check_values() -> None:
    """Of "123456789": the CRC catalogue's, and zlib's own for CRC32."""
    values = {name: checksums.checksum(name, b"123456789") for name in checksums.NAMES}
    assert values["x-amz-checksum-crc32c"] == base64.b64encode(bytes.fromhex("e3069283")).decode()
    assert values["x-amz-checksum-crc64nvme"] == base64.b64encode(bytes.fromhex("ae8b14860a799888")).decode()
    assert values["x-amz-checksum-crc32"] == "y/Q5Jg=="
    assert zlib.crc32(b"123456789") == 0xCBF43926


def answer(status: int, body: bytes = b"", **headers: str) -> Answer:
    return Answer(status, {name.replace("_", "-"): value for name, value in headers.items()}, body)


REFUSAL = b"<Error><Code>InvalidArgument</Code></Error>"
DECLINE = b"<Error><Code>NotImplemented</Code></Error>"
FAULTS = {
    "another status": (MALFORMED, answer(403, REFUSAL)),
    "another code": (MALFORMED, answer(400, DECLINE)),
    "no code": (MALFORMED, answer(400)),
    "a reply header where none may be": (MALFORMED, answer(400, REFUSAL, x_amz_rdma_reply="501")),
    "no reply header": (DECLINED, answer(501, DECLINE)),
    "a success that moved nothing": (DECLINED, answer(200, x_amz_rdma_reply="501")),
    "no body where it was declined": (served_over_http(b"data"), answer(200, x_amz_rdma_reply="501")),
    "another body": (served_over_http(b"data"), answer(200, b"atad", x_amz_rdma_reply="501")),
    "a count that is wrong": (
        moved(200, 4),
        answer(200, x_amz_rdma_reply="200", x_amz_rdma_bytes_transferred="3", content_length="0"),
    ),
    "a body although it moved": (
        moved(200, 4),
        answer(200, b"data", x_amz_rdma_reply="200", x_amz_rdma_bytes_transferred="4", content_length="0"),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_answer_is_noticed(name: str) -> None:
    expected, seen = FAULTS[name]
    with pytest.raises(Failed):
        expected.check(seen)


def test_right_answers_pass() -> None:
    MALFORMED.check(answer(400, REFUSAL))
    DECLINED.check(answer(501, DECLINE, x_amz_rdma_reply="501"))
    DECLINED.check(answer(501, x_amz_rdma_reply="501"))
    served_over_http(b"data").check(answer(200, b"data", x_amz_rdma_reply="501"))
    Expected((404, 501)).check(answer(404))
    headers = {"x_amz_rdma_reply": "206", "x_amz_rdma_bytes_transferred": "4", "content_length": "0"}
    moved(206, 4).check(answer(206, **headers))


class NotExposed:
    def token(self, offset: int, size: int) -> str:
        return ""

    def close(self) -> None:
        pass


def test_a_changed_byte_is_noticed() -> None:
    buffer = Buffer(Memory(1000, b"x" * 1000), NotExposed())
    buffer.check_untouched()
    buffer.memory.fill(b"data", 10)
    buffer.check_filled(b"data", 10)
    for check in (buffer.check_untouched, lambda: buffer.check_filled(b"data", 9)):
        with pytest.raises(Failed):
            check()
    buffer.memory.fill(b"y", 999)
    with pytest.raises(Failed):
        buffer.check_filled(b"data", 10)
    buffer.close()


@pytest.mark.parametrize("offset", [-1, -GUARD, 1000, 1000 + GUARD - 1])
def test_a_changed_byte_around_the_buffer_is_noticed(offset: int) -> None:
    buffer = Buffer(Memory(1000), NotExposed())
    buffer.memory.fill(b"!", offset)
    with pytest.raises(Failed):
        buffer.check_guards()
    buffer.close()


def test_a_profile_explains_failures_by_pattern(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"about": "a server", "deviations": {"PUT*, Content-MD5 *": "no MD5"}}))
    profile = profiles.load(str(path))
    assert profile.why("PUT, Content-MD5 wrong, x-amz-rdma-token [rc]") == "no MD5"
    assert profile.why("GET of 1 bytes") == ""


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"deviations": []}', '{"deviations": {"a": 1}}'])
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="not a profile"):
        profiles.load(str(path))
    with pytest.raises(ValueError, match="no profile"):
        profiles.load("no-such-profile")


def test_the_report_shows_what_was_expected_and_seen() -> None:
    results = [
        Result("2 token", "one", "", Outcome.PASSED),
        Result("2 token", "two", "", Outcome.FAILED, "400", "200"),
        Result("4 success", "three", "rc", Outcome.DEVIATION, "200", "501", "says so"),
        Result("4 success", "four", "", Outcome.NOT_APPLICABLE, why="no transport"),
    ]
    assert report.summary(results) == "1 passed, 1 failed, 1 known deviations, 1 not applicable"
    assert report.as_lines(results, quiet=True) == [
        "section 2 token",
        "  FAIL  two",
        "        expected: 400",
        "        seen:     200",
        "section 4 success",
        "  known three [rc] (says so)",
        "        expected: 200",
        "        seen:     501",
    ]
    written = json.loads(json.dumps(report.as_json("http://host", Offers(), results)))
    assert written["summary"] == {"passed": 1, "failed": 1, "deviation": 1, "not applicable": 1}
    assert [row["outcome"] for row in written["results"]] == ["passed", "failed", "deviation", "not applicable"]
