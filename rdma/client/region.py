"""Registered memory: who uses it, when a server can reach it, when its owner gets it back."""

import os
import threading
import weakref
from collections.abc import Callable

from s3verbs.rdma.client.cuda import Driver
from s3verbs.rdma.client.errors import RegionClosed, RegionQuarantined, RegionReadOnly, TransportMissing
from s3verbs.rdma.client.exposure import Exposer, Pause
from s3verbs.rdma.client.memory import Described
from s3verbs.rdma.client.place import CudaPlace, HostPlace, Place
from s3verbs.rdma.client.quarantine import Exposed, Quarantine
from s3verbs.rdma.client.transport import TransportUnavailable

_PID = os.getpid()


def is_process(pid: int) -> bool:
    """Whether this is still that process, and not one that was forked from it. Costs no system call."""
    return pid == _PID


def _in_child() -> None:
    global _PID
    _PID = os.getpid()


os.register_at_fork(after_in_child=_in_child)


class RegisteredMemory:
    """What all Regions over one buffer share. Any thread.

    It keeps the buffer's owner referenced until it is closed, no operation uses it, and no server can touch it.
    """

    def __init__(
        self,
        memory: Described,
        exposer: Exposer,
        quarantine: Quarantine,
        driver: Driver | None = None,
        on_release: Callable[["RegisteredMemory"], None] | None = None,
    ) -> None:
        self.address = memory.address
        self.size = memory.size
        self.gpu = memory.gpu
        self.writable = memory.writable
        self.place: Place
        if memory.gpu is None:
            self.place = HostPlace(memory.address, memory.size, writable=memory.writable)
        else:
            assert driver is not None
            self.place = CudaPlace(driver, memory.gpu, memory.address)
        self._memory: Described | None = memory
        self._exposer = exposer
        self._quarantine = quarantine
        self._driver = driver
        self._on_release = on_release
        self._pid = _PID
        self._lock = threading.RLock()
        self._unused = threading.Condition(self._lock)
        self._exposing = threading.Lock()
        self._users = 0
        self._closed = False
        self._exposed: Exposed | None = None
        self._unsafe: set[Exposed] = set()
        """Those that a server may still reach the memory by."""
        self._pause = Pause(exposer.look_again)

    @property
    def quarantined(self) -> bool:
        return bool(self._unsafe)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def released(self) -> bool:
        """Nobody but the buffer's owner uses the memory any more."""
        return self._memory is None

    def belongs_to(self, exposer: Exposer) -> bool:
        """Whether it was registered with the client that has this exposer."""
        return self._exposer is exposer

    def enter(self, *, write: bool) -> None:
        """One more operation uses it; `leave` ends that. Raises RegionError."""
        if self._pid != _PID:
            raise RegionClosed("the region was registered by the process that this one was forked from")
        with self._lock:
            if self._closed:
                raise RegionClosed("the region is closed")
            if self._unsafe:
                raise RegionQuarantined("a server may still move bytes of this memory; try again later")
            if write and not self.writable:
                raise RegionReadOnly("the registered object is read-only")
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._unused.notify_all()

    def exposed(self) -> Exposed | None:
        """The registration that tokens are minted from; None: HTTP, for now. Raises TransportMissing
        and RegionError."""
        found = self._exposed
        if found is not None or not self.size or not self._pause.is_over():
            return found
        with self._exposing:
            if self._unsafe:
                raise RegionQuarantined("a server may still move bytes of this memory; try again later")
            if self._exposed is None:
                memory = self._memory
                if memory is None:
                    raise RegionClosed("the region is closed")
                exposed = self._exposer.expose(memory, self._driver)
                if exposed is None:
                    self._pause.begin()
                else:
                    self._pause.end()
                self._exposed = exposed
            return self._exposed

    def token(self, offset: int, size: int) -> tuple[Exposed, str] | None:
        """What a server needs to reach [offset, offset + size); None: HTTP. A registration that the transport has lost
        (the gateway was started again) is made anew once. Raises TransportMissing."""
        for _ in range(2):
            exposed = self.exposed()
            if exposed is None:
                return None
            try:
                return exposed, exposed.registration.token(offset, size)
            except TransportUnavailable as error:
                if not self.take_back(exposed):
                    raise RegionQuarantined(f"the transport was lost: {error}") from error
                lost = error
        if self._exposer.is_pinned:
            raise TransportMissing(f"the transport was lost: {lost}") from lost
        self._exposer.note(f"the transport was lost, HTTP is used: {lost}")
        return None

    def take_back(self, exposed: Exposed) -> bool:
        """An operation ended without the server's answer. True: no server can touch the memory by this registration any
        more. False: it is in quarantine from now on, and comes out by itself. Blocking, some seconds."""
        with self._lock:
            if self._exposed is exposed:
                self._exposed = None
            first = not exposed.suspect
            exposed.suspect = True
            if first:
                self._unsafe.add(exposed)
        if exposed.revoke():
            self._forget(exposed)
            return True
        if first:
            self._quarantine.hold(exposed, lambda: self._forget(exposed))
        return False

    def close(self) -> bool:
        """No operation can begin any more; waits for those that run, which their deadlines bound, then takes the memory
        back. True: it is the owner's alone. False: it is in quarantine, and the owner stays referenced until it is not.
        """
        if self._pid != _PID:
            return False
        with self._lock:
            self._closed = True
            while self._users:
                self._unused.wait()
            exposed, self._exposed = self._exposed, None
        if exposed is not None:
            self.take_back(exposed)
        self._release_if_safe()
        return self.released

    def shut(self) -> None:
        """`close`, for who does not look at the result."""
        self.close()

    def _forget(self, exposed: Exposed) -> None:
        with self._lock:
            self._unsafe.discard(exposed)
        self._release_if_safe()

    def _release_if_safe(self) -> None:
        with self._lock:
            if not self._closed or self._users or self._unsafe or self._exposed is not None or self._memory is None:
                return
            self._memory = None
            # It holds a view into the memory.
            self.place = HostPlace(0, 0, writable=False)
        if self._on_release is not None:
            self._on_release(self)


