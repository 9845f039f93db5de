"""`s3verbs serve`: from settings to a running server. Runs in the parent process, which imports little.

lock data directories -> bind -> prepare the store in a child -> fork workers -> print how to reach it
"""

import contextlib
import json
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from s3verbs import __version__
from s3verbs.gateway.config import Settings
from s3verbs.gateway.listening import StartError, bind, lock_data
from s3verbs.gateway.metrics_directory import metrics_directory
from s3verbs.gateway.setting_types import Address
from s3verbs.gateway.supervisor import Supervisor, WorkerSeat
from s3verbs.rdma.nixl.lmcache import Storage, over_http
from s3verbs.rdma.samehost.location import bind_socket
from s3verbs.rdma.samehost.sessions import SessionService
from s3verbs.rdma.samehost.table import SessionTable

SPARE_FILES = 256
"""Descriptors of a worker beside those of its connections."""

CLOSE_SECONDS = 5.0
"""What a worker may take to end after its last request."""

METRICS_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"


def serve(settings: Settings, *, show_lmcache: bool = False) -> int:
    """Until stopped; the exit code. Raises StartError."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr)
    _check_files(settings)
    _allow_open_files(settings)
    locks = lock_data(settings.data, settings.drain_timeout + CLOSE_SECONDS)
    listeners = [bind(address) for address in settings.listen]
    metrics_listener = bind(settings.metrics_listen) if settings.metrics_listen is not None else None
    first = _in_child(lambda: _prepare(settings))
    bound = [_bound(listener.getsockname()) for listener in listeners]
    metrics_bound = _bound(metrics_listener.getsockname()) if metrics_listener is not None else None
    table, services, samehost = _samehost(settings, bound[0].port)

    def serve_worker(seat: WorkerSeat) -> int:
        from s3verbs.gateway import worker
        from s3verbs.rdma.verbs.errors import VerbsUnavailable
        from s3verbs.storage.errors import StorageError

        try:
            return worker.run(settings, seat, metrics_listener, table)
        except VerbsUnavailable as error:
            raise StartError(f"rdma: required, but {error}") from error
        except (StorageError, OSError) as error:
            raise StartError(str(error)) from error

    def announce() -> None:
        sys.stdout.write(
            banner(settings, bound, metrics_bound, {**first, "samehost": samehost}, show_lmcache=show_lmcache)
        )
        sys.stdout.flush()

    with metrics_directory() as counts:

        def forget_gauges(pid: int) -> None:
            for stale in counts.glob(f"gauge_live*_{pid}.db"):
                stale.unlink(missing_ok=True)

        os.environ[METRICS_DIRECTORY] = str(counts)
        try:
            return Supervisor(
                listeners,
                settings.workers,
                serve_worker,
                drain_timeout=settings.drain_timeout,
                announce=announce,
                on_worker_exit=forget_gauges,
                services=services,
            ).run()
        finally:
            for lock in locks:
                os.close(lock)


def banner(
    settings: Settings,
    bound: list[Address],
    metrics: Address | None,
    first: dict[str, str],
    *,
    show_lmcache: bool,
) -> str:
    """What start-up prints, in one block."""
    scheme = "https" if settings.tls_cert else "http"
    endpoints = ", ".join(f"{scheme}://{address}" for address in bound)
    lines = [
        f"s3verbs {__version__}",
        f"  endpoint     {endpoints}",
        f"  region       {settings.region}",
        f"  data         {', '.join(str(path.resolve()) for path in settings.data)}",
        f"  workers      {settings.workers}",
        f"  metrics      {f'http://{metrics}/metrics' if metrics else 'off'}",
        f"  rdma         {first['rdma']}",
        f"  same host    {first['samehost']}",
        f"  access key   {first['access_key']}",
    ]
    if first["secret_key"]:
        lines.append(f"  secret key   {first['secret_key']}    (made just now; it is not shown again)")
    elif not settings.root_secret_key:
        lines.append("  secret key   shown at the first start; `s3verbs admin key create` makes another key")
    if show_lmcache:
        lines += ["", _lmcache(settings, f"{scheme}://{_reachable(bound[0])}", first)]
    return "\n".join(lines) + "\n"


def _reachable(address: Address) -> Address:
    """What a client can connect to: every address of this machine is told by its name."""
    return Address(socket.gethostname(), address.port) if address.host in ("0.0.0.0", "::") else address  # noqa: S104


def _lmcache(settings: Settings, endpoint: str, first: dict[str, str]) -> str:
    storage = Storage(
        endpoint=endpoint,
        bucket=settings.buckets[0].name if settings.buckets else "kvcache",
        region=settings.region,
        access_key=first["access_key"],
        secret_key=first["secret_key"] or settings.root_secret_key or "<the secret key shown at the first start>",
    )
    return f"# lmcache.yaml\n{over_http(storage)}"


def _samehost(settings: Settings, port: int) -> tuple[SessionTable | None, list[SessionService], str]:
    """The table and the service of the same-host transport, and what to say of it."""
    if settings.rdma == "off" or settings.socket == "off":
        return None, [], "off by setting"
    explicit = settings.socket if settings.socket != "auto" else None
    try:
        listener = bind_socket(port, explicit)
    except OSError as error:
        if explicit is not None:
            raise StartError(f"socket: {error.strerror}; give another path, auto or off") from None
        logging.getLogger("s3verbs").warning("the same-host transport is off: %s", error.strerror)
        return None, [], f"off: {error.strerror}"
    table = SessionTable(settings.workers)
    return table, [SessionService(listener, table)], str(listener.path)


def _bound(name: tuple[str, int]) -> Address:
    return Address(name[0], name[1])


def _allow_open_files(settings: Settings) -> None:
    """Workers inherit the limit. A connection that reads or writes a payload needs three descriptors."""
    wanted = settings.max_connections // settings.workers * 3 + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    if allowed < wanted:
        logging.getLogger("s3verbs").warning(
            "a worker may open %d files; %d connections can need %d: raise the limit (ulimit -n, LimitNOFILE) or lower "
            "max_connections",
            allowed,
            settings.max_connections,
            wanted,
        )


def _check_files(settings: Settings) -> None:
    for name, path in (("tls_cert", settings.tls_cert), ("tls_key", settings.tls_key)):
        if path is not None and not os.access(path, os.R_OK):
            raise StartError(f"{name}: {path} cannot be read; give a PEM file that this user can read")
    for name in ("access_log", "audit_log"):
        target = getattr(settings, name)
        if target in ("off", "stdout"):
            continue
        try:
            os.close(os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640))
        except OSError as error:
            raise StartError(f"{name}: {target}: {error.strerror}; give off, stdout or a file to append to") from None
    if settings.tls_cert is not None:
        _check_certificate(settings.tls_cert, settings.tls_key or settings.tls_cert)


def _check_certificate(certificate: Path, key: Path) -> None:
    import ssl

    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise StartError(f"tls_cert: {certificate} with tls_key {key}: {error}; give a PEM chain and its key") from None


def _prepare(settings: Settings) -> dict[str, str]:
    import asyncio

    from s3verbs.gateway import app
    from s3verbs.rdma.verbs.errors import VerbsUnavailable
    from s3verbs.storage.errors import StorageError

    try:
        first = asyncio.run(app.prepare(settings))
    except VerbsUnavailable as error:
        raise StartError(f'rdma: required, but {error}; set rdma = "auto" to serve without') from error
    except (StorageError, OSError) as error:
        raise StartError(str(error)) from error
    return {"access_key": first.access_key, "secret_key": first.secret_key, "rdma": first.rdma}


def _in_child(work: Callable[[], dict[str, str]]) -> dict[str, str]:
    """Run `work` in a forked process, so that what it imports and opens does not stay in the parent."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(readable)
            try:
                answer = json.dumps(work())
                code = 0
            except StartError as error:
                answer = str(error)
                code = 2
            os.write(writable, answer.encode())
        except BaseException:
            logging.getLogger("s3verbs").exception("start-up failed")
        finally:
            with contextlib.suppress(OSError):
                sys.stderr.flush()
            os._exit(code)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        answer_bytes = pipe.read()
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        result: dict[str, str] = json.loads(answer_bytes)
        return result
    if code < 0:
        raise StartError(
            f"start-up was ended by {signal.Signals(-code).name}; SIGBUS comes of a file in the data directory that is "
            "shorter than it was: restore it from a backup"
        )
    raise StartError(answer_bytes.decode() or "start-up failed; the reason is above")
