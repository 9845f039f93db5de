"""A virtual machine in QEMU's emulation that runs one command with the host's own files, and Soft-RoCE devices.

KVM is not used: the machines that this is for have none, or one that a stock kernel does not boot on.
"""

import contextlib
import os
import selectors
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.rdma_vm import packages
from tests.rdma_vm.kernel import Kernel

HERE = Path(__file__).resolve().parent
BOOTS = 3
BOOT_SECONDS = 180.0
OUT_OF_TIME = 124
"""As `timeout` exits."""

_NOT_INHERITED = frozenset({"PWD", "OLDPWD", "SHLVL", "_", "TMPDIR", "PYTEST_CURRENT_TEST"})
_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")


class GuestFailed(Exception):
    """The guest did not come so far as to end the command; the text ends with its console."""


@dataclass(frozen=True)
class Machine:
    """`memory` in MiB."""

    kernel: Kernel
    memory: int = 4096
    processors: int = 2


def run(
    machine: Machine, command: Sequence[str], environment: Mapping[str, str], results: Path, *, seconds: float
) -> int:
    """The command's exit status, or OUT_OF_TIME. It runs as root, in this directory, with `environment`; its output
    goes to stdout as it comes. Below /mnt/results it can leave files, which are then in `results`.

    Raises GuestFailed. A boot that fails before the command starts is tried again.
    """
    with tempfile.TemporaryDirectory(prefix="s3verbs-vm-") as name:
        exchange = Path(name)
        _fill(exchange, command, environment)
        for attempt in range(1, BOOTS + 1):
            try:
                return _boot(machine, exchange, seconds)
            except GuestFailed as error:
                if (exchange / "started").exists() or attempt == BOOTS:
                    raise
                print(f"rdma_vm: boot {attempt} failed, once more: {error}", file=sys.stderr, flush=True)
            finally:
                _collect(exchange, results)
    raise AssertionError("unreachable")


def _fill(exchange: Path, command: Sequence[str], environment: Mapping[str, str]) -> None:
    for script in ("stage.sh", "wire.sh"):
        shutil.copy(HERE / script, exchange)
    (exchange / "results").mkdir()
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    lines = [
        f"export {name}={shlex.quote(value)}"
        for name, value in {**inherited, **environment}.items()
        if name and set(name) <= _NAME
    ]
    lines += [f"cd {shlex.quote(str(Path.cwd()))} || exit 125", f"exec {shlex.join(command)}"]
    script = exchange / "command.sh"
    script.touch(0o600)
    script.write_text("\n".join(lines) + "\n")


def _collect(exchange: Path, results: Path) -> None:
    results.mkdir(parents=True, exist_ok=True)
    for path in [*(exchange / "results").iterdir(), *exchange.glob("*.log"), exchange / "wire"]:
        if path.is_file():
            shutil.copy(path, results)


def _boot(machine: Machine, exchange: Path, seconds: float) -> int:
    began = time.monotonic()
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", buffering=0) as output:
        try:
            process = subprocess.Popen(_qemu(machine, exchange, writer), stdin=subprocess.DEVNULL, pass_fds=(writer,))
        finally:
            os.close(writer)
        try:
            in_time = _copy(output.fileno(), exchange / "started", began, seconds)
            if in_time:
                process.wait(30)
        finally:
            process.kill()
            process.wait()
    with contextlib.suppress(FileNotFoundError):
        return int((exchange / "status").read_text())
    if not in_time and (exchange / "started").exists():
        print(f"rdma_vm: no end after {seconds:.0f} s", file=sys.stderr, flush=True)
        return OUT_OF_TIME
    console = (exchange / "console.log").read_text(errors="replace").splitlines()
    raise GuestFailed("\n".join(["the guest ended without a status", *console[-40:]]))


def _copy(source: int, started: Path, began: float, seconds: float) -> bool:
    """Copy to stdout until the guest is gone. False: it did not start, or did not end, in its time."""
    sys.stdout.flush()
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        while True:
            age = time.monotonic() - began
            if age > seconds or (age > BOOT_SECONDS and not started.exists()):
                return False
            if selector.select(1.0):
                data = os.read(source, 1 << 16)
                if not data:
                    return True
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()


def _qemu(machine: Machine, exchange: Path, output: int) -> list[str]:
    # Under emulation a `rep movsb` goes byte by byte, so the kernel is not told that it is fast. A table is five times
    # as quick as the emulated CRC32 instruction of SSE 4.2, which every block of a payload would go through, and before
    # Linux 7 quicker than an emulated PCLMULQDQ for the CRC of each packet. numpy from 2.4 on would not load without
    # SSE 4.2; the clients' environments have an older one.
    processor = "max,-erms,-fsrm,-sse4.2"
    if int(machine.kernel.release.split(".")[0]) < 7:
        processor += ",-pclmulqdq"
    return [
        packages.need("qemu-system-x86_64", "qemu-system-x86"),
        *("-accel", "tcg,thread=multi,tb-size=512", "-cpu", processor, "-machine", "q35"),
        *("-smp", str(machine.processors), "-m", str(machine.memory)),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-kernel", str(machine.kernel.image), "-initrd", str(machine.kernel.initramfs)),
        *("-append", "console=ttyS0 quiet loglevel=4 panic=-1 oops=panic nokaslr mitigations=off"),
        *("-chardev", f"file,id=console,path={exchange / 'console.log'}", "-serial", "chardev:console"),
        *_folder("host", Path("/"), ",readonly=on"),
        *_folder("exchange", exchange, ""),
        *("-device", "virtio-serial-pci", "-add-fd", f"fd={output},set=1"),
        *("-chardev", "file,id=output,path=/dev/fdset/1,append=on"),
        *("-device", "virtserialport,chardev=output,name=output"),
    ]


def _folder(tag: str, path: Path, options: str) -> tuple[str, ...]:
    """A 9p file system. Files of several file systems below `path` get inode numbers of their own."""
    return (
        *("-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{options}"),
        *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
    )