class Region:
    """`size` bytes at `address` that put_from can send and get_into can fill. Usable by many threads at once.

    `region[a:b]` is a sub-region: it shares the registration, and closing it does nothing. Operations at the same time
    on overlapping bytes are the caller's to avoid. A region that is garbage-collected is closed in the background.
    """

    __slots__ = ("__weakref__", "_root", "address", "memory", "offset", "size")

    def __init__(self, memory: RegisteredMemory, offset: int, size: int, root: "Region | None" = None) -> None:
        self.memory = memory
        self.offset = offset
        self.size = size
        self.address = memory.address + offset
        self._root = root

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        state = "closed" if self.closed else "quarantined" if self.quarantined else "registered"
        return f"<Region {self.size} bytes at {self.address:#x}, {state}>"

    def __getitem__(self, part: slice) -> "Region":
        if not isinstance(part, slice):
            raise TypeError("a region is sliced: region[start:stop]")
        start, stop, step = part.indices(self.size)
        if step != 1:
            raise ValueError("a region cannot be sliced with a step")
        return Region(self.memory, self.offset + start, max(0, stop - start), self._root or self)

    @property
    def transport(self) -> str:
        """ "samehost", "rc", or "http" when no transport takes this memory now."""
        exposed = self.memory.exposed()
        return exposed.transport if exposed is not None else "http"

    @property
    def quarantined(self) -> bool:
        """A server may still touch the memory."""
        return self.memory.quarantined

    @property
    def closed(self) -> bool:
        return self.memory.closed

    @property
    def released(self) -> bool:
        """Closed, and no server can touch the memory."""
        return self.memory.released

    def close(self) -> bool:
        """As RegisteredMemory.close; True for a sub-region."""
        return self._root is not None or self.memory.close()

    def __enter__(self) -> "Region":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def use(self, *, write: bool) -> "_Use":
        """While an operation runs. Entering raises RegionError."""
        return _Use(self.memory, write)


class _Use:
    """A context of RegisteredMemory.enter and leave; a generator would take three times as long."""

    __slots__ = ("_memory", "_write")

    def __init__(self, memory: RegisteredMemory, write: bool) -> None:
        self._memory = memory
        self._write = write

    def __enter__(self) -> None:
        self._memory.enter(write=self._write)

    def __exit__(self, *_: object) -> None:
        self._memory.leave()


def new_region(memory: RegisteredMemory, quarantine: Quarantine) -> Region:
    """The region over all of it; collecting it closes the memory."""
    region = Region(memory, 0, memory.size)
    weakref.finalize(region, quarantine.later, memory.shut).atexit = False
    return region
