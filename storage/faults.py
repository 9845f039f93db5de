"""Faults at named steps of the in-memory stores. For tests. The steps, in the order a write passes them:

payload.create  payload.write  payload.seal (no name yet)  payload.sealed (named, not yet returned)
metadata.write (handed over)  metadata.commit (changed, not committed)  metadata.committed (not yet returned)
payload.open  payload.delete (before each unlink)  payload.deleted (after each unlink)
"""

STEPS = (
    "payload.create",
    "payload.write",
    "payload.seal",
    "payload.sealed",
    "metadata.write",
    "metadata.commit",
    "metadata.committed",
    "payload.open",
    "payload.delete",
    "payload.deleted",
)


class Crash(BaseException):
    """The process died at this step. Every later call on the stores that share the faults raises it too."""


class Faults:
    """What goes wrong, and where. Shared by the metadata and the payload store of one simulated process."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.dead = False
        self._armed: dict[str, list[tuple[int, BaseException]]] = {}

    def fail(self, step: str, error: BaseException, *, after: int = 0) -> None:
        """Raise `error` once, when `step` is reached for the time after `after` more times."""
        if step not in STEPS:
            raise ValueError(f"no step is named {step!r}")
        self._armed.setdefault(step, []).append((after, error))

    def crash(self, step: str, *, after: int = 0) -> None:
        self.fail(step, Crash(step), after=after)

    def clear(self) -> None:
        """What has not gone wrong yet will not."""
        self._armed.clear()

    def reach(self, step: str) -> None:
        if self.dead:
            raise Crash(step)
        self.passed.append(step)
        due: BaseException | None = None
        left = []
        for after, error in self._armed.get(step, ()):
            if after == 0 and due is None:
                due = error
            else:
                left.append((max(after - 1, 0), error))
        self._armed[step] = left
        if due is not None:
            self.dead = isinstance(due, Crash)
            raise due
