"""The conformance runner: reports, expected lists and the configuration that it writes for the suite."""

from pathlib import Path

import pytest

from conformance.s3tests.__main__ import (
    PINNED,
    Identity,
    compare,
    configuration,
    outcomes,
    read_expected,
    write_expected,
)

REPORT = """<testsuites><testsuite>
<testcase classname="suite.functional.test_s3" name="test_good"/>
<testcase classname="suite.functional.test_s3" name="test_wrong"><failure message="no"/></testcase>
<testcase classname="suite.functional.test_s3" name="test_setup"><error message="no"/></testcase>
<testcase classname="suite.functional.test_s3" name="test_away"><skipped message="no"/></testcase>
<testcase classname="suite.functional.test_s3" name="test_messy"/>
<testcase classname="suite.functional.test_s3" name="test_messy"><error message="teardown"/></testcase>
<testcase classname="suite.functional.test_headers" name="test_many[1-a]"/>
</testsuite></testsuites>"""


def test_every_outcome_of_a_report_is_read(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert outcomes(report) == {
        "test_s3::test_good": "passed",
        "test_s3::test_wrong": "failed",
        "test_s3::test_setup": "error",
        "test_s3::test_away": "skipped",
        "test_s3::test_messy": "error",
        "test_headers::test_many[1-a]": "passed",
    }


def test_a_selected_run_loses_only_what_it_ran_and_a_whole_run_also_what_is_missing() -> None:
    results = {"a": "passed", "b": "failed", "c": "skipped", "d": "passed"}
    expected = {"a", "b", "c", "z"}
    selected = compare(results, expected, whole=False)
    assert (selected.passed, selected.lost, selected.gained) == ({"a", "d"}, ("b", "c"), ("d",))
    assert compare(results, expected, whole=True).lost == ("b", "c", "z")
    assert compare({}, expected, whole=True).lost == ("a", "b", "c", "z")
    assert compare(results, {"a"}, whole=True).lost == ()


def test_an_expected_list_survives_writing_and_names_its_commit(tmp_path: Path) -> None:
    path = tmp_path / "expected" / "server.txt"
    assert read_expected(path) == set()
    write_expected(path, {"test_s3::test_b", "test_s3::test_a[1 2]"})
    assert read_expected(path) == {"test_s3::test_b", "test_s3::test_a[1 2]"}
    lines = path.read_text().splitlines()
    assert PINNED in lines[0]
    assert lines[1:] == ["test_s3::test_a[1 2]", "test_s3::test_b"]


@pytest.mark.parametrize(
    ("endpoint", "host", "port", "secure"),
    [
        ("http://127.0.0.1:9500", "127.0.0.1", "9500", "False"),
        ("https://s3.example.com", "s3.example.com", "443", "True"),
        ("http://[::1]", "::1", "80", "False"),
    ],
)
def test_the_configuration_names_the_endpoint_and_the_accounts(
    endpoint: str, host: str, port: str, secure: str
) -> None:
    config = configuration(endpoint, {"s3 main": Identity("AK", "SK%", "id", "name")})
    assert (config["DEFAULT"]["host"], config["DEFAULT"]["port"]) == (host, port)
    assert config["DEFAULT"]["is_secure"] == secure
    section = config["s3 main"]
    assert (section["access_key"], section["secret_key"]) == ("AK", "SK%")
    assert (section["user_id"], section["display_name"]) == ("id", "name")


def test_the_list_of_this_server_is_there_and_long_enough() -> None:
    import conformance.s3tests.__main__ as runner

    assert len(read_expected(runner.EXPECTED / "s3verbs.txt")) >= 240
