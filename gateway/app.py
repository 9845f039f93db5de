"""Composition: the only place that names concrete classes. One `Gateway` per worker process."""

import asyncio
import base64
import hashlib
import os
import secrets
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from s3verbs.gateway import rdma_routes
from s3verbs.gateway.access_log import AccessLog
from s3verbs.gateway.audit import AuditLog
from s3verbs.gateway.auth.access_keys import AccessKey, AccessKeys, root_key
from s3verbs.gateway.auth.authenticator import Authenticator
from s3verbs.gateway.auth.authorizer import Authorizer
from s3verbs.gateway.auth.principal import ROOT_ACCOUNT
from s3verbs.gateway.buffers import BufferPool
from s3verbs.gateway.config import Settings
from s3verbs.gateway.datapath import Datapath
from s3verbs.gateway.health import Probe, health_server
from s3verbs.gateway.http.connection import Limits
from s3verbs.gateway.http.forwarded import Forwarded
from s3verbs.gateway.lifecycle import Lifecycle, Parts
from s3verbs.gateway.metrics import RequestMetrics
from s3verbs.gateway.observe import Observer, RequestIds
from s3verbs.gateway.operations import registry
from s3verbs.gateway.rdma_lane import Lanes
from s3verbs.gateway.routing import RouteTable
from s3verbs.gateway.upkeep import Upkeep
from s3verbs.gateway.watchdog import Watchdog
from s3verbs.rdma.samehost.table import SessionTable
from s3verbs.storage.errors import BucketNotFound
from s3verbs.storage.model import BLOCK_SIZE
from s3verbs.storage.opening import Store, open_store

PAYLOAD_THREADS = 16
"""Threads of a worker that digest, write, sync and read payloads. Most of their time they wait for a drive."""


@dataclass(slots=True)
class Gateway:
    """Everything of a worker that serves requests. `draining` is set by the worker."""

    lifecycle: Lifecycle
    limits: Limits
    metrics: RequestMetrics
    settings: Settings
    store: Store
    executor: ThreadPoolExecutor
    lanes: Lanes
    watchdog: Watchdog
    logs: list[AccessLog | AuditLog]
    upkeep: Upkeep | None
    draining: Callable[[], bool] = field(default=lambda: False)

    def reopen_logs(self) -> None:
        for each in self.logs:
            each.lines.reopen()

    def sample(self, connections: int) -> None:
        """Publish what is measured now and then."""
        self.metrics.sample(connections, self.lanes)

    async def close(self) -> None:
        """After the last request."""
        self.watchdog.stop()
        if self.upkeep is not None:
            await self.upkeep.stop()
        await self.lanes.close()
        self.executor.shutdown(wait=True)
        await self.store.objects.close()
        self.store.close()
        for each in self.logs:
            each.lines.close()


async def open_gateway(
    settings: Settings, loop: asyncio.AbstractEventLoop, *, worker: int, sessions: SessionTable | None
) -> Gateway:
    """Open the store and wire the parts. `sessions` is the table of the same-host transport, kept by the parent.
    Raises StorageError, OSError, VerbsUnavailable when RDMA is required and there is none."""
    store = open_store(settings.data, map_bytes=settings.map_bytes, reserve_bytes=settings.reserve_bytes)
    executor = ThreadPoolExecutor(PAYLOAD_THREADS, thread_name_prefix="payload")
    lanes = rdma_routes.open_lanes(settings, loop, executor, worker=worker, sessions=sessions)
    return wire(settings, store, loop, executor, lanes, upkeep=worker == 0)


