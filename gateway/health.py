"""The listener beside the endpoint: /metrics, /health/live and /health/ready.

live: this process answers. ready: it can serve requests: the store is open, metadata can be read, and a payload
directory has room. Both say in JSON what they found.
"""

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from s3verbs import __version__
from s3verbs.gateway.metrics import CONTENT_TYPE, exposition


@dataclass(frozen=True, slots=True)
class Probe:
    """What readiness asks. `read_metadata` raises when metadata cannot be read."""

    directories: Sequence[Path]
    reserve_bytes: int
    read_metadata: Callable[[], None]
    draining: Callable[[], bool]
    rdma: Callable[[], str]
    sample: Callable[[], None]

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Blocking: touches every payload directory."""
        state: dict[str, Any] = {"version": __version__, "rdma": self.rdma()}
        try:
            self.read_metadata()
            state["metadata"] = "ok"
        except Exception as error:  # noqa: BLE001  whatever it is, the answer is "not ready", with the reason
            state["metadata"] = f"{type(error).__name__}: {error}"
        roomy = 0
        state["payload"] = {}
        for directory in self.directories:
            try:
                found = os.statvfs(directory)
            except OSError as error:
                state["payload"][str(directory)] = str(error.strerror)
                continue
            free = found.f_bavail * found.f_frsize
            state["payload"][str(directory)] = f"{free} bytes free"
            roomy += free > self.reserve_bytes
        state["draining"] = self.draining()
        return state["metadata"] == "ok" and roomy > 0 and not state["draining"], state


def health_server(probe: Probe, loop: asyncio.AbstractEventLoop) -> web.Server:
    """The protocol factory of the listener."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="GET or HEAD\n")
        match request.path:
            case "/metrics":
                body = await loop.run_in_executor(None, exposition, probe.directories, probe.sample)
                return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})
            case "/health/live":
                return _json(200, {"status": "live", "version": __version__})
            case "/health/ready":
                ready, state = await loop.run_in_executor(None, probe.readiness)
                return _json(200 if ready else 503, {"status": "ready" if ready else "not ready", **state})
            case _:
                return web.Response(status=404, text="/metrics, /health/live or /health/ready\n")

    return web.Server(answer, access_log=None, keepalive_timeout=15.0)


def _json(status: int, value: dict[str, Any]) -> web.Response:
    return web.Response(status=status, text=json.dumps(value) + "\n", content_type="application/json")
