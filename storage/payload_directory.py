"""One payload directory: its 256 subdirectories, what its file system can do, its free space and its files."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from s3verbs.storage.block_io import AlignedBuffers, preallocate, write_error
from s3verbs.storage.directory_sync import DirectorySync, sync_directory
from s3verbs.storage.errors import StorageFull, StoreUnusable
from s3verbs.storage.payload_file import ALIGNMENT, fan_out, file_name, parse_name
from s3verbs.storage.payload_marker import MARKER_NAME

FAN_OUT = tuple(f"{number:02x}" for number in range(256))
QUARANTINE = "quarantine"
UNSEALED_SUFFIX = ".unsealed"
"""Ends the name of a file that is being written where the file system has no O_TMPFILE."""

_UNLIMITED = 1 << 60
_NO_TMPFILE = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL, errno.EPERM, errno.EXDEV})


class PayloadFile(NamedTuple):
    """A sealed file found on disk. `size` is that of the file, footer included."""

    id: bytes
    path: Path
    size: int
    mtime_ns: int


class DirectoryUsage(NamedTuple):
    """`free_bytes` is what an ordinary user may still write."""

    number: int
    path: Path
    capacity_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the file system can do: `unnamed` files (O_TMPFILE and linkat), `direct` I/O, `preallocate`."""

    unnamed: bool
    direct: bool
    preallocate: bool


