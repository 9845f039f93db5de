"""What moved how: counted per client, read as a snapshot."""

import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Keys of `operations` and `bytes` are "samehost", "rc", "http". One put_from or get_into of several parts counts
    each part. `declines` is by reason: "declined" by the server (its log names why), "ignored" by a server without
    RDMA, "no_transport", "memory" and "anonymous" on this side."""

    operations: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    declines: dict[str, int] = field(default_factory=dict)
    fallbacks: int = 0
    """Operations that were meant for RDMA and moved over HTTP."""
    failures: dict[str, int] = field(default_factory=dict)
    """By the name of the exception."""
    quarantined_bytes: int = 0
    """Memory that a server may still touch, now."""

    @property
    def rdma_share(self) -> float:
        """Of all bytes moved, those that bypassed HTTP; 0.0 before the first."""
        total = sum(self.bytes.values())
        return (total - self.bytes.get("http", 0)) / total if total else 0.0


class Counters:
    """Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._operations: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._declines: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._fallbacks = 0

    def moved(self, transport: str, size: int) -> None:
        with self._lock:
            self._operations[transport] += 1
            self._bytes[transport] += size

    def declined(self, reason: str) -> None:
        with self._lock:
            self._declines[reason] += 1

    def fell_back(self) -> None:
        with self._lock:
            self._fallbacks += 1

    def failed(self, error: BaseException) -> None:
        with self._lock:
            self._failures[type(error).__name__] += 1

    def snapshot(self, quarantined_bytes: int) -> Snapshot:
        with self._lock:
            return Snapshot(
                dict(self._operations),
                dict(self._bytes),
                dict(self._declines),
                self._fallbacks,
                dict(self._failures),
                quarantined_bytes,
            )
