"""`python -m conformance.s3tests --checkout DIR --endpoint URL`: the ceph/s3-tests suite against one endpoint.

The checkout is the user's own (nothing of it is kept here); expected lists were made at commit PINNED. The suite needs
its own requirements in the Python that runs it (`--python`). Exit status 1 when a test of the expected list did not
pass, 2 when the suite did not run. `docs/conformance.md` has the commands and what the result means.
"""

import argparse
import configparser
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

PINNED = "8f0ae7b404a3a2fcf7038bf1e6bf29544fe9b6a3"
MODULES = ("s3tests/functional/test_s3.py", "s3tests/functional/test_headers.py")
# The core set: no logging, cloud or IAM tests, none that AWS itself fails.
DESELECTED_MARKERS = (
    "fails_on_aws",
    "bucket_logging",
    "bucket_logging_cleanup",
    "fails_without_logging_rollover",
    "cloud_transition",
    "cloud_restore",
    "target_by_bucket",
    "iam_account",
    "iam_tenant",
    "iam_user",
    "iam_role",
    "iam_cross_account",
)
EXPECTED = Path(__file__).with_name("expected")


@dataclass(frozen=True)
class Identity:
    """An account of the endpoint, as the suite's configuration names it."""

    access_key: str
    secret_key: str
    user_id: str
    display_name: str


def identity(endpoint: str, pair: str) -> Identity:
    """`pair` is ACCESS:SECRET; id and name are what the endpoint says of the owner."""
    access_key, _, secret_key = pair.partition(":")
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
    owner = client.list_buckets().get("Owner", {})
    return Identity(access_key, secret_key, owner.get("ID", access_key), owner.get("DisplayName", access_key))


def configuration(endpoint: str, identities: dict[str, Identity]) -> configparser.RawConfigParser:
    parts = urlsplit(endpoint)
    config = configparser.RawConfigParser()
    config["DEFAULT"] = {
        "host": parts.hostname or "127.0.0.1",
        "port": str(parts.port or (443 if parts.scheme == "https" else 80)),
        "is_secure": str(parts.scheme == "https"),
        "ssl_verify": "False",
    }
    config["fixtures"] = {
        "bucket prefix": "conformance-{random}-",
        "iam name prefix": "conformance-",
        "iam path prefix": "/conformance/",
    }
    for section, who in identities.items():
        config[section] = {
            "display_name": who.display_name,
            "user_id": who.user_id,
            "email": f"{section.replace(' ', '-')}@example.com",
            "api_name": "us-east-1",
            "access_key": who.access_key,
            "secret_key": who.secret_key,
            "tenant": "conformance",
        }
    return config


def outcomes(report: Path) -> dict[str, str]:
    """Test name -> passed | failed | error | skipped, from a JUnit report."""
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        kinds = {child.tag for child in case}
        outcome = "passed"
        for tag, meaning in (("failure", "failed"), ("error", "error"), ("skipped", "skipped")):
            if tag in kinds:
                outcome = meaning
                break
        if found.get(name) in (None, "passed"):  # a test may be listed twice: once more for an error in its teardown
            found[name] = outcome
    return found


@dataclass(frozen=True)
class Comparison:
    """Tests that were expected to pass and did not, and those that passed though no one expected it."""

    passed: frozenset[str]
    lost: tuple[str, ...]
    gained: tuple[str, ...]


def compare(results: Mapping[str, str], expected: Set[str], *, whole: bool) -> Comparison:
    """`whole`: the run was of all tests, so an expected one that is not in the results is lost too."""
    passed = frozenset(name for name, outcome in results.items() if outcome == "passed")
    wanted = expected if whole else expected & results.keys()
    return Comparison(passed, tuple(sorted(wanted - passed)), tuple(sorted(passed - expected)))


def read_expected(path: Path) -> set[str]:
    """The names of an expected list, one a line; lines that begin with # are comments. Empty when there is no list."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {line for line in lines if line and not line.startswith("#")}


def write_expected(path: Path, passed: Set[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    names = "".join(f"{name}\n" for name in sorted(passed))
    path.write_text(f"# ceph/s3-tests at {PINNED}: tests of the core set that pass\n{names}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="conformance.s3tests", description=__doc__.partition("\n")[0])
    parser.add_argument("--checkout", type=Path, required=True, help="a clone of ceph/s3-tests")
    parser.add_argument("--python", default=sys.executable, help="a Python that has the suite's requirements")
    parser.add_argument("--endpoint", default="http://127.0.0.1:9000")
    parser.add_argument("--main", required=True, help="ACCESS:SECRET of the main account")
    parser.add_argument("--alt", default="", help="ACCESS:SECRET of a second account (default: the main one)")
    parser.add_argument("--tenant", default="", help="ACCESS:SECRET of a third account (default: the main one)")
    parser.add_argument("--profile", default="s3verbs", help="the expected list, conformance/s3tests/expected/NAME.txt")
    parser.add_argument("--select", default="", help="a pytest -k expression")
    parser.add_argument("--report", type=Path, help="keep the JUnit report of the run in this file")
    parser.add_argument("--update", action="store_true", help="write the passing tests as the expected list")
    options = parser.parse_args(arguments)

    head = subprocess.run(
        ["git", "-C", options.checkout, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    if head != PINNED:
        print(f"note: the expected list was made at {PINNED}, this checkout is at {head or 'no commit'}")
    who = {
        "s3 main": identity(options.endpoint, options.main),
        "s3 alt": identity(options.endpoint, options.alt or options.main),
        "s3 tenant": identity(options.endpoint, options.tenant or options.main),
    }
    for section in ("iam", "iam root", "iam alt root"):
        who[section] = who["s3 main"]
    with tempfile.TemporaryDirectory(prefix="s3verbs-s3tests-") as folder:
        ini = Path(folder) / "s3tests.ini"
        report = (options.report or Path(folder) / "report.xml").resolve()
        with ini.open("w") as file:
            configuration(options.endpoint, who).write(file)
        command = [
            options.python,
            "-m",
            "pytest",
            "-q",
            "--tb=line",
            "-p",
            "no:cacheprovider",
            f"--junit-xml={report}",
            "-m",
        ]
        command += [" and ".join(f"not {marker}" for marker in DESELECTED_MARKERS), *MODULES]
        command += ["-k", options.select] if options.select else []
        subprocess.run(command, cwd=options.checkout, env={**os.environ, "S3TEST_CONF": str(ini)}, check=False)
        if not report.exists():
            print("the suite wrote no report")
            return 2
        results = outcomes(report)

    expected_list = EXPECTED / f"{options.profile}.txt"
    found = compare(results, read_expected(expected_list), whole=not options.select)
    print(f"\n{len(found.passed)} of {len(results)} passed, {len(found.lost)} of the expected ones did not")
    for title, names in (
        ("expected to pass, but did not", found.lost),
        ("passed, not in the expected list", found.gained),
    ):
        if names:
            print(f"{title}:\n  " + "\n  ".join(names))
    if options.update:
        write_expected(expected_list, found.passed)
        print(f"wrote {expected_list}")
        return 0
    return 1 if found.lost else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