class PayloadDirectory:
    """Paths, probes and space of one directory. Any thread."""

    def __init__(self, number: int, path: Path, buffers: AlignedBuffers) -> None:
        self.number = number
        self.path = path
        self._buffers = buffers
        self._abilities: Abilities | None = None
        self._probing = threading.Lock()
        self._syncs = {name: DirectorySync(path / name) for name in FAN_OUT}
        self._fan_out_paths = {name: str(path / name) for name in FAN_OUT}

    # -- layout --
    def prepare(self) -> None:
        """Make the subdirectories, durably. Refuses a directory that holds payloads of a lost marker.
        Raises FileExistsError when there is a marker after all, StorageFull, StoreUnusable."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for name in (*FAN_OUT, QUARANTINE):
                (self.path / name).mkdir(exist_ok=True)
            sync_directory(self.path)
            sync_directory(self.path.parent)
        except OSError as error:
            raise write_error(error, str(self.path)) from error
        if next(self.files(), None) is not None:
            if (self.path / MARKER_NAME).exists():
                raise FileExistsError(self.path / MARKER_NAME)
            raise StoreUnusable(
                f"{self.path} holds payload files but no {MARKER_NAME}; restore the marker, or give an empty directory"
            )

    def restore_fan_out(self, payload_id: bytes) -> bool:
        """Make a subdirectory again that a copy or a restore left out because it was empty. False when the marker is
        gone too, as it is when the drive is not mounted. Raises OSError."""
        if not (self.path / MARKER_NAME).exists():
            return False
        (self.path / fan_out(payload_id)).mkdir(exist_ok=True)
        sync_directory(self.path)
        return True

    def folder(self, payload_id: bytes) -> str:
        """The subdirectory of a payload."""
        return self._fan_out_paths[fan_out(payload_id)]

    def file(self, payload_id: bytes) -> str:
        """The path of a payload's file."""
        return f"{self._fan_out_paths[fan_out(payload_id)]}/{file_name(payload_id)}"

    def sync(self, payload_id: bytes) -> None:
        """Make the entry of a payload durable; shared with other threads. Raises OSError."""
        self._syncs[fan_out(payload_id)].sync()

    # -- abilities --
    def abilities(self) -> Abilities:
        """Tried once, by writing a file as a payload is written. Raises StorageFull when there is no room to try,
        StoreUnusable when the directory cannot be written."""
        if self._abilities is None:
            with self._probing:
                if self._abilities is None:
                    try:
                        self._abilities = self._probe()
                    except OSError as error:
                        raise write_error(error, str(self.path)) from error
        return self._abilities

    def _probe(self) -> Abilities:
        folder = self.path / FAN_OUT[0]
        folder.mkdir(exist_ok=True)
        name = folder / f"probe-{os.getpid()}-{threading.get_ident()}{UNSEALED_SUFFIX}"
        unnamed = True
        try:
            descriptor = os.open(folder, os.O_RDWR | os.O_TMPFILE, 0o600)
        except OSError as error:
            if error.errno not in _NO_TMPFILE:
                raise
            unnamed = False
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            can_preallocate = preallocate(descriptor, ALIGNMENT)
            if unnamed:
                try:
                    link_descriptor(descriptor, str(name))
                except OSError as error:
                    if error.errno not in _NO_TMPFILE:
                        raise
                    unnamed = False
                    os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            return Abilities(unnamed, self._probe_direct(str(name)), can_preallocate)
        finally:
            os.close(descriptor)
            name.unlink(missing_ok=True)

    def _probe_direct(self, name: str) -> bool:
        try:
            descriptor = os.open(name, os.O_RDWR | os.O_DIRECT)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return False
            raise
        buffer = self._buffers.acquire()
        try:
            with memoryview(buffer) as view:
                os.pwrite(descriptor, view[:ALIGNMENT], 0)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return False
            raise
        finally:
            self._buffers.release(buffer)
            os.close(descriptor)
        return True

    # -- space --
    def usage(self) -> DirectoryUsage:
        """Raises StoreUnusable when the drive does not answer."""
        try:
            state = os.statvfs(self.path)
        except OSError as error:
            raise write_error(error, str(self.path)) from error
        # A tmpfs without a limit reports no blocks at all.
        free = state.f_bavail * state.f_frsize if state.f_blocks else _UNLIMITED
        return DirectoryUsage(self.number, self.path, state.f_blocks * state.f_frsize, free)

    def free_bytes(self) -> int:
        """What may still be written. Raises StoreUnusable."""
        return self.usage().free_bytes

    def require_room(self, wanted: int, reserve: int) -> int:
        """The free bytes. Raises StorageFull when `wanted` more would leave less than `reserve`, StoreUnusable."""
        free = self.free_bytes()
        if free - wanted < reserve:
            raise StorageFull(f"{self.path}: {free} bytes free, {reserve} of them reserved, {wanted} wanted")
        return free

    def device(self) -> int:
        """The number of the file system. Raises OSError."""
        return self.path.stat().st_dev

    # -- upkeep --
    def files(self) -> Iterator[PayloadFile]:
        """Every sealed file, subdirectory by subdirectory; files that go meanwhile may be left out."""
        for name in FAN_OUT:
            with suppress(FileNotFoundError), os.scandir(self.path / name) as entries:
                for entry in entries:
                    payload_id = parse_name(entry.name)
                    if payload_id is None or fan_out(payload_id) != name:
                        continue
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        yield PayloadFile(payload_id, Path(entry.path), status.st_size, status.st_mtime_ns)

    def unsealed(self) -> Iterator[Path]:
        """Files with the suffix of one that is being written: those of a live writer are locked."""
        for name in FAN_OUT:
            with suppress(FileNotFoundError), os.scandir(self.path / name) as entries:
                yield from (Path(entry.path) for entry in entries if entry.name.endswith(UNSEALED_SUFFIX))

    def quarantine(self, path: Path) -> Path:
        """Move a file of this directory out of the way; where it lies then. Raises StorageFull, StoreUnusable."""
        target = self.path / QUARANTINE / path.name
        suffix = 0
        try:
            target.parent.mkdir(exist_ok=True)
            while target.exists():
                suffix += 1
                target = target.with_name(f"{path.name}.{suffix}")
            path.rename(target)
            sync_directory(target.parent)
            sync_directory(path.parent)
        except OSError as error:
            raise write_error(error, str(path)) from error
        return target


def link_descriptor(descriptor: int, path: str) -> None:
    """Give an unnamed file a name: linkat of /proc/self/fd, as open(2) describes for O_TMPFILE. Raises OSError."""
    # Without a dir_fd Python calls link(), which does not follow the symlink; both paths are absolute, so it is unused.
    os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)
