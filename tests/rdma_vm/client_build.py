"""Builds libcuobjclient on the host, for the guest: a compiler in emulation takes twenty times as long."""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

from tests.rdma_vm.packages import Missing

PACKAGES = "cmake g++ make libibverbs-dev librdmacm-dev nlohmann-json3-dev"
LIBRARY = "S3VERBS_CLIENT_LIBRARY"
"""The environment variable that tells the tests where it is."""


def build(root: Path) -> Path | None:
    """The library, made up to date; None where there is no compiler. Raises Missing when it does not build."""
    if not all(map(shutil.which, ("cmake", "c++", "make"))):
        return None
    folder = root / "build" / "rdma_vm" / "client"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _run("cmake", "-S", str(root / "rdma" / "cuobjclient"), "-B", str(folder), "-DS3VERBS_VERBS=ON")
        _run("cmake", "--build", str(folder), "--target", "cuobjclient", "--parallel", str(os.cpu_count() or 1))
    return folder / "libcuobjclient.so.1"


def _run(*command: str) -> None:
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode:
        end = "\n".join(result.stdout.splitlines()[-30:])
        raise Missing(f"libcuobjclient does not build; it needs {PACKAGES}\n{end}")
