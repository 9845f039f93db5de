"""`s3verbs bench kv` against real gateways, with a stand-in for NIXL's bindings (tests/e2e has the real ones)."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.endpoint import ACCESS_KEY, BUCKET, SECRET_KEY, Endpoint, environment

STAND_IN = Path(__file__).parent / "stand_in_nixl"
TINY = ["--layers", "2", "--kv-heads", "1", "--head-dim", "64", "--quiet"]
"""512 bytes a token, 128 KiB an object."""


class Bench:
    """Runs the command; `log` are the transfers that the stand-in was asked for, in order."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "transfers"
        self._folder = folder

    def __call__(
        self, *arguments: str, fault: str = "", of: str = "", after: str = "0"
    ) -> subprocess.CompletedProcess[str]:
        (self._folder / "gateways").mkdir(exist_ok=True)
        extra = {
            "PYTHONPATH": f"{environment()['PYTHONPATH']}:{STAND_IN}",
            "STAND_IN_LOG": str(self._log),
            "STAND_IN_FAULT": fault,
            "STAND_IN_FAULT_OF": of,
            "STAND_IN_FAULT_AFTER": after,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        own = ["--folder", str(self._folder / "gateways"), "--serve", "workers=1"]
        given = [*TINY, *own, *arguments]
        return subprocess.run(
            [sys.executable, "-m", "s3verbs.gateway", "bench", "kv", *given],
            env=environment(extra),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]


def keys_in(gateway: Endpoint) -> int:
    with gateway.connect() as connection:
        return connection.request("GET", f"/{BUCKET}?list-type=2").body.count(b"<Key>")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with Endpoint(tmp_path_factory.mktemp("gateway") / "data") as gateway:
        yield gateway


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_with_a_gateway_of_its_own_it_measures_both_and_leaves_nothing(bench: Bench, tmp_path: Path) -> None:
    written = tmp_path / "out.json"
    done = bench("--contexts", "256,2000", "--repeat", "3", "--json", str(written), "--recompute", "1000")
    assert (done.returncode, done.stderr) == (0, "")
    assert "HTTP: loading is faster from 256 tokens on, the shortest measured" in done.stdout
    found = json.loads(written.read_text())
    assert [(each["context_tokens"], each["objects"], each["kv_bytes"]) for each in found["measurements"]] == [
        *[(256, 1, 256 * 512)] * 4,
        *[(2000, 8, 2000 * 512)] * 4,
    ]
    assert {(each["transport"], each["operation"]) for each in found["measurements"]} == {
        (transport, operation) for transport in ("http", "rdma") for operation in ("store", "load")
    }
    assert all(len(each["samples"]) == 3 and each["seconds"] > 0 for each in found["measurements"])
    assert (found["nixl"], found["library_says"]) == ("nixl_cu13 0.0.0", ["samehost: memory of a test"])
    assert "secret" not in written.read_text().replace("client", "")
    assert [found["parameters"][name].get("accelerated") for name in ("http", "rdma")] == [None, "true"]
    assert list((tmp_path / "gateways").iterdir()) == []


def test_transports_take_turns_and_every_store_has_keys_of_its_own(bench: Bench) -> None:
    assert bench("--contexts", "256", "--repeat", "2", "--warm-up", "0").returncode == 0
    order = [(each["parameters"].get("accelerated", "false"), each["operation"]) for each in bench.log]
    http, rdma = [("false", "WRITE"), ("false", "READ")], [("true", "WRITE"), ("true", "READ")]
    assert order == [*http, *rdma, *rdma, *http]
    stored = [key for each in bench.log if each["operation"] == "WRITE" for key in each["keys"]]
    assert len(set(stored)) == len(stored) == 4


def test_a_context_that_does_not_fit_goes_through_the_buffer_in_rounds(bench: Bench) -> None:
    memory = 2 * 3 * 128 * 1024
    done = bench("--contexts", "2000", "--memory", str(memory), "--repeat", "1", "--warm-up", "0")
    assert done.returncode == 0, done.stderr
    loads = [each["keys"] for each in bench.log if each["operation"] == "READ" and "accelerated" in each["parameters"]]
    assert [len(keys) for keys in loads] == [3, 3, 2]
    assert len({key for keys in loads for key in keys}) == 8


@pytest.mark.parametrize(("extra", "left"), [([], 0), (["--keep"], 2 * 2 * 2)])
def test_at_another_endpoint_the_objects_are_deleted_unless_they_are_kept(
    bench: Bench, gateway: Endpoint, extra: list[str], left: int
) -> None:
    before = keys_in(gateway)
    at = ["--endpoint", f"http://127.0.0.1:{gateway.port}", "--bucket", BUCKET]
    done = bench("--contexts", "512", "--repeat", "2", "--warm-up", "0", *at, *extra)
    assert (done.returncode, done.stderr) == (0, "")
    assert keys_in(gateway) - before == left


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        ("skip", 1, "is not what was stored"),
        ("fail", 1, "WRITE of 1 objects ended with ERR"),
        ("stall", 1, "WRITE of 1 objects took more than 0.5 s"),
        ("die", 1, "the process that runs NIXL was ended by signal 9"),
        ("plugin", 2, "`make client` builds that library, --library names it, `s3verbs client env` examines it"),
        ("register", 2, "NIXL cannot register 131072 bytes: RuntimeError: NIXL_ERR_BACKEND (no room)"),
    ],
)
def test_a_failure_is_one_line_and_leaves_nothing(
    bench: Bench, gateway: Endpoint, fault: str, code: int, said: str
) -> None:
    before = keys_in(gateway)
    at = ["--endpoint", f"http://127.0.0.1:{gateway.port}", "--bucket", BUCKET, "--timeout", "0.5"]
    done = bench("--contexts", "256", "--warm-up", "0", *at, fault=fault, of="rdma")
    assert done.returncode == code
    assert done.stderr.startswith("s3verbs: rdma: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert keys_in(gateway) == before


def test_after_a_failure_there_is_what_was_measured_before(bench: Bench, gateway: Endpoint, tmp_path: Path) -> None:
    at = ["--endpoint", f"http://127.0.0.1:{gateway.port}", "--bucket", BUCKET, "--json", str(tmp_path / "out.json")]
    done = bench("--contexts", "256,512", "--warm-up", "0", "--repeat", "1", *at, fault="fail", after="4")
    assert done.returncode == 1
    assert done.stderr.endswith("http: WRITE of 2 objects ended with ERR\n")
    assert "|     256 |" in done.stdout
    measured = json.loads((tmp_path / "out.json").read_text())["measurements"]
    assert {each["context_tokens"] for each in measured} == {256}
    assert keys_in(gateway) % 8 == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--endpoint", "ftp://x"], "--endpoint ftp://x: must be http://HOST:PORT or https://HOST:PORT"),
        (["--endpoint", "http://127.0.0.1:9"], "Could not connect to the endpoint"),
        (["--kv-heads", "8", "--tp", "3"], "tp 3: does not divide 8 KV heads"),
        (["--keep"], "--keep: the own gateway goes away with its objects; it is for --endpoint"),
        (["--model", "Llama-3.1-8B"], "give --model, or all of --layers, --kv-heads and --head-dim"),
        (["--memory", "1K"], "--memory: 1 KiB do not hold 2 objects of 128 KiB"),
        (
            ["--library", "/nowhere"],
            "--library: no libcuobjclient.so.1 in /nowhere: make client",
        ),
        (["--python", "/nowhere/python"], "--python /nowhere/python: No such file or directory"),
        (["--json", "/nowhere/out.json"], "--json /nowhere/out.json: cannot be written"),
        (["--folder", "/nowhere"], "--folder /nowhere: No such file or directory"),
        (["--serve", "buckets=no"], "the benchmark's own gateway did not start: "),
        (["--contexts", "1000000000000K"], "are free; name another one, or shorter --contexts"),
    ],
)
def test_what_cannot_begin_says_why_in_one_line(bench: Bench, tmp_path: Path, arguments: list[str], said: str) -> None:
    done = bench("--contexts", "256", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("s3verbs: ")
    assert said in done.stderr
    assert list((tmp_path / "gateways").iterdir()) == []


def test_an_interpreter_without_nixl_is_told_how_to_get_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "s3verbs.gateway", "bench", "kv", *TINY, "--folder", str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    python = sys.executable
    assert done.returncode == 2
    assert done.stderr == (
        f"s3verbs: http: NIXL is not installed in {python}; install it there: {python} -m pip install numpy && "
        f"{python} -m pip install --no-deps nixl-cu13; or name another interpreter: --python\n"
    )


def test_an_interrupt_leaves_neither_a_gateway_nor_objects(bench: Bench, tmp_path: Path) -> None:
    """As `kill` of the command does; its children must end with it."""
    (tmp_path / "gateways").mkdir()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "s3verbs.gateway", "bench", "kv", *TINY),
            *("--folder", str(tmp_path / "gateways"), "--timeout", "60", "--serve", "workers=1"),
        ],
        env=environment(
            {
                "PYTHONPATH": f"{environment()['PYTHONPATH']}:{STAND_IN}",
                "STAND_IN_LOG": str(tmp_path / "transfers"),
                "STAND_IN_FAULT": "stall",
            }
        ),
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "transfers").exists():
        assert process.poll() is None
    process.terminate()
    assert process.wait(30) == 130
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert list((tmp_path / "gateways").iterdir()) == []
    assert not [name for name in map(command_line, Path("/proc").iterdir()) if str(tmp_path) in name]


def command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
