"""The wheel built from the sdist holds every module, and each of them imports."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RUN_LATER = {"s3verbs.gateway.__main__"}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, text=True)
    return out


@pytest.fixture
def wheel(dist: Path) -> Path:
    (wheel,) = dist.glob("*.whl")
    return wheel


def modules(root: Path) -> set[str]:
    found = set()
    for package in ("gateway", "bench", "rdma", "storage"):
        for path in (root / package).rglob("*.py"):
            name = ".".join(("s3verbs", *path.relative_to(root).with_suffix("").parts))
            found.add(name.removesuffix(".__init__"))
    return found


def test_wheel_built_from_the_sdist_holds_every_module_and_all_import(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    unpacked = modules(tmp_path / "s3verbs")
    assert unpacked == modules(ROOT)
    assert (tmp_path / "s3verbs" / "py.typed").exists()
    script = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "import s3verbs; print(s3verbs.__file__)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, *sorted(unpacked - RUN_LATER)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(str(tmp_path))


def test_the_client_engine_is_in_the_sdist_and_not_in_the_wheel(dist: Path, wheel: Path, tmp_path: Path) -> None:
    """What `make client` builds is all there, below src."""
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    engine = unpacked / "src" / "s3verbs" / "rdma" / "cuobjclient"
    assert files(engine) == files(ROOT / "rdma" / "cuobjclient")
    assert (engine / "CMakeLists.txt").exists()
    assert (unpacked / "Makefile").read_text() == (ROOT / "Makefile").read_text()
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if "cuobjclient" in name]


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_client_alone_needs_no_server_library(tmp_path: Path) -> None:
    """Neither to be imported nor to be used: botocore, urllib3 and the standard library do."""
    blocked = ["aiohttp", "lmdb", "uvloop", "awscrt", "prometheus_client", "boto3", "numpy", "torch", "pyverbs"]
    script = f"""
import sys
for name in {blocked!r}: sys.modules[name] = None
import s3verbs
assert not [name for name in sys.modules if name.startswith(("s3verbs.rdma", "botocore", "urllib3"))]
client = s3verbs.Client("http://127.0.0.1:1", access_key="a", secret_key="b")
assert client.register(bytearray(10)).transport == "http", "nothing listens there"
assert "samehost: " in client.why_http and "rc: " in client.why_http
client.close()
s3verbs.Region
import importlib, pkgutil, s3verbs.rdma.client
for module in pkgutil.iter_modules(s3verbs.rdma.client.__path__, "s3verbs.rdma.client."):
    importlib.import_module(module.name)
"""
    environment = {name: value for name, value in os.environ.items() if name != "S3VERBS_SOCKET"}
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**environment, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("command", [["serve"], ["admin", "key", "list"]], ids=" ".join)
def test_without_the_extra_the_server_names_it(command: list[str], tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['lmdb'] = sys.modules['uvloop'] = None\n"
        "from s3verbs.gateway.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, *command, "--data", str(tmp_path / "data")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    wanted = "s3verbs: not installed: lmdb, uvloop; install the extra: pip install 's3verbs[server]'\n"
    assert (result.returncode, result.stderr) == (2, wanted)
    assert not (tmp_path / "data").exists()
