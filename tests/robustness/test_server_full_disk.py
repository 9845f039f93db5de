"""A server on a disk without room, without inodes, and with a metadata map that starts tiny."""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.endpoint import BUCKET, Endpoint, Response, Wire, run
from tests.robustness.server_load import Value, begin_upload, complete_upload, continue_upload, listed, look
from tests.robustness.server_state import wait_until

MIB = 1 << 20
RESERVE = 4 * MIB


def free(disk: Path) -> int:
    status = os.statvfs(disk)
    return status.f_bavail * status.f_frsize


def _run(*command: str) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip(f"needs root to mount a file system, and {command[0]}")
    except subprocess.CalledProcessError as failure:
        pytest.skip(f"needs root to mount a file system: {failure.stderr.strip()}")


Disk = Callable[..., Path]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """disk(kind, size, inodes) mounts a file system; it is unmounted at the end, after the server."""
    mounted: list[Path] = []

    def make(kind: str, size: int, inodes: int = 0) -> Path:
        point = tmp_path / f"disk{len(mounted)}"
        point.mkdir()
        if kind == "tmpfs":
            _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(point))
        else:
            mkfs = shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
            if mkfs is None:
                pytest.skip("mkfs.ext4 is not installed: apt-get install e2fsprogs")
            image = tmp_path / f"image{len(mounted)}"
            with image.open("wb") as file:
                file.truncate(size)
            options = ["-N", str(inodes)] if inodes else []
            _run(mkfs, "-q", "-F", "-m", "0", *options, str(image))
            _run("mount", "-o", "loop", str(image), str(point))
        mounted.append(point)
        return point

    yield make
    for point in mounted:
        subprocess.run(["umount", str(point)], check=True)


def serving(data: Path, *arguments: str, workers: int = 2) -> Endpoint:
    return Endpoint(data, "--reserve-bytes", str(RESERVE), *arguments, workers=workers)


def fill(wire: Wire, size: int, prefix: str = "fill") -> tuple[dict[str, Value], Response]:
    """PUT until one is refused; what was stored, and the refusal."""
    stored: dict[str, Value] = {}
    while True:
        key, value = f"{prefix}/{len(stored):05d}", Value(len(stored) + 1, (size,))
        response = wire.request("PUT", f"/{BUCKET}/{key}", value.body, x_amz_content_sha256="UNSIGNED-PAYLOAD")
        if response.status != 200:
            return stored, response
        stored[key] = value
        assert len(stored) < 5000


def is_full(response: Response) -> bool:
    return (
        response.status == 507
        and response.code == "InsufficientStorage"
        and response.headers["content-type"] == "application/xml"
        and response.headers["x-amz-request-id"].encode() in response.body
    )


