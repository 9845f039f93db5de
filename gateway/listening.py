"""What `serve` takes hold of before anything runs: listening sockets and data directories. Standard library only."""

import errno
import fcntl
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from s3verbs.gateway.setting_types import Address

LOCK_NAME = "server.lock"
BACKLOG = 4096


class StartError(Exception):
    """The server cannot start; the text says what to change."""


def bind(address: Address) -> socket.socket:
    """A listening socket. Raises StartError."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise StartError(f"listen: {address}: {error.strerror}; give an address of this machine") from None
    family, kind, protocol, _, where = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        hint = {
            errno.EADDRINUSE: "another process listens there; stop it, or choose another port",
            errno.EACCES: "ports below 1024 need CAP_NET_BIND_SERVICE; choose a higher port",
            errno.EADDRNOTAVAIL: "give an address of this machine",
        }.get(error.errno or 0, "choose another address")
        raise StartError(f"listen: {address}: {os.strerror(error.errno or 0)}; {hint}") from None
    listener.setblocking(False)
    return listener


def lock_data(directories: Sequence[Path], patience: float = 0.0) -> list[int]:
    """Make and lock the data directories, so that no second server uses them. The locks live as long as the parent
    or one of its workers. Workers of a parent that was killed are given `patience` seconds to finish.
    Raises StartError."""
    until = time.monotonic() + patience
    locks = []
    for directory in directories:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartError(
                f"data: {directory}: {error.strerror}; give a directory that this user (uid {os.geteuid()}) can write"
            ) from None
        while not _lock_now(lock):
            holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "?"
            if time.monotonic() >= until or Path("/proc", holder).exists():
                raise StartError(
                    f"data: {directory}: another server uses it (pid {holder}); stop it, or give another directory"
                )
            time.sleep(0.05)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        locks.append(lock)
    return locks


def _lock_now(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
