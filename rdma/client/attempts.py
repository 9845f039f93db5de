"""What is tried again, how often, and after how long.

| what happened                                  | tried again                                              |
|------------------------------------------------|----------------------------------------------------------|
| no connection, or it was closed before sending | yes: the server has not seen the request                 |
| 429, 500, 502, 503, 504, RequestTimeout        | yes, after Retry-After or a growing pause                |
| ExpiredToken                                   | once, with credentials that were loaded anew             |
| RequestTimeTooSkewed                           | once, with the server's clock                            |
| connection lost, no answer                     | if the region is safe, and doing it twice does no harm   |
| any other S3 error, a bad answer, the deadline | no                                                       |
"""

import random
import threading
import time

from s3verbs.rdma.client.connection import NotSent
from s3verbs.rdma.client.errors import ConnectFailed, ConnectionBroken, DeadlineExceeded, S3Error

_STATUS = frozenset({429, 500, 502, 503, 504})
_CODES = frozenset({"RequestTimeout", "SlowDown"})
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 5.0


class Lost(Exception):
    """A request's outcome is not known. `safe`: no server can touch the region any more. `said` is the answer of
    something between here and the server."""

    def __init__(self, text: str, *, safe: bool, timeout: bool = False, said: S3Error | None = None) -> None:
        super().__init__(text)
        self.safe = safe
        self.timeout = timeout
        self.said = said


class Attempts:
    """Those of one operation. Each method returns when it is worth another try, after the pause, and raises what the
    caller of the library gets otherwise."""

    def __init__(self, tries: int, deadline: float, cancelled: threading.Event) -> None:
        self._left = tries - 1
        self._pause = _FIRST_PAUSE
        self._deadline = deadline
        self._cancelled = cancelled
        self._reconnected = False
        self._cured: set[str] = set()

    def not_sent(self, error: NotSent) -> None:
        if not self._left or (error.timeout and time.monotonic() >= self._deadline):
            kind = DeadlineExceeded if time.monotonic() >= self._deadline else ConnectFailed
            raise kind(str(error)) from error
        self._wait(0.0 if not self._reconnected else self._pause, error)
        self._reconnected = True

    def lost(self, error: Lost, *, repeatable: bool) -> None:
        if not self._left or error.timeout or not error.safe or not repeatable:
            if error.said is not None and error.safe:
                raise error.said
            kind = DeadlineExceeded if error.timeout else ConnectionBroken
            state = "" if error.safe else "; the region is in quarantine"
            raise kind(f"{error}{state}") from error
        self._wait(self._pause, error)

    def refused(self, error: S3Error, *, cured: bool) -> None:
        """`cured`: its cause was removed."""
        if cured and self._left and error.code not in self._cured:
            self._cured.add(error.code)
            self._wait(0.0, error)
            return
        if not self._left or (error.status not in _STATUS and error.code not in _CODES):
            raise error
        self._wait(self._pause if error.retry_after is None else error.retry_after, error)

    def _wait(self, pause: float, error: Exception) -> None:
        self._left -= 1
        if self._cancelled.is_set():
            raise ConnectionBroken("cancelled") from error
        if not pause:
            return
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        pause *= random.uniform(1.0, 1.25)  # noqa: S311  spreads retries
        if time.monotonic() + pause >= self._deadline:
            if isinstance(error, S3Error):
                raise error
            raise DeadlineExceeded(f"no time for another try after: {error}") from error
        self._cancelled.wait(pause)
