"""The guest's kernel: Debian's own, downloaded and unpacked, with an initramfs that holds the modules for Soft-RoCE.

Nothing is installed on the host. The result is two files, made once and kept in the cache:

    vmlinux     uncompressed, which QEMU starts directly; under emulation the kernel's own unpacking takes seconds
    initramfs   a static busybox, `init.sh`, and the modules in the order in which they are loaded
"""

import hashlib
import lzma
import re
import shutil
import stat
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.rdma_vm import packages
from tests.rdma_vm.packages import Missing

HERE = Path(__file__).resolve().parent

ROOT_MODULES = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay")
"""Needed before the host's root file system is there."""

RDMA_MODULES = ("veth", "crc32_generic", "crc32_pclmul", "ib_uverbs", "rdma_cm", "rdma_ucm", "rdma_rxe")
"""crc32_* is what rdma_rxe asks the crypto layer for; no dependency names it."""

_PART_OF_KERNEL = re.compile(r"Depends: (linux-(?:image|binary|modules)-[0-9]\S*)")
_COMPRESSED = {".xz": lzma.decompress, ".zst": lambda data: _zstd(data)}


@dataclass(frozen=True)
class Kernel:
    """`release` is what `uname -r` says in the guest."""

    release: str
    image: Path
    initramfs: Path


def ensure(cache: Path) -> Kernel:
    """The kernel of this distribution, downloaded first if need be. Raises Missing."""
    folder = cache / f"kernel-{_recipe()}"
    stamp = folder / "release"
    if not stamp.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            release = _make(folder, Path(scratch))
        stamp.write_text(release)
    return Kernel(stamp.read_text(), folder / "vmlinux", folder / "initramfs")


def _recipe() -> str:
    """Changes with everything that the two files are made by."""
    parts = (Path(__file__).read_bytes(), (HERE / "init.sh").read_bytes(), str(packages.distribution()).encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _make(folder: Path, scratch: Path) -> str:
    root = scratch / "root"
    for archive in packages.download(_kernel_packages(), scratch / "archives"):
        packages.unpack(archive, root)
    modules = next((root / place for place in ("lib/modules", "usr/lib/modules") if (root / place).is_dir()), None)
    if modules is None:
        raise Missing("the kernel's package holds no modules")
    tree = next(modules.iterdir())
    images = (root / "boot" / f"vmlinuz-{tree.name}", tree / "vmlinuz")
    packed = next(path for path in images if path.exists())
    (folder / "vmlinux").write_bytes(unpack_image(packed.read_bytes()))
    (folder / "initramfs").write_bytes(_initramfs(tree))
    return tree.name


def _kernel_packages() -> list[str]:
    """The packages behind linux-image-amd64: one for image and modules, or several in newer releases."""
    found: list[str] = []
    for name in _PART_OF_KERNEL.findall(packages.dependencies("linux-image-amd64")):
        found += [name, *_PART_OF_KERNEL.findall(packages.dependencies(name))]
    if not found:
        raise Missing("apt knows no linux-image-amd64: this needs Debian, and `apt-get update` once")
    return list(dict.fromkeys(found))


def unpack_image(image: bytes) -> bytes:
    """The ELF kernel in a bzImage. Source: the x86 boot protocol's setup_sects, payload_offset, payload_length."""
    offset, length = struct.unpack_from("<II", image, 0x248)
    begin = ((image[0x1F1] or 4) + 1) * 512 + offset
    payload = image[begin : begin + length]
    if payload.startswith(b"\xfd7zXZ\0"):
        kernel = lzma.LZMADecompressor().decompress(payload)
    elif payload.startswith(b"\x28\xb5\x2f\xfd"):
        # The last four bytes are the unpacked size, which zstd would take for a broken second frame.
        kernel = _zstd(payload[:-4])
    else:
        kernel = zlib.decompressobj(31).decompress(payload)
    if not kernel.startswith(b"\x7fELF"):
        raise Missing("the kernel's image is packed in a way that is not known here")
    return kernel


def _zstd(data: bytes) -> bytes:
    packages.need("zstd", "zstd")
    return subprocess.run(["zstd", "-qdc"], input=data, stdout=subprocess.PIPE, check=True).stdout


def _initramfs(tree: Path) -> bytes:
    archive = Archive()
    for folder in ("bin", "modules", "proc", "sys", "dev", "host", "memory", "guest"):
        archive.folder(folder)
    archive.file("bin/busybox", packages.static_busybox().read_bytes(), 0o755)
    archive.file("init", (HERE / "init.sh").read_bytes(), 0o755)
    index = _index(tree)
    for stage, names in (("root", ROOT_MODULES), ("rdma", RDMA_MODULES)):
        order = list(_in_order(names, index))
        for path in order:
            archive.file(f"modules/{_name(path)}", _module(path), 0o644)
        archive.file(f"modules/{stage}.order", "".join(f"{_name(path)}\n" for path in order).encode(), 0o644)
    return archive.finish()


def _index(tree: Path) -> dict[str, Path]:
    return {_name(path): path for path in (tree / "kernel").rglob("*.ko*")}


def _name(path: Path) -> str:
    return path.name.partition(".ko")[0].replace("-", "_")


def _module(path: Path) -> bytes:
    unpack = _COMPRESSED.get(path.suffix)
    return unpack(path.read_bytes()) if unpack else path.read_bytes()


def _in_order(names: Sequence[str], index: dict[str, Path]) -> Iterator[Path]:
    """Each module after those that it depends on, which its `.modinfo` names. What is built in has no file."""
    seen: set[str] = set()

    def walk(name: str) -> Iterator[Path]:
        if name in seen or name not in index:
            return
        seen.add(name)
        found = re.search(rb"\0depends=([^\0]*)\0", _module(index[name]))
        for needed in found[1].decode().split(",") if found else ():
            yield from walk(needed.replace("-", "_"))
        yield index[name]

    for name in names:
        yield from walk(name)


class Archive:
    """A cpio archive in the "newc" format that the kernel unpacks. Source: initramfs buffer format, kernel docs."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._count = 0

    def folder(self, name: str) -> None:
        self._entry(name, stat.S_IFDIR | 0o755, b"")

    def file(self, name: str, data: bytes, mode: int) -> None:
        self._entry(name, stat.S_IFREG | mode, data)

    def finish(self) -> bytes:
        self._entry("TRAILER!!!", 0, b"")
        return b"".join(self._pieces)

    def _entry(self, name: str, mode: int, data: bytes) -> None:
        self._count += 1
        path = name.encode() + b"\0"
        fields = (self._count, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + path
        for piece in (head, data):
            self._pieces += [piece, bytes(-len(piece) % 4)]
