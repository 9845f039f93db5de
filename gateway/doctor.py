"""`s3verbs doctor`: what works on this machine, and what this release lacks."""

import ctypes.util
import importlib.metadata
import os
import platform
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from s3verbs import __version__
from s3verbs.gateway.config import Settings
from s3verbs.gateway.extras import PACKAGES
from s3verbs.gateway.setting_types import Address


class Finding(NamedTuple):
    """`state` is ok, info or problem."""

    state: str
    text: str


def run(settings: Settings) -> int:
    """Print the findings; 1 when one is a problem."""
    found = list(findings(settings))
    sys.stdout.write("".join(f"{finding.state:<8} {finding.text}\n" for finding in found))
    return int(any(finding.state == "problem" for finding in found))


def findings(settings: Settings) -> Iterator[Finding]:
    yield Finding("info", f"s3verbs {__version__}, Python {platform.python_version()}, Linux {platform.release()}")
    for name in PACKAGES:
        try:
            yield Finding("ok", f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            yield Finding("problem", f"{name} is not installed; pip install 's3verbs[server]'")
    if not settings.data:
        yield Finding("info", "no data directory was given: --data DIR checks one")
    for directory in settings.data:
        yield _directory(directory)
    for address in (*settings.listen, *([settings.metrics_listen] if settings.metrics_listen else [])):
        yield _address(address)
    yield from _rdma()


def _directory(directory: Path) -> Finding:
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding("problem", f"data {directory}: {existing} cannot be written by uid {os.geteuid()}")
    state = os.statvfs(existing)
    free = state.f_bavail * state.f_frsize
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
        unnamed = os.open(existing, os.O_TMPFILE | os.O_RDWR, 0o600)
        os.close(unnamed)
    except OSError as error:
        return Finding("problem", f"data {directory}: no unnamed files there ({error.strerror}); use ext4 or xfs")
    try:
        os.close(os.open(existing, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600))
        direct = "direct I/O"
    except OSError:
        direct = "no direct I/O: payloads go through the page cache"
    return Finding("ok", f"data {directory}: {free >> 30} GiB free, {direct}")


def _address(address: Address) -> Finding:
    try:
        with socket.create_server(
            (address.host, address.port), family=socket.AF_INET6 if ":" in address.host else socket.AF_INET
        ):
            return Finding("ok", f"{address} is free")
    except OSError as error:
        return Finding("info", f"{address}: {os.strerror(error.errno or 0)} (a running server holds it?)")


def _rdma() -> Iterator[Finding]:
    yield Finding("info", "RDMA: this release has no RDMA transport; requests that ask for one are declined (501)")
    devices = sorted(path.name for path in Path("/sys/class/infiniband").glob("*"))
    yield Finding("info", f"RDMA devices: {', '.join(devices) if devices else 'none'}")
    library = ctypes.util.find_library("ibverbs")
    yield Finding("info", f"libibverbs: {library or 'not found'}")
