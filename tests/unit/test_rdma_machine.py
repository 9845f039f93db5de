"""What is read of a kernel's own files."""

import resource
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from s3verbs.rdma.machine import Attach, Gpu, kernel_version, read_machine

LOADED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U22-I3-AE18-09)"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023"


def write(root: Path, path: str, text: str) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text + "\n")


def test_an_empty_machine(tmp_path: Path) -> None:
    machine = read_machine(tmp_path, locked_memory=8 << 20)
    assert machine.kernel == (0, 0)
    assert machine.locked_memory == 8 << 20
    assert (machine.huge_page, machine.huge_pages, machine.huge_pages_free, machine.transparent) == (0, 0, 0, "")
    assert (machine.attach, machine.may_attach_any, machine.gpus, machine.cm_device) == (None, False, (), False)


def test_memory(tmp_path: Path) -> None:
    write(
        tmp_path,
        "proc/meminfo",
        "HugePages_Total: 512\nHugePages_Free: 500\nHugePages_Rsvd: 100\nHugepagesize: 2048 kB",
    )
    write(tmp_path, "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
    machine = read_machine(tmp_path, locked_memory=resource.RLIM_INFINITY)
    assert machine.locked_memory is None
    assert (machine.huge_page, machine.huge_pages, machine.huge_pages_free) == (2 << 20, 512, 400)
    assert machine.transparent == "madvise"


def test_capabilities_undo_limits(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/status", "Name:\tpython\nCapInh:\t0000000000000000\nCapEff:\t0000000000084000")
    machine = read_machine(tmp_path, locked_memory=1)
    assert (machine.locked_memory, machine.may_attach_any) == (None, True)
    write(tmp_path, "proc/self/status", "CapEff:\t0000000000000001")
    machine = read_machine(tmp_path, locked_memory=1)
    assert (machine.locked_memory, machine.may_attach_any) == (1, False)


@pytest.mark.parametrize(
    ("text", "attach"), [("0", Attach.CLASSIC), ("1", Attach.RESTRICTED), ("3", Attach.NONE), ("9", None), ("", None)]
)
def test_yama(tmp_path: Path, text: str, attach: Attach | None) -> None:
    write(tmp_path, "proc/sys/kernel/yama/ptrace_scope", text)
    assert read_machine(tmp_path).attach is attach


def test_gpu_drivers(tmp_path: Path) -> None:
    write(tmp_path, "proc/driver/nvidia/version", OPEN)
    assert read_machine(tmp_path).gpus == (Gpu("nvidia", "570.86.15", True, False),)
    write(tmp_path, "proc/driver/nvidia/version", CLOSED)
    (tmp_path / "sys/module/nvidia_peermem").mkdir(parents=True)
    assert read_machine(tmp_path).gpus == (Gpu("nvidia", "535.104.05", False, True),)
    write(tmp_path, "sys/module/amdgpu/version", "6.8.5")
    assert read_machine(tmp_path).gpus[1] == Gpu("amdgpu", "6.8.5", True)


def test_dmabuf_needs_a_kernel(tmp_path: Path) -> None:
    for release, has in (("5.11.0-generic", False), ("5.12.0", True), ("6.1.0-57-amd64", True)):
        write(tmp_path, "proc/sys/kernel/osrelease", release)
        assert read_machine(tmp_path).dmabuf_regions is has


@LOADED
@given(st.integers(0, 99), st.integers(0, 99), st.from_regex(r"(\.[a-z0-9-]*)?", fullmatch=True))
def test_kernel_version(major: int, minor: int, rest: str) -> None:
    assert kernel_version(f"{major}.{minor}{rest}") == (major, minor)


@LOADED
@given(st.text())
def test_any_text_is_some_kernel_version(text: str) -> None:
    assert len(kernel_version(text)) == 2


def test_this_machine_has_a_kernel() -> None:
    assert read_machine().kernel > (3, 0)
