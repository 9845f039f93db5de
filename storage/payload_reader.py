"""Reading one sealed payload file, and checking its bytes against its footer."""

import fcntl
import os
from pathlib import Path

from awscrt.checksums import crc32c, crc64nvme  # type: ignore[import-untyped, unused-ignore]

from s3verbs.storage import payload_file
from s3verbs.storage.block_io import AlignedBuffers, read_all, read_error
from s3verbs.storage.errors import PayloadDamaged
from s3verbs.storage.model import BLOCK_SIZE, FilePayload
from s3verbs.storage.payload_file import TRAILER_SIZE, Footer


class NvmePayloadReader:
    """A PayloadReader."""

    def __init__(self, path: str, payload: FilePayload, buffers: AlignedBuffers) -> None:
        """Raises FileNotFoundError, PayloadDamaged, StorageBusy."""
        self.length = payload.length
        self._payload = payload
        self._path = path
        self._buffers = buffers
        self._footer: Footer | None = None
        self._descriptor = open_for_reading(path)
        try:
            size = os.fstat(self._descriptor).st_size
            if size != payload_file.file_size(payload.length):
                raise PayloadDamaged(
                    f"{path} has {size} bytes; a payload of {payload.length} takes "
                    f"{payload_file.file_size(payload.length)}"
                )
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        return self._descriptor

    def read_into(self, offset: int, into: memoryview) -> int:
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        wanted = min(len(into), self.length - offset)
        if wanted <= 0:
            return 0
        try:
            count = read_all(self._descriptor, into[:wanted], offset)
        except OSError as error:
            raise read_error(error, self._path) from error
        if count < wanted:
            raise PayloadDamaged(f"{self._path} ends at {offset + count}; {self.length} bytes belong to the payload")
        return count

    def verify(self) -> None:
        footer = self._read_footer()
        check_blocks(self._descriptor, footer, 0, len(footer.blocks), self._buffers, self._path)

    def verify_range(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0:
            raise ValueError(f"range {offset}, {length} is negative")
        end = min(offset + length, self.length)
        if end > offset:
            first, last = offset // BLOCK_SIZE, payload_file.block_count(end)
            check_blocks(self._descriptor, self._read_footer(), first, last, self._buffers, self._path)

    def _read_footer(self) -> Footer:
        if self._footer is None:
            footer = read_footer(self._descriptor, self._path)
            recorded = self._payload
            if (footer.id, footer.length, footer.crc64nvme) != (recorded.id, recorded.length, recorded.crc64nvme):
                raise PayloadDamaged(f"{self._path} holds another payload than its record says")
            self._footer = footer
        return self._footer

    def hold(self) -> bool:
        # Whoever deletes takes the exclusive lock before it unlinks anything; not waiting for it keeps this call fit
        # for an event loop, and losing to it means that the record has changed.
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise read_error(error, self._path) from error
        return os.fstat(self._descriptor).st_nlink > 0

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def open_for_reading(path: str) -> int:
    """A descriptor. Raises FileNotFoundError, PayloadDamaged, StorageBusy."""
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise read_error(error, path) from error


def read_footer(descriptor: int, path: str) -> Footer:
    """The footer of an open file, checked against its own checksum and the file's size.
    Raises PayloadDamaged, StorageBusy."""
    try:
        size = os.fstat(descriptor).st_size
        trailer = os.pread(descriptor, TRAILER_SIZE, max(0, size - TRAILER_SIZE))
        start = payload_file.footer_offset(payload_file.payload_length(trailer, size))
        footer = os.pread(descriptor, size - start, start)
        return payload_file.decode(footer, size)
    except OSError as error:
        raise read_error(error, path) from error
    except PayloadDamaged as error:
        raise PayloadDamaged(f"{path}: {error}") from None


def check_blocks(descriptor: int, footer: Footer, first: int, last: int, buffers: AlignedBuffers, path: str) -> None:
    """Read blocks `first` to `last` (exclusive) and compare with the footer; when these are all, the CRC64NVME
    too. Raises PayloadDamaged, StorageBusy."""
    whole = 0
    buffer = buffers.acquire()
    try:
        with memoryview(buffer) as view:
            for block in range(first, last):
                wanted = min(BLOCK_SIZE, footer.length - block * BLOCK_SIZE)
                with view[:wanted] as data:
                    count = read_all(descriptor, data, block * BLOCK_SIZE)
                    if count < wanted:
                        raise PayloadDamaged(f"{path} ends inside block {block}")
                    if crc32c(data) != footer.blocks[block]:
                        raise PayloadDamaged(f"{path}: block {block} does not match its checksum")
                    whole = crc64nvme(data, whole)
    except OSError as error:
        raise read_error(error, path) from error
    finally:
        buffers.release(buffer)
    if first == 0 and last == len(footer.blocks) and whole != footer.crc64nvme:
        raise PayloadDamaged(f"{path} does not match its CRC64NVME")


def inspect_file(path: Path, directory: int, buffers: AlignedBuffers, *, data: bool) -> FilePayload:
    """What a file says it is, found without any record. With `data`, every block is read and compared.
    Raises FileNotFoundError, PayloadDamaged, StorageBusy."""
    descriptor = open_for_reading(str(path))
    try:
        footer = read_footer(descriptor, str(path))
        if path.name != payload_file.file_name(footer.id):
            raise PayloadDamaged(f"{path} holds payload {footer.id.hex()}")
        if data:
            check_blocks(descriptor, footer, 0, len(footer.blocks), buffers, str(path))
    finally:
        os.close(descriptor)
    return FilePayload(footer.id, directory, footer.length, footer.crc64nvme)
