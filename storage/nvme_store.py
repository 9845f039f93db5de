"""Payload files in one or more directories on local drives: which directory gets a payload, how it is found, deleted,
listed, checked and set aside. The file format is in `storage.payload_file`."""

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from uuid import UUID

from awscrt.checksums import crc32c  # type: ignore[import-untyped, unused-ignore]

from s3verbs.storage import payload_file
from s3verbs.storage.block_io import AlignedBuffers, write_error
from s3verbs.storage.errors import PayloadDamaged, StorageFull, StoreUnusable
from s3verbs.storage.model import BLOCK_SIZE, FilePayload
from s3verbs.storage.payload_directory import DirectoryUsage, PayloadDirectory, PayloadFile
from s3verbs.storage.payload_marker import Marker, Numbering, number_directories, read_marker, write_marker
from s3verbs.storage.payload_reader import NvmePayloadReader, inspect_file, open_for_reading
from s3verbs.storage.payload_writer import NvmePayloadWriter

FAILURE_PAUSE = 30.0
"""Seconds for which a directory that failed to write gets no new payload."""

_LOG = logging.getLogger(__name__)


class NvmePayloadStore:
    """A PayloadStore. Any thread; several processes may have the same directories open at once.

    Directories without a marker become new ones of the store, in the order given, unless `read_only`.
    """

    def __init__(
        self,
        directories: Sequence[Path],
        *,
        store_id: bytes,
        new_id: Callable[[], bytes],
        reserve_bytes: int = 64 << 20,
        read_only: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`store_id` is the store's UUID, 16 bytes; `new_id` gives payload ids of 16 bytes whose last bytes spread.
        `reserve_bytes` of each directory stay free, for metadata beside the payloads.

        Raises StoreUnusable when a directory is missing, another store's or cannot be written, StorageFull when a
        new one has no room for its subdirectories.
        """
        self._new_id = new_id
        self._reserve = reserve_bytes
        self._monotonic = monotonic
        self._buffers = AlignedBuffers(BLOCK_SIZE)
        self._paused_until: dict[int, float] = {}
        paths = [Path(path).resolve() for path in directories]
        numbering = _claim(paths, UUID(bytes=store_id), self._buffers, read_only=read_only)
        self._directories = {
            number: PayloadDirectory(number, path, self._buffers) for number, path in sorted(numbering.paths.items())
        }
        if not read_only:
            for directory in self._directories.values():
                try:
                    directory.abilities()
                except StorageFull:
                    # Reading and deleting must work on a full drive; the first create tries again.
                    _LOG.warning("payload directory %s is full", directory.path)

    @property
    def directories(self) -> dict[int, Path]:
        """Number and path of every directory."""
        return {number: directory.path for number, directory in self._directories.items()}

    # -- the port --
    def create(self, size_hint: int = 0, *, durable: bool = True) -> NvmePayloadWriter:
        """As the port says. Durable payloads are written with O_DIRECT where the file system has it, others through
        the page cache. Raises StorageFull, StorageBusy, StoreUnusable."""
        payload_id = self._new_id()
        wanted = payload_file.file_size(size_hint) if size_hint > 0 else 0
        failure: StorageFull | StoreUnusable | None = None
        for directory in self._candidates(payload_id, wanted):
            try:
                return NvmePayloadWriter(
                    directory,
                    payload_id,
                    self._buffers,
                    size_hint=size_hint,
                    durable=durable,
                    reserve_bytes=self._reserve,
                    on_failure=self._pause,
                )
            except StorageFull as error:
                failure = failure or error
            except StoreUnusable as error:
                self._pause(directory)
                failure = failure or error
        if failure is None:
            raise StorageFull(f"no payload directory can take {wanted} bytes and keep {self._reserve} free")
        raise failure

    def _candidates(self, payload_id: bytes, wanted: int) -> Iterator[PayloadDirectory]:
        """The directories with room, drawn at random with their free bytes as weights: equal drives share the load
        evenly, and an emptier one catches up without getting everything. The id is the source of chance."""
        now = self._monotonic()
        room: list[tuple[int, PayloadDirectory]] = []
        broken: StoreUnusable | None = None
        for directory in self._directories.values():
            if len(self._directories) > 1 and now < self._paused_until.get(directory.number, now):
                continue
            try:
                free = directory.free_bytes()
            except StoreUnusable as error:
                broken = error
                continue
            if free - wanted >= self._reserve and free > 0:
                room.append((free - self._reserve + 1, directory))
        if not room and broken is not None:
            raise broken
        chance = crc32c(payload_id) / 2**32
        while room:
            point = chance * sum(weight for weight, _ in room)
            chosen = len(room) - 1
            for index, (weight, _) in enumerate(room):
                if point < weight:
                    chosen = index
                    break
                point -= weight
            yield room.pop(chosen)[1]

    def _pause(self, directory: PayloadDirectory) -> None:
        _LOG.error("payload directory %s failed to write; it gets no payload for %d s", directory.path, FAILURE_PAUSE)
        self._paused_until[directory.number] = self._monotonic() + FAILURE_PAUSE

    def open(self, payload: FilePayload) -> NvmePayloadReader:
        """As the port says. Raises FileNotFoundError, PayloadDamaged, StorageBusy."""
        return NvmePayloadReader(self._directory(payload).file(payload.id), payload, self._buffers)

    def exists(self, payload: FilePayload) -> bool:
        """As the port says."""
        directory = self._directories.get(payload.directory)
        return directory is not None and os.access(directory.file(payload.id), os.F_OK)

    def sync(self, payloads: Sequence[FilePayload]) -> None:
        """As the port says."""
        folders: dict[str, tuple[PayloadDirectory, bytes]] = {}
        for payload in payloads:
            directory = self._directory(payload)
            descriptor = open_for_reading(directory.file(payload.id))
            try:
                os.fsync(descriptor)
            except OSError as error:
                raise write_error(error, directory.file(payload.id)) from error
            finally:
                os.close(descriptor)
            folders[directory.folder(payload.id)] = directory, payload.id
        for path, (directory, payload_id) in folders.items():
            try:
                directory.sync(payload_id)
            except OSError as error:
                raise write_error(error, path) from error

    def delete(self, payloads: list[FilePayload]) -> list[FilePayload]:
        """As the port says. A file that cannot be unlinked (an I/O error, a read-only mount) is not returned.

        Not synced: a name that a power cut brings back is an orphan, which the sweep takes away.
        """
        if len(payloads) < 2:
            return [payload for payload in payloads if self._unlink(payload)]
        first = payloads[0]
        try:
            descriptor = open_for_reading(self._directory(first).file(first.id))
        except FileNotFoundError:
            return [payload for payload in payloads if self._unlink(payload)]
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Last, so that a deletion cut short is found and finished under the same lock.
            done = [payload for payload in payloads[1:] if self._unlink(payload)]
            if len(done) == len(payloads) - 1 and self._unlink(first):
                done.insert(0, first)
        except BlockingIOError:
            return []
        else:
            return done
        finally:
            os.close(descriptor)

    def _unlink(self, payload: FilePayload) -> bool:
        path = Path(self._directory(payload).file(payload.id))
        try:
            path.unlink()
        except FileNotFoundError:
            return True
        except OSError as error:
            _LOG.error("cannot delete %s: %s", path, error.strerror)
            return False
        return True

    def _directory(self, payload: FilePayload) -> PayloadDirectory:
        try:
            return self._directories[payload.directory]
        except KeyError:
            raise PayloadDamaged(
                f"payload {payload.id.hex()} is recorded in directory {payload.directory}, which the store has not"
            ) from None

    def close(self) -> None:
        """Release idle buffers. Open readers and writers stay valid."""
        self._buffers.close()

    # -- upkeep --
    def files(self, directory: int) -> Iterator[PayloadFile]:
        """Every sealed file of a directory, in no order. Blocking, one subdirectory at a time. A file that is being
        published has no record yet: compare `mtime_ns` before calling it an orphan."""
        return self._directories[directory].files()

    def inspect(self, path: Path, *, data: bool = True) -> FilePayload:
        """What a payload file says it is, without its record. With `data`, every byte is compared with its checksums;
        without, only the footer. Blocking. Raises FileNotFoundError, PayloadDamaged, StorageBusy."""
        return inspect_file(path, self._owner(path).number, self._buffers, data=data)

    def quarantine(self, path: Path) -> Path:
        """Move a file into `quarantine/` of its directory; the new path. Nothing is deleted or overwritten.
        Raises StorageFull, StoreUnusable."""
        return self._owner(path).quarantine(path)

    def remove_unsealed(self) -> int:
        """Unlink the files that dead writers left where the file system has no O_TMPFILE; how many. Blocking."""
        removed = 0
        for directory in self._directories.values():
            for path in directory.unsealed():
                removed += _remove_unlocked(path)
        return removed

    def _owner(self, path: Path) -> PayloadDirectory:
        home = path.parent.parent.resolve()
        for directory in self._directories.values():
            if home == directory.path:
                return directory
        raise ValueError(f"{path} is in none of the payload directories")

    # -- metrics --
    def usage(self) -> list[DirectoryUsage]:
        """Capacity and free bytes of every directory. Raises StoreUnusable."""
        return [directory.usage() for directory in self._directories.values()]

    def capacity_bytes(self) -> int:
        """The size of all file systems the directories are on, each counted once. Raises StoreUnusable."""
        return sum(usage.capacity_bytes for usage in self._file_systems())

    def free_bytes(self) -> int:
        """The free bytes of all these file systems, reserve included. Raises StoreUnusable."""
        return sum(usage.free_bytes for usage in self._file_systems())

    def _file_systems(self) -> list[DirectoryUsage]:
        return list({directory.device(): directory.usage() for directory in self._directories.values()}.values())


def _remove_unlocked(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return 0
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except (BlockingIOError, FileNotFoundError):
        return 0
    finally:
        os.close(descriptor)
    return 1


def _claim(paths: list[Path], store: UUID, buffers: AlignedBuffers, *, read_only: bool) -> Numbering:
    """Number the directories and write the markers that are wanting. Several processes may do this at once: a marker
    is made by link, so one of them wins and the others look again."""
    while True:
        numbering = number_directories(paths, [read_marker(path) for path in paths], store)
        if read_only:
            if numbering.added:
                blank = ", ".join(str(numbering.paths[number]) for number in numbering.added)
                raise StoreUnusable(f"{blank} is not a payload directory; the store is opened for reading only")
            return numbering
        try:
            # In ascending order, each marker with the count so far: a crash in between leaves directories that the
            # next start can number on from.
            for number in numbering.added:
                PayloadDirectory(number, numbering.paths[number], buffers).prepare()
                write_marker(numbering.paths[number], Marker(store, number, number + 1), replace=False)
        except FileExistsError:
            continue
        total = len(numbering.paths)
        for number in (*numbering.outdated, *numbering.added):
            if number + 1 < total or number in numbering.outdated:
                write_marker(numbering.paths[number], Marker(store, number, total), replace=True)
        return numbering
