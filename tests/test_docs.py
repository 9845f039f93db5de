"""The documentation says what is: links, error codes, operations, settings and commands are compared with the code."""

import dataclasses
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from s3verbs.gateway.config import Settings, load
from s3verbs.gateway.error_codes import ERROR_CODES
from s3verbs.gateway.operations.registry import OPERATIONS
from s3verbs.gateway.serve import banner
from s3verbs.gateway.setting_types import Address

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_error_page_lists_every_code_with_its_status() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", (ROOT / "docs/errors.md").read_text(), re.MULTILINE))
    assert rows == {code: str(known.status) for code, known in ERROR_CODES.items()}


def test_the_operations_page_lists_every_operation_with_its_action() -> None:
    rows = dict(re.findall(r"^\| (\w+) \| `([\w:]+)` \|", (ROOT / "docs/operations.md").read_text(), re.MULTILINE))
    assert rows == {name: operation.action for name, operation in OPERATIONS.items()}


def test_every_setting_is_documented() -> None:
    table = (ROOT / "docs/operating.md").read_text()
    documented = {
        name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert {field.name for field in dataclasses.fields(Settings)} <= documented


def without_comments(text: str) -> list[str]:
    return [line.split(" #")[0].rstrip() for line in text.splitlines() if line and not line.startswith("#")]


def printed(access_key: str, secret_key: str, host: str = "127.0.0.1") -> list[str]:
    """The LMCache configuration of a first start."""
    settings = load(None, {}, {"data": ["d"], "buckets": ["kvcache:relaxed"]}).settings
    first = {"access_key": access_key, "secret_key": secret_key, "rdma": "", "samehost": ""}
    text = banner(settings, [Address(host, 9000)], None, first, show_lmcache=True)
    return without_comments(text.partition("# lmcache.yaml")[2])


def test_the_lmcache_page_shows_what_serve_prints() -> None:
    block = re.search(r"```yaml\n(chunk_size.*?)```", (ROOT / "docs/clients/lmcache.md").read_text(), re.DOTALL)
    assert block is not None
    assert without_comments(block[1]) == printed("YOUR_ACCESS_KEY", "YOUR_SECRET_KEY")


def test_the_printed_lmcache_configuration_quotes_keys_and_names_a_host_that_clients_reach() -> None:
    lines = printed("12345", 'a: "b" #c', host="0.0.0.0")
    assert '    access_key: "12345"' in lines
    assert any(line.startswith('    secret_key: "a: \\"b\\"') for line in lines)
    assert f"    endpoint_override: http://{socket.gethostname()}:9000" in lines


def commands(page: Path) -> list[list[str]]:
    found = []
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("s3verbs "):
                found.append(shlex.split(line, comments=True))
    return found


COMMANDS = [words for page in PAGES for words in commands(page)]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_shown_is_one_that_the_command_line_knows(words: list[str]) -> None:
    """With --help last, the parser reads the whole line and then prints help: a flag or verb that is unknown fails."""
    result = subprocess.run(
        [sys.executable, "-m", "s3verbs.gateway", *words[1:], "--help"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
    )
    assert result.returncode == 0, result.stderr
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert all(option in result.stdout for option in options), options


def test_the_make_targets_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"`?make ([a-z][\w-]+)`?$", page.read_text(), re.MULTILINE)) <= targets | {"git"}
