"""Memory that a server may still touch: kept alive, and tried again until the transport says that it is safe."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from s3verbs.rdma.client.transport import Registration

_LOG = logging.getLogger("s3verbs.client")
_FIRST_WAIT = 0.25
_LONGEST_WAIT = 15.0


class Exposed:
    """A registration that is revoked once, whoever asks. Any thread."""

    def __init__(self, registration: Registration, transport: str, size: int) -> None:
        self.registration = registration
        self.transport = transport
        self.size = size
        self._lock = threading.Lock()
        self._safe = False
        self.suspect = False
        """An operation ended without the server's answer: no new one may use it."""

    def revoke(self) -> bool:
        """As Registration.revoke. A transport that raises has not made sure."""
        with self._lock:
            if not self._safe:
                try:
                    self._safe = self.registration.revoke()
                except Exception:  # noqa: BLE001  whatever it is, the memory is not safe
                    _LOG.exception("revoking memory failed; it stays in quarantine")
            return self._safe


@dataclass(slots=True)
class _Held:
    exposed: Exposed
    released: Callable[[], None]
    wait: float
    due: float


@dataclass(frozen=True, slots=True)
class _Finish:
    then: Callable[[], None]


class Quarantine:
    """One thread per client, started with the first region. It keeps running until `finish` was called and nothing is
    held any more; at the end of the process it goes with it."""

    def __init__(self, *, first_wait: float = _FIRST_WAIT, longest_wait: float = _LONGEST_WAIT) -> None:
        self._first_wait = first_wait
        self._longest_wait = longest_wait
        # SimpleQueue, because `later` is called from finalizers, which may run inside any other call of this thread.
        self._inbox: SimpleQueue[_Held | _Finish | Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._bytes = 0
        self._thread: threading.Thread | None = None

    @property
    def bytes(self) -> int:
        """Memory that is held now."""
        return self._bytes

    def start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="s3verbs-quarantine", daemon=True)
                self._thread.start()

    def hold(self, exposed: Exposed, released: Callable[[], None]) -> None:
        """Revoke it again until that returns True, then call `released` on the thread. Both are referenced until
        then."""
        with self._lock:
            self._bytes += exposed.size
        now = time.monotonic()
        self._inbox.put(_Held(exposed, released, self._first_wait, now + self._first_wait))

    def later(self, action: Callable[[], None]) -> None:
        """Call it on the thread. Takes no lock: for finalizers."""
        self._inbox.put(action)

    def finish(self, then: Callable[[], None]) -> bool:
        """Nothing will be held any more: let the thread end when nothing is, with `then` as its last act. Whether that
        has happened on return; it is only waited for when nothing is held."""
        thread = self._thread
        if thread is None:
            then()
            return True
        self._inbox.put(_Finish(then))
        if not self._bytes:
            thread.join()
        return not thread.is_alive()

    def _run(self) -> None:
        held: list[_Held] = []
        last: Callable[[], None] | None = None
        while last is None or held:
            item = self._next(held)
            if isinstance(item, _Held):
                held.append(item)
            elif isinstance(item, _Finish):
                last = item.then
            elif item is not None:
                _call(item)
            held = [each for each in held if not self._is_released(each)]
        _call(last)

    def _next(self, held: list[_Held]) -> "_Held | _Finish | Callable[[], None] | None":
        try:
            if not held:
                return self._inbox.get()
            return self._inbox.get(timeout=max(0.0, min(item.due for item in held) - time.monotonic()))
        except Empty:
            return None

    def _is_released(self, item: _Held) -> bool:
        if time.monotonic() < item.due:
            return False
        if not item.exposed.revoke():
            item.wait = min(2 * item.wait, self._longest_wait)
            item.due = time.monotonic() + item.wait
            return False
        with self._lock:
            self._bytes -= item.exposed.size
        _call(item.released)
        return True


def _call(action: Callable[[], None]) -> None:
    try:
        action()
    except Exception:  # noqa: BLE001  its thread must not end
        _LOG.exception("an action of the quarantine thread failed")
