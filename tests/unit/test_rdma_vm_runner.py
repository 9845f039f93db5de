"""The parts of the virtual machine's runner that need no virtual machine."""

import gzip
import lzma
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rdma_vm import guest, kernel, packages

NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789_.", min_size=1, max_size=40)


def entries(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """A reader of the newc format: mode and data by name."""
    found = {}
    position = 0
    while True:
        assert archive[position : position + 6] == b"070701"
        fields = [int(archive[position + 6 + 8 * i : position + 14 + 8 * i], 16) for i in range(13)]
        mode, size, name_size = fields[1], fields[6], fields[11]
        begin = position + 110
        name = archive[begin : begin + name_size - 1].decode()
        data = begin + name_size + -(begin + name_size) % 4
        if name == "TRAILER!!!":
            return found
        found[name] = (mode, archive[data : data + size])
        position = data + size + -(data + size) % 4


@given(st.dictionaries(NAMES, st.binary(max_size=100)))
def test_an_archive_gives_back_its_files(files: dict[str, bytes]) -> None:
    archive = kernel.Archive()
    archive.folder("bin")
    for name, data in files.items():
        archive.file(f"bin/{name}", data, 0o755)
    read = entries(archive.finish())
    assert read.pop("bin") == (0o040755, b"")
    assert read == {f"bin/{name}": (0o100755, data) for name, data in files.items()}


def image(payload: bytes, setup_sectors: int) -> bytes:
    head = bytearray(((setup_sectors or 4) + 1) * 512)
    head[0x1F1] = setup_sectors
    struct.pack_into("<II", head, 0x248, 16, len(payload))
    return bytes(head) + bytes(16) + payload + b"what follows"


@pytest.mark.parametrize("pack", [lzma.compress, gzip.compress])
@pytest.mark.parametrize("setup_sectors", [0, 31])
def test_the_kernel_is_taken_out_of_its_image(pack: object, setup_sectors: int) -> None:
    elf = b"\x7fELF" + bytes(range(256)) * 20
    assert kernel.unpack_image(image(pack(elf), setup_sectors)) == elf  # type: ignore[operator]


def test_an_image_without_a_kernel_is_refused() -> None:
    with pytest.raises(packages.Missing):
        kernel.unpack_image(image(gzip.compress(b"no program"), 4))


def test_modules_come_after_those_that_they_need(tmp_path: Path) -> None:
    folder = tmp_path / "kernel" / "drivers"
    folder.mkdir(parents=True)
    needs = {"rdma_rxe": "ib-core,udp_tunnel", "ib_core": "", "udp_tunnel": "ib_core", "other": ""}
    for name, depends in needs.items():
        text = b"\0license=GPL\0depends=" + depends.encode() + b"\0name=x\0"
        path = folder / f"{name.replace('_', '-')}.ko.xz"
        path.write_bytes(lzma.compress(text))
    order = kernel._in_order(("built_in", "rdma_rxe", "ib_core"), kernel._index(tmp_path))
    assert [kernel._name(path) for path in order] == ["ib_core", "udp_tunnel", "rdma_rxe"]


def test_the_command_arrives_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    awkward = ["a b", "$HOME", "it's", '"', "*", "\n", ""]
    monkeypatch.setenv("S3VERBS_TEST_VALUE", " ".join(awkward))
    guest._fill(tmp_path, ["printf", "<%s>", *awkward], {"S3VERBS_TEST_EXTRA": "x y"})
    script = tmp_path / "command.sh"
    result = subprocess.run(["sh", str(script)], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert result.stdout == "".join(f"<{word}>" for word in awkward)
    assert "export S3VERBS_TEST_EXTRA='x y'" in script.read_text()
    assert script.stat().st_mode & 0o077 == 0