def wire(
    settings: Settings,
    store: Store,
    loop: asyncio.AbstractEventLoop,
    executor: ThreadPoolExecutor,
    lanes: Lanes,
    *,
    upkeep: bool = False,
) -> Gateway:
    """The parts over an open store, an executor and RDMA lanes, all of which the gateway then owns. Raises OSError when
    a log cannot be opened."""
    pool = BufferPool(max(2, settings.buffer_pool // settings.workers // BLOCK_SIZE))
    access = AccessLog(settings.access_log) if settings.access_log != "off" else None
    audit = AuditLog(settings.audit_log) if settings.audit_log != "off" else None
    metrics = RequestMetrics()
    watchdog = Watchdog(loop)
    watchdog.start()
    clock = time.time_ns
    keys = AccessKeys(store.metadata, root=_root(settings), clock=clock)
    gateway: Gateway
    parts = Parts(
        ids=RequestIds(secrets.token_hex(4)),
        host_id=_host_id(),
        domains=settings.domains,
        forwarded=Forwarded(settings.trusted_proxies) if settings.trusted_proxies else None,
        routes=RouteTable(),
        authenticator=Authenticator(keys, clock=clock, region=settings.region, enforce_region=settings.enforce_region),
        authorizer=Authorizer(store.objects.bucket),
        find_operation=registry.find,
        datapath=Datapath(store.objects, pool, executor, settings.body_timeout, lanes),
        observer=Observer(access, audit, metrics),
        watchdog=watchdog,
        clock=clock,
        settings={"region": settings.region},
        draining=lambda: gateway.draining(),
    )
    gateway = Gateway(
        lifecycle=Lifecycle(parts, loop),
        limits=Limits(
            header_timeout=settings.header_timeout,
            keep_alive_timeout=settings.keep_alive_timeout,
            max_connections=max(1, settings.max_connections // settings.workers),
        ),
        metrics=metrics,
        settings=settings,
        store=store,
        executor=executor,
        lanes=lanes,
        watchdog=watchdog,
        logs=[each for each in (access, audit) if each is not None],
        upkeep=Upkeep(store, stale_days=settings.stale_upload_days, clock=clock) if upkeep else None,
    )
    if gateway.upkeep is not None:
        gateway.upkeep.start()
    return gateway


def health_factory(gateway: Gateway, loop: asyncio.AbstractEventLoop, connections: Callable[[], int]) -> web.Server:
    """The protocol factory of the metrics and health listener."""
    probe = Probe(
        directories=gateway.settings.data,
        reserve_bytes=gateway.settings.reserve_bytes,
        read_metadata=lambda: _touch(gateway.store),
        draining=lambda: gateway.draining(),
        rdma=gateway.lanes.describe,
        sample=lambda: gateway.sample(connections()),
    )
    return health_server(probe, loop)


@dataclass(frozen=True, slots=True)
class FirstStart:
    """What start-up found or made: `secret_key` is set only when the root key was generated just now, `rdma` tells of
    this machine's RDMA devices."""

    access_key: str
    secret_key: str
    buckets: tuple[str, ...]
    rdma: str


async def prepare(settings: Settings) -> FirstStart:
    """Before any worker runs: open the store alone, see to the root key and the buckets, close it.

    Raises StorageError, VerbsUnavailable.
    """
    rdma = await rdma_routes.probe(settings)
    store = open_store(settings.data, map_bytes=settings.map_bytes, reserve_bytes=settings.reserve_bytes)
    try:
        access_key, secret_key = _ensure_root(AccessKeys(store.metadata, root=_root(settings)))
        made = []
        for bucket in settings.buckets:
            # Looked for first: on a full drive nothing can be written, and the server must start all the same.
            with suppress(BucketNotFound):
                store.objects.bucket(bucket.name)
                continue
            await store.objects.create_bucket(
                bucket.name, owner=ROOT_ACCOUNT, durability=bucket.durability, region=settings.region
            )
            made.append(bucket.name)
        await store.objects.close()
    finally:
        store.close()
    return FirstStart(access_key, secret_key, tuple(made), rdma)


def _ensure_root(keys: AccessKeys) -> tuple[str, str]:
    """The key to show at start, and its secret when it was made just now."""
    known: list[AccessKey] = [key for key in keys.list() if key.principal.id == ROOT_ACCOUNT]
    if known:
        return known[0].access_key, ""
    made = keys.create(description="root key, made at the first start")
    return made.access_key, made.secret


def _root(settings: Settings) -> AccessKey | None:
    if not settings.root_access_key:
        return None
    return root_key(settings.root_access_key, settings.root_secret_key)


def _host_id() -> str:
    """x-amz-id-2: tells which host and process answered, without naming them."""
    digest = hashlib.sha256(f"{socket.gethostname()} {os.getpid()}".encode()).digest()
    return base64.b64encode(digest).decode("ascii")


def _touch(store: Store) -> Any:
    return store.objects.buckets(limit=1)