@pytest.mark.parametrize(
    ("kind", "size"),
    [("ext4", 300_000), ("tmpfs", 3 * MIB)],
    ids=["ext4, a body that is drained", "tmpfs, a body too large to drain"],
)
def test_a_full_disk_answers_507_and_deleting_makes_room_again(disk: Disk, kind: str, size: int) -> None:
    point = disk(kind, 64 * MIB)
    with serving(point / "data") as endpoint:
        with endpoint.connect() as wire:
            stored, refusal = fill(wire, size)
            assert is_full(refusal)
            assert len(stored) > 5
            # A small body is drained and the connection goes on, a large one ends it after the answer.
            assert refusal.keeps_alive == (size <= MIB)
            if not refusal.keeps_alive:
                assert wire.closed()
        with endpoint.connect() as wire:
            for key, value in stored.items():
                look(wire, key, [value])
            _everything_that_stores_says_full(endpoint, stored, size)
            _take_the_rest(point)
            assert wire.request("HEAD", f"/{BUCKET}/fill/00000").status == 200
            doomed = list(stored)[: len(stored) // 2]
            for key in doomed:
                assert wire.request("DELETE", f"/{BUCKET}/{key}").status == 204
                look(wire, key, [None])
            (point / "junk").unlink()
            assert wait_until(lambda: free(point) > RESERVE + size * (len(doomed) - 1))
            again = Value(77, (size,))
            assert wait_until(lambda: wire.request("PUT", f"/{BUCKET}/again", again.body).status == 200)
            look(wire, "again", [again])
            assert set(listed(wire)) == {*stored, "again"} - set(doomed)
        assert "Traceback" not in endpoint.errors
        assert endpoint.stop() == 0
        checked = run(
            "admin", "check", "--read-payloads", "--data", str(point / "data"), "--reserve-bytes", str(RESERVE)
        )
        assert checked.returncode == 0, checked.stdout


def _everything_that_stores_says_full(endpoint: Endpoint, stored: dict[str, Value], size: int) -> None:
    """And changes nothing."""
    key, value = next(iter(stored.items()))
    with endpoint.connect() as wire:
        assert is_full(wire.request("PUT", f"/{BUCKET}/{key}", b"other" * (size // 5)))
    with endpoint.connect() as wire:
        look(wire, key, [value])
        assert is_full(wire.request("PUT", f"/{BUCKET}/copy", x_amz_copy_source=f"/{BUCKET}/{key}"))
        look(wire, "copy", [None])
        upload = begin_upload(wire, "upload", Value(5, (size,), multipart=True))
        if upload is not None:
            refused = continue_upload(wire, upload)
            assert refused is not None
            assert is_full(refused)
    if upload is not None:
        with endpoint.connect() as wire:
            assert wire.request("DELETE", f"/{BUCKET}/upload?uploadId={upload.id}").status == 204


def _take_the_rest(point: Path) -> None:
    """Fill the disk to its last block, beside the server."""
    with (point / "junk").open("wb", buffering=0) as junk:
        while free(point):
            junk.write(bytes(1024))
    assert free(point) == 0


def test_small_objects_fill_a_disk_to_507_and_can_be_deleted_at_100_percent(disk: Disk) -> None:
    point = disk("ext4", 26 * MIB)
    with serving(point / "data", "--map-bytes", "16MiB") as endpoint, endpoint.connect() as wire:
        stored, refusal = fill(wire, 16_000)
        assert is_full(refusal)
        assert refusal.keeps_alive
        _take_the_rest(point)
        for key in stored:
            assert wire.request("DELETE", f"/{BUCKET}/{key}").status == 204
        (point / "junk").unlink()
        assert wait_until(lambda: wire.request("PUT", f"/{BUCKET}/again", b"a" * 16_000).status == 200)
        assert list(listed(wire)) == ["again"]
        assert "Traceback" not in endpoint.errors


def test_a_disk_without_inodes_answers_507_and_recovers(disk: Disk) -> None:
    point = disk("ext4", 64 * MIB, inodes=340)
    with serving(point / "data") as endpoint, endpoint.connect() as wire:
        stored, refusal = fill(wire, 20_000)
        assert is_full(refusal)
        assert os.statvfs(point).f_favail == 0, "the inodes were to run out, not the bytes"
        assert wire.request("PUT", f"/{BUCKET}/inline", b"needs no inode").status == 200
        for key, value in stored.items():
            look(wire, key, [value])
            assert wire.request("DELETE", f"/{BUCKET}/{key}").status == 204
        assert wait_until(lambda: wire.request("PUT", f"/{BUCKET}/again", b"a" * 20_000).status == 200)
        assert "Traceback" not in endpoint.errors


def test_a_server_starts_on_a_full_disk_to_read_and_delete(disk: Disk) -> None:
    point = disk("ext4", 48 * MIB)
    with serving(point / "data") as endpoint:
        with endpoint.connect() as wire:
            stored, _ = fill(wire, MIB)
        endpoint.stop()
        _take_the_rest(point)
        endpoint.start()
        with endpoint.connect() as wire:
            for key, value in stored.items():
                look(wire, key, [value])
                assert wire.request("DELETE", f"/{BUCKET}/{key}").status == 204
            (point / "junk").unlink()
            assert wait_until(lambda: wire.request("PUT", f"/{BUCKET}/again", b"a" * MIB).status == 200)


def test_an_upload_whose_parts_fit_completes_on_a_full_disk(disk: Disk) -> None:
    """Complete takes no payload room: only metadata, which the reserve is for."""
    point = disk("tmpfs", 64 * MIB)
    with serving(point / "data") as endpoint, endpoint.connect() as wire:
        value = Value(3, (5 * MIB, 100_000), multipart=True)
        upload = begin_upload(wire, "upload", value)
        assert upload is not None
        assert continue_upload(wire, upload) is None
        fill(wire, 300_000)
        completed = complete_upload(wire, upload)
        if completed.status != 200:
            assert is_full(completed)
            wire.request("DELETE", f"/{BUCKET}/fill/00000")
            assert wait_until(lambda: complete_upload(wire, upload).status == 200)
        look(wire, "upload", [value])


def test_the_metadata_map_grows_under_load_of_two_workers(tmp_path: Path) -> None:
    """16 MiB at first, 34 MiB of inline objects: it doubles twice while both workers write."""
    refusals: list[str] = []
    stored: dict[str, Value] = {}

    def write(number: int) -> None:
        with endpoint.connect() as wire:
            for index in range(350):
                key, value = f"g{number}/{index:04d}", Value(number * 1000 + index, (16_384,))
                response = wire.request("PUT", f"/{BUCKET}/{key}", value.body, x_amz_content_sha256="UNSIGNED-PAYLOAD")
                if response.status != 200:
                    refusals.append(f"{response.status} {response.code}")
                stored[key] = value

    with Endpoint(tmp_path / "data", "--map-bytes", "16MiB", workers=2) as endpoint:
        threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not refusals
        assert (tmp_path / "data" / "metadata" / "data.mdb").stat().st_size > 32 * MIB
        with endpoint.connect() as wire:
            assert listed(wire).keys() == stored.keys()
            for key in list(stored)[::97]:
                look(wire, key, [stored[key]])
        assert "Traceback" not in endpoint.errors
        assert endpoint.stop() == 0


def test_a_full_disk_that_also_holds_the_temporary_files_takes_no_worker_down(disk: Disk) -> None:
    """A page that a full disk cannot give to a shared mapping is a SIGBUS for whoever writes it."""
    point = disk("ext4", 48 * MIB)
    (point / "tmp").mkdir()
    with Endpoint(
        point / "data", "--reserve-bytes", str(RESERVE), workers=2, env={"TMPDIR": str(point / "tmp")}
    ) as endpoint:
        with endpoint.connect() as wire:
            stored, _ = fill(wire, MIB)
        _take_the_rest(point)
        os.kill(endpoint.worker_pids[0], signal.SIGKILL)
        assert wait_until(lambda: "died" in endpoint.errors)
        for key in stored:
            with endpoint.connect() as wire:
                for request in ("GET", "HEAD", "DELETE"):
                    assert wire.request(request, f"/{BUCKET}/{key}").status in (200, 204)
                assert wire.request("GET", f"/{BUCKET}/{key}?tagging=").status in (404, 501)
        assert endpoint.errors.count("died") == 1, endpoint.errors
