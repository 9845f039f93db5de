"""Writing one payload file: aligned writes, running checksums, footer, name, sync."""

import fcntl
import mmap
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from awscrt.checksums import crc32c, crc64nvme  # type: ignore[import-untyped, unused-ignore]

from s3verbs.storage import payload_file
from s3verbs.storage.block_io import AlignedBuffers, is_aligned, preallocate, write_all, write_error
from s3verbs.storage.errors import StorageError, StoreUnusable
from s3verbs.storage.model import BLOCK_SIZE, FilePayload
from s3verbs.storage.payload_directory import UNSEALED_SUFFIX, PayloadDirectory, link_descriptor
from s3verbs.storage.payload_file import ALIGNMENT, Footer


class NvmePayloadWriter:
    """A PayloadWriter. Crash order: the file has no name before its last byte is written.

    A sealed payload is linked first and synced then, so that one journal commit covers data and name. A power cut in
    between may leave a name whose bytes are not there; no record refers to it yet, so the sweep takes it away.
    """

    def __init__(
        self,
        directory: PayloadDirectory,
        payload_id: bytes,
        buffers: AlignedBuffers,
        *,
        size_hint: int,
        durable: bool,
        reserve_bytes: int,
        on_failure: Callable[[PayloadDirectory], None],
    ) -> None:
        """Opens the file and takes its room. Raises StorageFull, StorageBusy, StoreUnusable."""
        abilities = directory.abilities()
        self._directory = directory
        self._id = payload_id
        self._buffers = buffers
        self._reserve = reserve_bytes
        self._on_failure = on_failure
        self._direct = durable and abilities.direct
        self._lock = threading.Lock()
        self._unwanted = False
        self._staging: mmap.mmap | None = None
        self._staged = 0
        self._written = 0
        self._length = 0
        self._allocated = 0
        self._crc64 = 0
        self._blocks: list[int] = []
        self._block_crc = 0
        self._name = "" if abilities.unnamed else directory.file(payload_id) + UNSEALED_SUFFIX
        self._descriptor = -1
        try:
            self._open()
            if size_hint > 0 and abilities.preallocate:
                size = payload_file.file_size(size_hint)
                if preallocate(self._descriptor, size):
                    self._allocated = size
        except OSError as error:
            self._drop()
            raise write_error(error, str(directory.path)) from error

    def _open(self) -> None:
        try:
            self._descriptor = self._open_once()
        except FileNotFoundError:
            if not self._directory.restore_fan_out(self._id):
                raise
            self._descriptor = self._open_once()

    def _open_once(self) -> int:
        mode = os.O_DIRECT if self._direct else 0
        if not self._name:
            return os.open(self._directory.folder(self._id), os.O_RDWR | os.O_TMPFILE | mode, 0o600)
        descriptor = os.open(self._name, os.O_RDWR | os.O_CREAT | os.O_EXCL | mode, 0o600)
        # The lock tells the sweep that this file is being written.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return descriptor

    def write(self, chunk: memoryview) -> None:
        """As the port says. Cost: two CRCs and one pwrite per chunk, no copy when it is page-aligned."""
        with self._lock:
            self._check_open()
            try:
                self._write(chunk if chunk.format == "B" and chunk.ndim == 1 else chunk.cast("B"))
            except OSError as error:
                raise self._failed(error) from error
            except BaseException:
                self._drop()
                raise
        self._finish_discard()

    def _write(self, chunk: memoryview) -> None:
        self._checksum(chunk)
        self._length += len(chunk)
        if self._written + self._staged + len(chunk) > self._allocated:
            self._directory.require_room(len(chunk), self._reserve)
        if not self._direct:
            write_all(self._descriptor, chunk, self._written, direct=False)
            self._written += len(chunk)
            return
        if self._staged == 0 and len(chunk) >= ALIGNMENT and is_aligned(chunk):
            whole = len(chunk) - len(chunk) % ALIGNMENT
            write_all(self._descriptor, chunk[:whole], self._written, direct=True)
            self._written += whole
            chunk = chunk[whole:]
        self._stage(chunk)

    def _checksum(self, chunk: memoryview) -> None:
        position = 0
        while position < len(chunk):
            room = BLOCK_SIZE - (self._length + position) % BLOCK_SIZE
            piece = chunk[position : position + room]
            # Both sums over one block at a time: the second finds it in the cache.
            self._block_crc = crc32c(piece, self._block_crc)
            self._crc64 = crc64nvme(piece, self._crc64)
            position += len(piece)
            if len(piece) == room:
                self._blocks.append(self._block_crc)
                self._block_crc = 0

    def _stage(self, data: memoryview) -> None:
        """Append through the aligned buffer, which is written whenever it is full."""
        position = 0
        while position < len(data):
            if self._staging is None:
                self._staging = self._buffers.acquire()
            count = min(len(data) - position, BLOCK_SIZE - self._staged)
            self._staging[self._staged : self._staged + count] = data[position : position + count]
            self._staged += count
            position += count
            if self._staged == BLOCK_SIZE:
                self._flush()

    def _flush(self) -> None:
        if self._staging is not None and self._staged:
            with memoryview(self._staging) as view, view[: self._staged] as staged:
                write_all(self._descriptor, staged, self._written, direct=True)
            self._written += self._staged
            self._staged = 0

    def seal(self, *, durable: bool) -> FilePayload:
        """As the port says. Raises StorageFull, StorageBusy, StoreUnusable."""
        with self._lock:
            self._check_open()
            named = False
            try:
                self._write_footer()
                self._give_name()
                named = True
                if durable:
                    os.fdatasync(self._descriptor)
                    self._directory.sync(self._id)
                self._check_open()
            except BaseException as error:
                if named:
                    # After a failed sync nobody knows what is on the drive, and no record refers to the file.
                    with suppress(OSError):
                        Path(self._directory.file(self._id)).unlink()
                if isinstance(error, OSError):
                    raise self._failed(error) from error
                self._drop()
                raise
            self._drop()
        return FilePayload(self._id, self._directory.number, self._length, self._crc64, durable)

    def _write_footer(self) -> None:
        if self._length % BLOCK_SIZE:
            self._blocks.append(self._block_crc)
        padding = bytes(payload_file.footer_offset(self._length) - self._length)
        footer = payload_file.encode(Footer(self._id, self._length, self._crc64, tuple(self._blocks)))
        end = memoryview(padding + footer)
        if self._direct:
            self._stage(end)
            self._flush()
        else:
            write_all(self._descriptor, end, self._written, direct=False)
            self._written += len(end)
        if self._allocated > self._written:
            os.ftruncate(self._descriptor, self._written)

    def _give_name(self) -> None:
        path = self._directory.file(self._id)
        if self._name:
            Path(self._name).rename(path)
            self._name = ""
        else:
            link_descriptor(self._descriptor, path)

    def discard(self) -> None:
        """As the port says. While another thread is in `write` or `seal`, that call drops the file when it ends, so
        that its descriptor number is not used again under its hands."""
        self._unwanted = True
        self._finish_discard()

    def _finish_discard(self) -> None:
        if self._unwanted and self._lock.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._lock.release()

    def _check_open(self) -> None:
        if self._descriptor < 0:
            raise ValueError("the payload is sealed or discarded")
        if self._unwanted:
            raise StorageError("the payload was discarded while it was being written")

    def _failed(self, error: OSError) -> StorageError:
        self._drop()
        failure = write_error(error, str(self._directory.path))
        if isinstance(failure, StoreUnusable):
            self._on_failure(self._directory)
        return failure

    def _drop(self) -> None:
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1
        if self._name:
            with suppress(OSError):
                Path(self._name).unlink()
            self._name = ""
        if self._staging is not None:
            self._buffers.release(self._staging)
            self._staging = None
