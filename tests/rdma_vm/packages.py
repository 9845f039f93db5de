"""What the runner needs of a Debian host, and packages that are unpacked beside it instead of installed."""

import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

COMMANDS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "ip": "iproute2",
    "rdma": "iproute2",
    "apt-get": "apt",
    "dpkg": "dpkg",
}
LIBRARIES = {"libibverbs/librxe-*.so": "ibverbs-providers", "librdmacm.so.1": "librdmacm1"}
_LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")
_SYSTEM_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_PYVERBS_PROBE = "import pyverbs.device, pyverbs.cmid, pyverbs.qp, pyverbs.mr"


class Missing(Exception):
    """The guest cannot be made on this host; the text says what to do."""


def find(command: str) -> str | None:
    """The path of a command; administrators' commands are not in every user's PATH."""
    return shutil.which(command) or shutil.which(command, path=_SYSTEM_FOLDERS)


def need(command: str, package: str) -> str:
    """Raises Missing."""
    path = find(command)
    if path is None:
        raise Missing(f"{command} is missing: apt-get install --no-install-recommends {package}")
    return path


def check() -> None:
    """Raises Missing, which names all packages at once."""
    if platform.machine() != "x86_64":
        raise Missing(f"the guest is an x86_64 machine with the host's own programs; this is {platform.machine()}")
    lacking = [package for command, package in COMMANDS.items() if find(command) is None]
    for pattern, package in LIBRARIES.items():
        if not any(any(Path(folder).glob(pattern)) for folder in _LIBRARY_FOLDERS):
            lacking.append(package)
    if lacking:
        names = " ".join(dict.fromkeys(lacking))
        raise Missing(f"Debian packages are missing: apt-get install --no-install-recommends {names}")
    static_busybox()


def static_busybox() -> Path:
    """A busybox that runs without libraries. Raises Missing."""
    path = Path(need("busybox", "busybox-static"))
    if b"/ld-linux" in path.read_bytes():
        raise Missing("busybox needs libraries: apt-get install --no-install-recommends busybox-static")
    return path


def distribution() -> str:
    """The distribution's name and version, such as debian-12."""
    release = platform.freedesktop_os_release()
    return f"{release.get('ID', 'linux')}-{release.get('VERSION_ID', 'testing')}"


def dependencies(package: str) -> str:
    """What `apt-cache depends` says; empty for a package that apt does not know."""
    result = subprocess.run(["apt-cache", "depends", package], capture_output=True, text=True, check=False)
    return result.stdout


def download(names: Sequence[str], folder: Path) -> list[Path]:
    """The archives of packages, as apt verified them. Raises Missing."""
    folder.mkdir(parents=True)
    # Without it apt, run as root, hands the download to a user who cannot write here, and warns.
    result = subprocess.run(
        ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *names],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    found = sorted(folder.glob("*.deb"))
    if result.returncode or len(found) != len(names):
        raise Missing(f"apt-get download {' '.join(names)} failed; run apt-get update\n{result.stdout.rstrip()}")
    return found


def unpack(archive: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["dpkg", "-x", str(archive), str(folder)], check=True)


def pyverbs(cache: Path) -> Path | None:
    """The folder to put on PYTHONPATH so that this Python imports pyverbs; None when it can already.

    The distribution's package matches the host's libibverbs. It holds extension modules, so the Python must be of the
    distribution's minor version, whoever built it. Raises Missing.
    """
    if _imports(_PYVERBS_PROBE, ()) is None:
        return None
    folder = cache / f"pyverbs-{distribution()}"
    place = folder / "usr/lib/python3/dist-packages"
    if not place.is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        scratch = cache / f"pyverbs-{distribution()}.new"
        shutil.rmtree(scratch, ignore_errors=True)
        (archive,) = download(["python3-pyverbs"], scratch / "archives")
        unpack(archive, scratch)
        shutil.rmtree(scratch / "archives")
        scratch.rename(folder)
    if (error := _imports(_PYVERBS_PROBE, (place,))) is not None:
        tags = {path.name.split(".")[1] for path in (place / "pyverbs").glob("*.so")}
        raise Missing(
            f"Python {platform.python_version()} cannot import the distribution's pyverbs ({', '.join(sorted(tags))}): "
            f"{error}. The Python must be of the distribution's minor version; libraries come with ibverbs-providers "
            "and librdmacm1"
        )
    return place


def _imports(statement: str, folders: Sequence[Path]) -> str | None:
    """None when the statement runs in a new process of this Python, else the last line of what it said."""
    paths = ":".join(map(str, folders))
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}.split(':'); {statement}"],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if result.returncode == 0 else (result.stderr.strip().splitlines() or ["no message"])[-1]
