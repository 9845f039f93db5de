"""RDMA over verbs: opens this machine's RoCE devices, and turns tokens into regions over them."""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from s3verbs.rdma.errors import Decline, Declined
from s3verbs.rdma.fabric import CHUNK, Arena, RemoteRegion
from s3verbs.rdma.token import Token, Transport
from s3verbs.rdma.verbs import api, cm
from s3verbs.rdma.verbs.connections import ConnectionCache, Key
from s3verbs.rdma.verbs.device import Rail, address_of, explain
from s3verbs.rdma.verbs.dialing import Dialer
from s3verbs.rdma.verbs.errors import VerbsError, VerbsUnavailable
from s3verbs.rdma.verbs.opened_device import OpenedDevice
from s3verbs.rdma.verbs.options import VerbsOptions
from s3verbs.rdma.verbs.rails import Rails
from s3verbs.rdma.verbs.region import RcRegion
from s3verbs.rdma.verbs.sysfs import read_inventory

_log = logging.getLogger(__name__)

_THREADS = 8
"""Connections that are made or taken down at once."""


class VerbsFabric:
    """A Fabric for RC. Loop thread only."""

    def __init__(
        self,
        devices: Sequence[OpenedDevice],
        rails: Rails,
        options: VerbsOptions,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Takes over the devices; `open_verbs` is how to get one."""
        self._devices = {device.name: device for device in devices}
        self._rails = rails
        self._options = options
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="rdma-cm")
        dialer = Dialer(self._devices, rails, self._executor, options.connect_timeout)
        most = min(options.max_connections, *(device.room for device in devices))
        self._cache = ConnectionCache(dialer.dial, loop, most=most, idle_timeout=options.idle_timeout)

    @property
    def transports(self) -> frozenset[Transport]:
        return frozenset({Transport.RC})

    async def open(self, token: Token) -> RemoteRegion:
        if token.transport is not Transport.RC or token.gid is None:
            raise Declined(Decline.NO_TRANSPORT)
        if not self._rails.allows(token.gid):
            raise Declined(Decline.PEER_NOT_ALLOWED, f"{address_of(token.gid)} is not an allowed peer")
        key = Key(token.gid, token.qp, token.secret)
        connection = await self._cache.lease(key)
        return RcRegion(token, key, connection, self._cache, self._options.transfer_timeout)

    def describe(self) -> str:
        resting = set(self._rails.resting())
        names = [f"{rail}{', resting' if rail in resting else ''}" for rail in sorted(self._rails.all, key=str)]
        return "RC on " + ", ".join(names)

    async def close(self) -> None:
        await self._cache.close()
        self._executor.shutdown()
        for device in self._devices.values():
            device.close()


def open_verbs(options: VerbsOptions, arena: Arena, loop: asyncio.AbstractEventLoop) -> VerbsFabric:
    """Opens the devices and registers the arena with each; takes about 0.1 s per GiB. `loop` is the one that will call
    the fabric; it need not run yet. The arena must outlive the fabric. Raises VerbsUnavailable, whose text says why
    there is no RDMA here, and ValueError for a malformed pin."""
    api.load()
    cm.load()
    verdicts = explain(read_inventory(), options.devices)
    rails = [verdict.rail for verdict in verdicts if verdict.rail is not None]
    problems = [f"{verdict.device}: {verdict.text}" for verdict in verdicts if verdict.rail is None and verdict.wanted]
    if not rails and not problems:
        problems = [f"{verdict.device}: {verdict.text}" for verdict in verdicts]
    devices: dict[str, OpenedDevice] = {}
    usable: list[Rail] = []
    refused: set[str] = set()
    for rail in rails:
        try:
            if rail.device not in devices and rail.device not in refused:
                devices[rail.device] = OpenedDevice(rail.device, options.max_connections, arena, loop)
            if rail.device in devices:
                _check(devices[rail.device], rail)
                usable.append(rail)
        except VerbsUnavailable as error:
            refused.add(rail.device)
            problems.append(str(error))
    for name in devices.keys() - {rail.device for rail in usable}:
        devices.pop(name).close()
    if not usable:
        raise VerbsUnavailable("; ".join(problems) or "no RDMA device is known to the kernel")
    for problem in problems:
        _log.warning("not used for RDMA: %s", problem)
    return VerbsFabric(list(devices.values()), Rails(usable, options.allowed_peers, loop.time), options, loop)


def _check(device: OpenedDevice, rail: Rail) -> None:
    """Raises VerbsUnavailable."""
    try:
        port = device.port(rail.port)
    except VerbsError as error:
        raise VerbsUnavailable(f"{rail}: {error}") from error
    if port.max_message < CHUNK:
        raise VerbsUnavailable(f"{rail} moves only {port.max_message} bytes at once; {CHUNK} are needed")
