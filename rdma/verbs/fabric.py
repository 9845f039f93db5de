"""RDMA over verbs: opens this machine's RoCE devices, and turns tokens into regions over them."""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from s3verbs.rdma.errors import Decline, Declined
from s3verbs.rdma.fabric import CHUNK, Arena, RemoteRegion
from s3verbs.rdma.token import Token, Transport
from s3verbs.rdma.verbs import api, cm
from s3verbs.rdma.verbs.connections import ConnectionCache, Key
from s3verbs.rdma.verbs.dc import INITIATORS, DcRail
from s3verbs.rdma.verbs.dc_link import Manner, check
from s3verbs.rdma.verbs.device import Rail, address_of, explain
from s3verbs.rdma.verbs.dialing import Dialer
from s3verbs.rdma.verbs.errors import VerbsError, VerbsUnavailable
from s3verbs.rdma.verbs.opened_device import OpenedDevice
from s3verbs.rdma.verbs.options import VerbsOptions
from s3verbs.rdma.verbs.rails import Rails
from s3verbs.rdma.verbs.region import RcRegion
from s3verbs.rdma.verbs.sysfs import read_inventory

_log = logging.getLogger(__name__)

_THREADS = 16
"""Connections that are made at once: each holds a thread for as long as its peer does not answer."""


class VerbsFabric:
    """A Fabric for RC, and for DC when it has rails that speak it. Loop thread only."""

    def __init__(
        self,
        devices: Sequence[OpenedDevice],
        rails: Rails,
        options: VerbsOptions,
        loop: asyncio.AbstractEventLoop,
        dc_rails: Sequence[Rail] = (),
    ) -> None:
        """Takes over the devices; `open_verbs` is how to get one. Each of `dc_rails` uses INITIATORS of its device's
        queue pairs."""
        self._devices = {device.name: device for device in devices}
        self._rails = rails
        self._options = options
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="rdma-connect")
        self._closer = ThreadPoolExecutor(2, thread_name_prefix="rdma-close")
        dialer = Dialer(self._devices, rails, self._executor, self._closer, options.connect_timeout)
        taken = Counter(rail.device for rail in dc_rails)
        most = min(options.max_connections, *(device.room - INITIATORS * taken[device.name] for device in devices))
        self._cache = ConnectionCache(dialer.dial, loop, most=most, idle_timeout=options.idle_timeout)
        self._dc = {
            rail: DcRail(
                rail,
                self._devices[rail.device],
                self._executor,
                loop,
                Manner(options.dc_key),
                transfer_timeout=options.transfer_timeout,
            )
            for rail in dc_rails
        }

    @property
    def transports(self) -> frozenset[Transport]:
        return frozenset({Transport.RC, Transport.DC} if self._dc else {Transport.RC})

    @property
    def connections(self) -> int:
        return len(self._cache)

    async def open(self, token: Token) -> RemoteRegion:
        if token.transport not in self.transports:
            raise Declined(Decline.NO_TRANSPORT)
        if token.gid is None:
            raise Declined(Decline.NO_ROUTE, "the token has no GID")
        if not self._rails.allows(token.gid):
            raise Declined(Decline.PEER_NOT_ALLOWED, f"{address_of(token.gid)} is not an allowed peer")
        if token.transport is Transport.DC:
            return self._open_dc(token, token.gid)
        key = Key(token.gid, token.qp, token.secret)
        connection = await self._cache.lease(key)
        return RcRegion(token, key, connection, self._cache, self._options.transfer_timeout)

    def _open_dc(self, token: Token, gid: bytes) -> RemoteRegion:
        rail = next((rail for rail in self._rails.to(gid) if rail in self._dc), None)
        if rail is None:
            raise Declined(Decline.NO_ROUTE, f"no device with DC reaches {address_of(gid)}")
        return self._dc[rail].open(token)

    def describe(self) -> str:
        resting = set(self._rails.resting())
        names = [f"{rail}{', resting' if rail in resting else ''}" for rail in sorted(self._rails.all, key=str)]
        spoken = ["RC on " + ", ".join(names)]
        if self._dc:
            spoken.append("DC on " + ", ".join(sorted(map(str, self._dc))))
        return "; ".join(spoken)

    async def close(self) -> None:
        await self._cache.close()
        for dc_rail in self._dc.values():
            await dc_rail.close()
        self._executor.shutdown()
        self._closer.shutdown()
        for device in self._devices.values():
            device.close()


def open_verbs(options: VerbsOptions, arena: Arena, loop: asyncio.AbstractEventLoop) -> VerbsFabric:
    """Opens the devices and registers the arena with each; takes about 0.1 s per GiB. `loop` is the one that will call
    the fabric; it need not run yet. The arena must outlive the fabric. Raises VerbsUnavailable, whose text says why
    there is no RDMA here, and ValueError for a malformed pin."""
    verdicts = explain(read_inventory(), options.devices)
    rails = [verdict.rail for verdict in verdicts if verdict.rail is not None]
    problems = [f"{verdict.device}: {verdict.text}" for verdict in verdicts if verdict.rail is None and verdict.wanted]
    if not rails:
        # Before the libraries: who has no device needs none.
        problems = problems or [f"{verdict.device}: {verdict.text}" for verdict in verdicts]
        raise VerbsUnavailable("; ".join(problems) or "the kernel knows no RDMA device")
    api.load()
    cm.load()
    devices: dict[str, OpenedDevice] = {}
    usable: list[Rail] = []
    refused: set[str] = set()
    for rail in rails:
        try:
            if rail.device not in devices and rail.device not in refused:
                queue_pairs = options.max_connections + INITIATORS * sum(_may_dc(each) for each in rails)
                devices[rail.device] = OpenedDevice(rail.device, queue_pairs, arena, loop)
            if rail.device in devices:
                _check(devices[rail.device], rail)
                usable.append(rail)
        except VerbsUnavailable as error:
            refused.add(rail.device)
            problems.append(str(error))
    for name in devices.keys() - {rail.device for rail in usable}:
        devices.pop(name).close()
    if not usable:
        raise VerbsUnavailable("; ".join(problems))
    for problem in problems:
        _log.warning("not used for RDMA: %s", problem)
    dc_rails: list[Rail] = []
    for rail in usable:
        wanted = INITIATORS * (1 + sum(rail.device == other.device for other in dc_rails))
        if _may_dc(rail) and _speaks_dc(devices[rail.device], rail, options.dc_key, wanted):
            dc_rails.append(rail)
    return VerbsFabric(list(devices.values()), Rails(usable, options.allowed_peers, loop.time), options, loop, dc_rails)


def _may_dc(rail: Rail) -> bool:
    return rail.driver == "mlx5"


def _speaks_dc(device: OpenedDevice, rail: Rail, key: int, queue_pairs: int) -> bool:
    """`queue_pairs`: how many of the device's DC would have; RC needs some too."""
    if device.room <= queue_pairs:
        _log.warning("no DC on %s: the device has only %d queue pairs", rail, device.room)
        return False
    try:
        check(device, rail, Manner(key))
    except VerbsUnavailable as error:
        _log.warning("no DC on %s: %s", rail, error)
        return False
    return True


def _check(device: OpenedDevice, rail: Rail) -> None:
    """Raises VerbsUnavailable."""
    try:
        port = device.port(rail.port)
    except VerbsError as error:
        raise VerbsUnavailable(f"{rail}: {error}") from error
    if port.max_message < CHUNK:
        raise VerbsUnavailable(f"{rail} moves only {port.max_message} bytes at once; {CHUNK} are needed")
