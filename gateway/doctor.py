"""`s3verbs doctor`: what works on this machine, for a server or for the clients of one."""

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
from s3verbs.gateway.config import ConfigError, Settings
from s3verbs.gateway.extras import PACKAGES
from s3verbs.gateway.setting_types import Address
from s3verbs.rdma.doctor import Plan, client_findings, server_findings
from s3verbs.rdma.survey import find_endpoint, survey


class Finding(NamedTuple):
    """`state` is ok, info or problem."""

    state: str
    text: str


def run(settings: Settings, endpoint: str | None = None) -> int:
    """Print the findings; 1 when one is a problem. With `endpoint`, an http or https URL, those of a machine that runs
    clients of it. Raises ConfigError when it is no URL."""
    found = list(findings(settings) if endpoint is None else client_side(endpoint))
    sys.stdout.write("".join(f"{finding.state:<8} {finding.text}\n" for finding in found))
    return int(any(finding.state == "problem" for finding in found))


def findings(settings: Settings) -> Iterator[Finding]:
    yield Finding("info", f"s3verbs {__version__}, Python {platform.python_version()}, Linux {platform.release()}")
    for name in PACKAGES:
        yield _package(name, "problem", "pip install 's3verbs[server]'")
    if not settings.data:
        yield Finding("info", "no data directory was given: --data DIR checks one")
    for directory in settings.data:
        yield _directory(directory)
    for address in (*settings.listen, *([settings.metrics_listen] if settings.metrics_listen else [])):
        yield _address(address)
    yield from _rdma(settings)


def client_side(endpoint: str) -> Iterator[Finding]:
    """What a client on this machine needs, and what it gets from the endpoint."""
    yield Finding("info", f"s3verbs {__version__}, Python {platform.python_version()}, Linux {platform.release()}")
    yield _package("botocore", "problem", "pip install boto3")
    try:
        found = find_endpoint(endpoint)
    except ValueError as error:
        raise ConfigError(f"endpoint: {error}") from None
    for state, text in client_findings(found, survey(port=found.port)):
        yield Finding(state, text)


def _package(name: str, state: str, advice: str) -> Finding:
    try:
        return Finding("ok", f"{name} {importlib.metadata.version(name)}")
    except importlib.metadata.PackageNotFoundError:
        return Finding(state, f"{name} is not installed; {advice}")


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


def _rdma(settings: Settings) -> Iterator[Finding]:
    plan = Plan(
        mode=settings.rdma,
        pool=settings.rdma_pool_bytes // settings.workers,
        dc_key=settings.rdma_dc_key,
        allowed_peers=settings.rdma_allowed_peers,
        same_host=settings.socket != "off",
    )
    socket_path = None if settings.socket in ("auto", "off") else settings.socket
    try:
        found = survey(settings.rdma_devices, port=settings.listen[0].port, socket_path=socket_path)
    except ValueError as error:
        raise ConfigError(f"rdma_devices: {error}") from None
    for state, text in server_findings(plan, found):
        yield Finding(state, text)
