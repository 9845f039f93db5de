"""Where a gateway's same-host socket is: the same places, in the same order, for server and client.

    S3VERBS_SOCKET                      that path and no other
    $XDG_RUNTIME_DIR/s3verbs/PORT.sock
    /run/s3verbs/PORT.sock
    /tmp/s3verbs-UID/PORT.sock

PORT is the TCP port of the S3 endpoint. The server takes the first that it can create, the client tries all that
exist. Who may connect is decided by the directories (0700 for one user's), who is served by the kernel; so the socket
itself is 0666.
"""

import contextlib
import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "S3VERBS_SOCKET"
SYSTEM_DIRECTORY = Path("/run/s3verbs")
BACKLOG = 128
_NAME_LIMIT = 107
"""Bytes that sockaddr_un has for a path, less the final zero."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """`mode`: of the directory when the server makes it; None when it must be there already."""

    path: Path
    mode: int | None


def candidates(
    port: int, explicit: str | None = None, environment: Mapping[str, str] = os.environ, uid: int | None = None
) -> list[Candidate]:
    """Places for that port in their order. `explicit` outdoes the environment."""
    named = explicit or environment.get(VARIABLE)
    if named:
        return [Candidate(Path(named).absolute(), None)]
    uid = os.geteuid() if uid is None else uid
    name = f"{port}.sock"
    runtime = environment.get("XDG_RUNTIME_DIR")
    found = [Candidate(Path(runtime) / "s3verbs" / name, 0o700)] if runtime and Path(runtime).is_absolute() else []
    return [
        *found,
        Candidate(SYSTEM_DIRECTORY / name, 0o755 if uid == 0 else None),
        Candidate(Path(f"/tmp/s3verbs-{uid}") / name, 0o700),  # noqa: S108 the directory's owner is checked
    ]


class SessionListener(socket.socket):
    """A listening SOCK_SEQPACKET socket at `path`, which goes away with `close` in the process that bound it."""

    path: Path
    _bound: tuple[int, int, int] | None = None

    def close(self) -> None:
        bound, self._bound = self._bound, None
        super().close()
        if bound is not None and bound[0] == os.getpid():
            with contextlib.suppress(OSError):
                if _file(self.path) == bound[1:]:
                    self.path.unlink()


def bind_socket(port: int, explicit: str | None = None) -> SessionListener:
    """Listen in the first place that can be had. The socket of a server that is dead is replaced, that of one that
    lives never. Raises OSError; its text says for each place why not."""
    problems = []
    for candidate in candidates(port, explicit):
        try:
            return _listen(candidate)
        except OSError as error:
            problems.append(f"{candidate.path}: {error.strerror or error}")
    raise OSError(errno.EADDRNOTAVAIL, "no place for the same-host socket: " + "; ".join(problems))


def _listen(candidate: Candidate) -> SessionListener:
    path = candidate.path
    if len(os.fsencode(path)) > _NAME_LIMIT - 9:
        raise OSError(errno.ENAMETOOLONG, f"longer than {_NAME_LIMIT - 9} bytes")
    if candidate.mode is not None:
        _own_directory(path.parent, candidate.mode)
    listener = SessionListener(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.path = path
    # It listens before it gets its name, so nobody ever finds it dead; and a link, unlike a rename, replaces nothing.
    unnamed = path.with_name(f".{os.urandom(4).hex()}")
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listener.bind(str(unnamed))
        unnamed.chmod(0o666)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        try:
            path.hardlink_to(unnamed)
        except FileExistsError:
            _remove_dead(path)
            path.hardlink_to(unnamed)
        listener._bound = (os.getpid(), *_file(path))
    except BaseException:
        listener.close()
        raise
    finally:
        unnamed.unlink(missing_ok=True)
    return listener


def _own_directory(directory: Path, mode: int) -> None:
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode)
        directory.chmod(mode)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "its directory is something else")
    if found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"its directory belongs to uid {found.st_uid}")
    if found.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "others can write its directory")


def _remove_dead(path: Path) -> None:
    """Raises OSError when a server lives there, or when it is no socket."""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise FileExistsError(errno.EEXIST, "something that is no socket is there")
    before = _file(path)
    if _lives(path):
        raise OSError(errno.EADDRINUSE, "another server listens there")
    aside = path.with_name(f".{os.urandom(4).hex()}")
    path.rename(aside)
    try:
        if _file(aside) != before:
            # Between the two, another server took the dead one's place; it gets its name back.
            path.hardlink_to(aside)
            raise OSError(errno.EADDRINUSE, "another server listens there")
    finally:
        aside.unlink(missing_ok=True)


def _lives(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True


def _file(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


# -- the client's side --


def is_trusted(candidate: Candidate, uid: int) -> bool:
    """Whether a client believes a server of that user (from SO_PEERCRED) at that place: its own user, root, and who
    owns the system's directory, or the directory of a path that the caller named, if only the owner can write it."""
    if uid in (0, os.geteuid()):
        return True
    directory = candidate.path.parent
    if candidate.mode is not None and directory != SYSTEM_DIRECTORY:
        return False
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not found.st_mode & 0o022


def is_this_machine(host: str) -> bool:
    """Whether all addresses of `host` are this machine's own. Asks the resolver, so it can take its time."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return all(_is_own(family, where[0]) for family, _, _, _, where in found) and bool(found)


def _is_own(family: int, address: object) -> bool:
    if not isinstance(address, str):
        return False
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return True
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
