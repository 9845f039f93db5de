"""One RoCE device of the client: what memory is registered with, and what queue pairs belong to."""

import errno
import logging
import os
import time
from pathlib import Path

from s3verbs.rdma.client.transport import Memory, TransportUnavailable
from s3verbs.rdma.verbs.api import CompletionQueue, Context, MemoryRegion, ProtectionDomain, QueuePair
from s3verbs.rdma.verbs.constants import Access
from s3verbs.rdma.verbs.device import Rail
from s3verbs.rdma.verbs.errors import VerbsError

log = logging.getLogger("s3verbs.client")

REST_SECONDS = 5.0
"""For how long a rail that failed is not used while there is another."""

_LOOK_SECONDS = 1.0
_REMOTE = Access.LOCAL_WRITE | Access.REMOTE_READ | Access.REMOTE_WRITE
_NO_COMPLETIONS = 16
"""Entries of a completion queue that stays empty: the client posts nothing."""

_HINTS = {
    errno.ENOMEM: "the limit of locked memory is too small (ulimit -l, LimitMEMLOCK=), or the device has no more room",
    errno.EAGAIN: "the limit of locked memory is too small (ulimit -l, LimitMEMLOCK=)",
    errno.EFAULT: "the memory is not mapped",
    errno.EPERM: "this process may not lock memory (CAP_IPC_LOCK, ulimit -l)",
}


class ClientRail:
    """An open device with its protection domain. Any thread, except that queue pairs are the listener's."""

    def __init__(self, rail: Rail) -> None:
        """Raises VerbsUnavailable, VerbsError."""
        self.rail = rail
        self._state = Path(f"/sys/class/infiniband/{rail.device}/ports/{rail.port}/state")
        self._looked = 0.0
        self._up = True
        self._rests_until = 0.0
        self.removed = False
        self._context = Context(rail.device)
        try:
            self.reads = self._context.limits().read_targets
            """RDMA READs that a server may have in flight at one queue pair."""
            self._domain = ProtectionDomain(self._context)
            self._queue = CompletionQueue(self._context, _NO_COMPLETIONS)
        except BaseException:
            self._context.close()
            raise

    def __str__(self) -> str:
        return str(self.rail)

    def register(self, memory: Memory) -> MemoryRegion:
        """Let servers reach the memory, through queue pairs of this rail and with the region's rkey.

        Memory of a GPU by its dma-buf, or as an address that the driver's peer memory module knows.
        Raises TransportUnavailable.
        """
        reasons = []
        if memory.dmabuf is not None:
            try:
                descriptor, offset = memory.dmabuf()
                try:
                    return MemoryRegion.of_dmabuf(self._domain, descriptor, offset, memory.size, _REMOTE)
                finally:
                    os.close(descriptor)
            except (VerbsError, OSError) as error:
                reasons.append(f"as a dma-buf: {error}")
        try:
            return self._of_address(memory)
        except VerbsError as error:
            if memory.gpu is not None:
                reasons.append(f"by peer memory (nvidia-peermem): {error}")
                raise TransportUnavailable(f"{self}: memory of GPU {memory.gpu}: {'; '.join(reasons)}") from error
            hint = _HINTS.get(error.code, "")
            text = f"{self}: cannot register {memory.size} bytes: {error}"
            raise TransportUnavailable(f"{text}: {hint}" if hint else text) from error

    def _of_address(self, memory: Memory) -> MemoryRegion:
        try:
            return MemoryRegion(self._domain, memory.address, memory.size, _REMOTE)
        except VerbsError as error:
            if error.code != errno.EFAULT or memory.gpu is not None:
                raise
        # A file mapped for reading can still be put from.
        return MemoryRegion(self._domain, memory.address, memory.size, Access.REMOTE_READ)

    def queue_pair(self) -> QueuePair:
        """Raises VerbsError."""
        return QueuePair(self._domain, self._queue, 1)

    def rest(self) -> None:
        """Something over this rail failed."""
        self._rests_until = time.monotonic() + REST_SECONDS

    def is_fit(self) -> bool:
        """Whether the port is up and nothing failed of late. What sysfs says is believed for a second."""
        now = time.monotonic()
        if self.removed or now < self._rests_until:
            return False
        if now >= self._looked + _LOOK_SECONDS:
            self._looked = now
            try:
                self._up = self._state.read_text().endswith("ACTIVE\n")
            except OSError:
                self._up = False
        return self._up

    def close(self) -> None:
        """After all regions and queue pairs. Never raises."""
        for each in (self._queue, self._domain, self._context):
            try:
                each.close()
            except VerbsError as error:
                log.warning("RDMA: closing %s: %s", self, error)
