"""`s3verbs client`: the command in a process of its own, beside a running server, and NIXL-like plugins made here."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3verbs.rdma.nixl.cufile import parse
from s3verbs.rdma.nixl.loader import LIBRARY
from tests import nixl_stand_ins as make
from tests.integration.endpoint import ROOT, Endpoint, run

MODEL = ("--model", "Llama-3.1-8B", "--context", "64000")
CLEAN = dict.fromkeys(("LD_LIBRARY_PATH", "CUFILE_ENV_PATH_JSON", "NIXL_PLUGIN_DIR"), "")


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("server")
    with Endpoint(folder / "data", "--socket", str(folder / "gateway.sock")) as running:
        yield running


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return make.engine(tmp_path / "engine")


@pytest.fixture
def packages(tmp_path: Path, library: Path) -> Path:
    folder = tmp_path / "site-packages"
    make.wheel(folder, "nixl-cu13", "1.5.1", library)
    return folder


def lines(stderr: str) -> dict[str, list[str]]:
    """state: texts."""
    found: dict[str, list[str]] = {}
    for line in stderr.splitlines():
        found.setdefault(line[:8].strip(), []).append(line[9:])
    assert found.keys() <= {"ok", "info", "problem"}, stderr
    return found


def test_env_is_for_eval_and_the_plugin_loads_after_it(library: Path, packages: Path, endpoint: Endpoint) -> None:
    where = ("--library", str(library.parent), "--nixl", str(packages))
    pinned = {"S3VERBS_TRANSPORT": "samehost", "S3VERBS_SOCKET": str(endpoint.data.parent / "gateway.sock")}
    result = run("client", "env", *where, "--endpoint", f"http://127.0.0.1:{endpoint.port}", env={**CLEAN, **pinned})
    said = lines(result.stderr)
    assert (result.returncode, result.stdout.count("\n")) == (0, 1), result.stderr
    assert any(text.endswith("gateway.sock: a gateway answers") for text in said["ok"])
    assert any("nixl-cu13 1.5.1: its OBJ plugin loads" in text for text in said["ok"])
    assert any(text.startswith(f"endpoint http://127.0.0.1:{endpoint.port}: answers") for text in said["ok"])
    plugin = packages / ".nixl_cu13.mesonpy.libs" / "plugins" / "libplugin_OBJ.so"
    load = f'exec "{sys.executable}" -c "import ctypes; ctypes.CDLL(\'{plugin}\', mode=2)"'
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    assert subprocess.run(["sh", "-c", load], env=environment, stderr=subprocess.DEVNULL).returncode != 0
    subprocess.run(["sh", "-c", f'eval "$1"; {load}', "sh", result.stdout], env=environment, check=True)


def test_env_fails_when_the_plugin_would_not_load(library: Path, packages: Path) -> None:
    """The line is printed all the same: it is right as far as it goes, and the exit code and the list say the rest."""
    other = make.engine(packages / ".nixl_cu13.mesonpy.libs")
    result = run("client", "env", "--library", str(library.parent), "--nixl", str(packages), env=CLEAN)
    assert result.returncode == 1
    assert result.stdout.startswith("export LD_LIBRARY_PATH=")
    assert any(str(other.parent) in text for text in lines(result.stderr)["problem"])


def test_env_without_a_library_prints_no_line(tmp_path: Path) -> None:
    result = run("client", "env", "--library", str(tmp_path), env=CLEAN)
    assert (result.returncode, result.stdout) == (1, "")
    assert any(f"no {LIBRARY} in {tmp_path}: make client" in text for text in lines(result.stderr)["problem"])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--nixl", "/absent"], "s3verbs: nixl: /absent: is no interpreter, virtual environment, folder of packages"),
        (["--endpoint", "somewhere"], "s3verbs: endpoint: 'somewhere' is no http://HOST:PORT"),
    ],
)
def test_env_used_wrongly(flags: list[str], said: str, library: Path) -> None:
    result = run("client", "env", "--library", str(library), *flags, env=CLEAN)
    assert result.returncode == 2
    assert result.stderr.startswith(said)
    assert result.stderr.count("\n") == 1


def test_env_tells_a_wrong_variable(library: Path, packages: Path, tmp_path: Path) -> None:
    (tmp_path / "cufile.json").write_text("{")
    wrong = {"S3VERBS_RDMA_DEVICES": "mlx5_0:one", "CUFILE_ENV_PATH_JSON": str(tmp_path / "cufile.json")}
    result = run("client", "env", "--library", str(library), "--nixl", str(packages), env={**CLEAN, **wrong})
    assert result.returncode == 1
    problems = lines(result.stderr)["problem"]
    assert any(text.startswith("S3VERBS_RDMA_DEVICES: ") for text in problems)
    assert any("cufile.json: line 1: " in text for text in problems)


def test_client_needs_no_package_of_the_server(library: Path, packages: Path) -> None:
    blocked = ["aiohttp", "lmdb", "uvloop", "awscrt", "prometheus_client", "botocore", "urllib3", "pyverbs", "numpy"]
    script = (
        f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\n"
        "from s3verbs.gateway.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    environment = {**os.environ, **CLEAN, "PYTHONPATH": str(ROOT / "src")}
    for words in (["env", "--library", str(library), "--nixl", str(packages)], ["lmcache-config", *MODEL]):
        command = [sys.executable, "-c", script, "client", *words]
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert result.stdout, result.stderr
        assert "Traceback" not in result.stderr


# -- lmcache-config --


def test_both_files_on_standard_output() -> None:
    result = run("client", "lmcache-config", *MODEL, "--rdma-address", "10.0.1.2", "--rdma-address", "10.0.2.2")
    assert result.returncode == 0
    yaml, _, cufile = result.stdout.partition("\n# cufile.json\n")
    assert yaml.startswith("# lmcache.yaml\nchunk_size: 256\n")
    assert "nixl_buffer_size: 8589934592 " in yaml
    assert parse(cufile)["properties"]["rdma_dev_addr_list"] == ["10.0.1.2", "10.0.2.2"]
    assert result.stderr == (
        "Llama-3.1-8B: 131,072 B a token, 32 MiB an object, 250 objects for 64,000 tokens: 8 GiB of GPU memory for "
        "the worker\n"
    )


def test_files_in_a_folder_are_the_owners_and_are_never_overwritten(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush-hush-hush\n")
    out = tmp_path / "new" / "folder"
    command = ["client", "lmcache-config", *MODEL, "--out", str(out), "--access-key", "AKIA"]
    command += ["--secret-key-file", str(secret)]
    result = run(*command)
    assert (result.returncode, result.stdout) == (0, "")
    assert "hush" not in result.stderr
    assert 'secret_key: "hush-hush-hush"' in (out / "lmcache.yaml").read_text()
    assert json.loads((out / "cufile.json").read_text())["execution"] == {"parallel_io": False}
    assert stat.S_IMODE((out / "lmcache.yaml").stat().st_mode) == 0o600
    (out / "lmcache.yaml").unlink()
    again = run(*command)
    assert again.returncode == 2
    assert again.stderr.startswith(f"s3verbs: out: {out / 'cufile.json'} is there already")
    assert not (out / "lmcache.yaml").exists(), "all or nothing"


def test_without_keys_none_are_written() -> None:
    result = run("client", "lmcache-config", *MODEL, env={"AWS_SECRET_ACCESS_KEY": "hush-hush-hush"})
    assert "hush" not in result.stdout
    assert "  access_key:" not in result.stdout


def test_the_numbers_of_a_model_and_its_workers() -> None:
    shape = ["--layers", "126", "--kv-heads", "8", "--head-dim", "128", "--dtype", "fp8", "--tp", "8"]
    result = run("client", "lmcache-config", *shape, "--context", "256", "--chunk-size", "256", "--device", "cpu")
    assert "# 1 chunks of 8257536 bytes, for each worker" in result.stdout
    assert "nixl_buffer_size" not in result.stdout
    assert "host memory for each of 8 workers" in result.stderr
    halved = run("client", "lmcache-config", *MODEL, "--dtype", "fp8")
    assert "# 250 chunks of 16777216 bytes" in halved.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--context", "1"], "model: give --model, or all of --layers, --kv-heads and --head-dim"),
        ([*MODEL, "--layers", "3"], "model: give --model, or --layers, --kv-heads and --head-dim, not both"),
        (["--model", "GPT-2", "--context", "1"], "model: 'GPT-2' is no model known here: Llama-3.1-8B"),
        ([*MODEL, "--dtype", "int3"], "model: dtype 'int3': must be one of"),
        (["--model", "Llama-3.1-8B", "--context", "0"], "context 0: must be at least 1"),
        ([*MODEL, "--chunk-size", "0"], "chunk-size 0: must be at least 1"),
        ([*MODEL, "--tp", "3"], "tp 3: does not divide 8 KV heads"),
        ([*MODEL, "--endpoint", "storage"], "endpoint: 'storage' is no http://HOST:PORT"),
        ([*MODEL, "--bucket", "No_Bucket"], "bucket: 'No_Bucket' is none that the endpoint would accept"),
        ([*MODEL, "--region", "a: b"], "region: 'a: b' is none that the endpoint would accept"),
        ([*MODEL, "--access-key", "AKIA"], "access_key: give both --access-key and --secret-key-file, or neither"),
        ([*MODEL, "--rdma-address", "mlx5_0"], "rdma_address: 'mlx5_0' does not appear to be an IPv4 or IPv6 address"),
        ([*MODEL, "--out", "/proc/none"], "out: /proc/none: "),
        (
            [*MODEL, "--access-key", "AKIA", "--secret-key-file", "/absent"],
            "secret_key_file: cannot read /absent: ",
        ),
    ],
)
def test_what_cannot_be_configured_is_one_line(words: list[str], said: str) -> None:
    result = run("client", "lmcache-config", *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"s3verbs: {said}")
    assert result.stderr.count("\n") == 1
