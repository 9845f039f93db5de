"""The RDMA transports of a worker: from settings, and what this machine has, to lanes.

With `rdma = "auto"` whatever cannot be had is left out, and told in the log, in /health and by `s3verbs doctor`; with
"required" a server without an RDMA device does not start.
"""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from s3verbs.gateway.config import Settings
from s3verbs.gateway.rdma_lane import Lanes, Route
from s3verbs.rdma.admission import peer_of
from s3verbs.rdma.fabric import CHUNK, RemoteRegion
from s3verbs.rdma.samehost.fabric import SameHostFabric, SameHostRegion
from s3verbs.rdma.samehost.sink import MappedSink
from s3verbs.rdma.samehost.table import SessionTable
from s3verbs.rdma.sink import StagedSink
from s3verbs.rdma.staging import StagingArena, StagingPool
from s3verbs.rdma.token import Token, Transport
from s3verbs.rdma.verbs.errors import VerbsUnavailable
from s3verbs.rdma.verbs.fabric import VerbsFabric, open_verbs
from s3verbs.rdma.verbs.options import VerbsOptions

log = logging.getLogger("s3verbs")


def verbs_options(settings: Settings) -> VerbsOptions:
    return VerbsOptions(
        devices=settings.rdma_devices,
        dc_key=settings.rdma_dc_key,
        allowed_peers=settings.rdma_allowed_peers,
        max_connections=max(1, settings.rdma_max_connections // settings.workers),
        idle_timeout=settings.rdma_idle_timeout,
        transfer_timeout=settings.rdma_transfer_timeout,
    )


def open_lanes(
    settings: Settings,
    loop: asyncio.AbstractEventLoop,
    executor: ThreadPoolExecutor,
    *,
    worker: int,
    sessions: SessionTable | None,
) -> Lanes:
    """Raises VerbsUnavailable when RDMA is required and there is none."""
    timeout = settings.rdma_transfer_timeout
    if settings.rdma == "off":
        return Lanes({}, None, transfer_timeout=timeout, off="off by setting")
    arena = StagingArena(max(2, settings.rdma_pool_bytes // settings.workers // CHUNK) * CHUNK)
    pool = StagingPool(arena, patience=settings.rdma_queue_timeout)
    routes: dict[Transport, Route] = {}
    missing = ""

    def staged(region: RemoteRegion, token: Token) -> StagedSink:
        return StagedSink(region, pool, executor, peer=peer_of(token))

    try:
        verbs = open_verbs(verbs_options(settings), arena, loop)
    except VerbsUnavailable as error:
        if settings.rdma == "required":
            raise
        missing = f"no RC or DC: {error}"
        if worker == 0:
            log.info("rdma: %s", missing)
    else:
        _warn_of_the_default_key(settings, verbs, worker)
        for transport in verbs.transports:
            routes[transport] = Route(verbs, staged)
    if sessions is not None:
        routes[Transport.SAMEHOST] = Route(SameHostFabric(sessions, worker), _mapped, timed=False)
    if not routes:
        return Lanes({}, None, transfer_timeout=timeout, off=missing)
    return Lanes(routes, pool, transfer_timeout=timeout, missing=missing)


def _mapped(region: RemoteRegion, _: Token) -> MappedSink:
    assert isinstance(region, SameHostRegion), "the fabric's own regions"
    return MappedSink(region)


def _warn_of_the_default_key(settings: Settings, verbs: VerbsFabric, worker: int) -> None:
    default = Settings().rdma_dc_key
    loopback = all(address.host in ("127.0.0.1", "::1", "localhost") for address in settings.listen)
    if worker == 0 and Transport.DC in verbs.transports and settings.rdma_dc_key == default and not loopback:
        log.warning(
            "rdma_dc_key: the default, %#x, is known to everybody; set another here and in the clients' cufile.json",
            default,
        )


async def probe(settings: Settings) -> str:
    """What the devices of this machine offer, in one line, for the banner. Raises VerbsUnavailable when RDMA is
    required and there is none."""
    if settings.rdma == "off":
        return "off by setting"
    arena = StagingArena(2 * CHUNK)
    try:
        verbs = open_verbs(verbs_options(settings), arena, asyncio.get_running_loop())
    except VerbsUnavailable as error:
        if settings.rdma == "required":
            raise
        return f"no RC or DC: {error}"
    try:
        return verbs.describe()
    finally:
        await verbs.close()
