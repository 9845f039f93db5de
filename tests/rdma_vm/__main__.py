"""Run the RDMA suite, or any command, in the virtual machine with Soft-RoCE: `python -m tests.rdma_vm`.

    python -m tests.rdma_vm                          the suite; `make test-rdma-vm` is this
    python -m tests.rdma_vm -- -k multipart -x       the suite, with arguments for pytest
    python -m tests.rdma_vm --command ibv_devinfo    another command, with its arguments

The exit status is the command's; 124 when time ran out, 125 when the guest could not be made or failed.
"""

import argparse
import compileall
import fcntl
import os
import sys
from pathlib import Path

from tests.rdma_vm import client_build, guest, kernel, packages

ROOT = Path(__file__).resolve().parents[2]
SUITE = "tests/rdma_vm"
NO_GUEST = 125


def cache_folder() -> Path:
    """Kernel, initramfs and pyverbs are kept here; remove it to get new ones."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "s3verbs" / "rdma_vm"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.rdma_vm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "rdma_vm", help="where the report goes")
    parser.add_argument("--seconds", type=float, default=1800, help="time for boot and command; default: %(default)g")
    parser.add_argument("--memory", type=int, default=4096, metavar="MIB", help="of the guest; default: %(default)s")
    parser.add_argument("--command", nargs=argparse.REMAINDER, help="run this instead of the suite")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    options = parser.parse_args()
    command = options.command or [
        *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml=/mnt/results/junit.xml"),
        *(options.pytest or ["-v"]),
        *([] if any(word.startswith(SUITE) for word in options.pytest) else [SUITE]),
    ]
    os.chdir(ROOT)
    try:
        machine, environment = _prepare(options.memory)
        return guest.run(machine, command, environment, options.results, seconds=options.seconds)
    except (packages.Missing, guest.GuestFailed) as error:
        print(f"rdma_vm: {error}", file=sys.stderr)
        return NO_GUEST


def _prepare(memory: int) -> tuple[guest.Machine, dict[str, str]]:
    packages.check()
    library = client_build.build(ROOT)
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        machine = guest.Machine(kernel.ensure(cache), memory)
        pyverbs = packages.pyverbs(cache)
    # Every process of the guest would do it again, and slowly.
    for folder in ("gateway", "bench", "rdma", "storage", "tests"):
        compileall.compile_dir(ROOT / folder, quiet=2)
    paths = [str(ROOT / "src"), *([str(pyverbs)] if pyverbs else []), os.environ.get("PYTHONPATH", "")]
    environment = {
        "PYTHONPATH": ":".join(path for path in paths if path),
        "S3VERBS_RDMA_VM": "1",
        **({client_build.LIBRARY: str(library)} if library else {}),
    }
    return machine, environment


if __name__ == "__main__":
    raise SystemExit(main())
