"""What this machine's kernel says about the things that RDMA needs beside a device. Reads /proc and /sys below a root
that can be given; changes nothing. What cannot be read is taken as absent.

Sources: getrlimit(2), capabilities(7), the kernel's admin-guide (mm/hugetlbpage, mm/transhuge, LSM/Yama).
"""

import os
import re
import resource
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

_CAP_IPC_LOCK = 14
_CAP_SYS_PTRACE = 19

_DMABUF_REGION_KERNEL = (5, 12)
"""The first kernel that registers memory regions of a dma-buf (ibv_reg_dmabuf_mr)."""


class Attach(Enum):
    """Yama's kernel.yama.ptrace_scope: who may reach into another process's memory."""

    CLASSIC = 0
    RESTRICTED = 1
    ADMIN_ONLY = 2
    NONE = 3


@dataclass(frozen=True, slots=True)
class Gpu:
    """A kernel driver for GPUs. `version` is "" when the driver does not tell. `open_module`: NVIDIA's open kernel
    modules, which export dma-bufs; the proprietary ones do not. `peer_memory`: nvidia_peermem is loaded."""

    driver: str
    version: str = ""
    open_module: bool = False
    peer_memory: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """Sizes are bytes. `locked_memory` is None when nothing limits it. `attach` is None when the kernel has no Yama,
    which is as CLASSIC. `transparent` is always, madvise or never, and "" when the kernel has none."""

    kernel: tuple[int, int]
    locked_memory: int | None
    huge_page: int
    huge_pages: int
    huge_pages_free: int
    transparent: str
    attach: Attach | None
    may_attach_any: bool
    gpus: tuple[Gpu, ...]
    cm_device: bool

    @property
    def dmabuf_regions(self) -> bool:
        """Whether the kernel registers dma-bufs; the device's driver must too."""
        return self.kernel >= _DMABUF_REGION_KERNEL


def read_machine(root: Path = Path("/"), *, locked_memory: int | None = None) -> Machine:
    """The machine as this process sees it. `locked_memory` stands in for this process's own limit when it is given.

    A process with CAP_IPC_LOCK has no limit of locked memory, whatever getrlimit says. Nothing is raised."""
    capabilities = _capabilities(_text(root / "proc/self/status"))
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] if locked_memory is None else locked_memory
    unlimited = limit == resource.RLIM_INFINITY or capabilities >> _CAP_IPC_LOCK & 1
    pages = dict(re.findall(r"^(\w+):\s+(\d+)", _text(root / "proc/meminfo"), re.MULTILINE))
    scope = _text(root / "proc/sys/kernel/yama/ptrace_scope")
    chosen = re.search(r"\[(\w+)\]", _text(root / "sys/kernel/mm/transparent_hugepage/enabled"))
    return Machine(
        kernel=kernel_version(_text(root / "proc/sys/kernel/osrelease")),
        locked_memory=None if unlimited else limit,
        huge_page=int(pages.get("Hugepagesize", 0)) << 10,
        huge_pages=int(pages.get("HugePages_Total", 0)),
        huge_pages_free=max(0, int(pages.get("HugePages_Free", 0)) - int(pages.get("HugePages_Rsvd", 0))),
        transparent=chosen[1] if chosen else "",
        attach=Attach(int(scope)) if scope in ("0", "1", "2", "3") else None,
        may_attach_any=bool(capabilities >> _CAP_SYS_PTRACE & 1),
        gpus=tuple(_gpus(root)),
        cm_device=os.access(root / "dev/infiniband/rdma_cm", os.R_OK | os.W_OK),
    )


def kernel_version(release: str) -> tuple[int, int]:
    """6.1 of 6.1.0-57-amd64; (0, 0) when it is no version."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _capabilities(status: str) -> int:
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return int(match[1], 16) if match else 0


def _gpus(root: Path) -> list[Gpu]:
    found = []
    banner = _text(root / "proc/driver/nvidia/version")
    if banner:
        version = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", banner)
        peer_memory = (root / "sys/module/nvidia_peermem").exists()
        found.append(Gpu("nvidia", version[1] if version else "", "Open Kernel Module" in banner, peer_memory))
    if (root / "sys/module/amdgpu").exists():
        found.append(Gpu("amdgpu", _text(root / "sys/module/amdgpu/version"), open_module=True))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
