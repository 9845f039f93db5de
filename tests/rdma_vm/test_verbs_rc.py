"""RC over real verbs: Soft-RoCE, two devices with a wire between them; the server uses rxe0, clients rxe1."""

import asyncio
import ctypes
import json
import mmap
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from s3verbs.rdma import handshake
from s3verbs.rdma.errors import Decline, Declined, Failure, PeerUnreachable, RemoteAccess
from s3verbs.rdma.fabric import CHUNK
from s3verbs.rdma.token import Token, parse
from s3verbs.rdma.verbs.device import GidEntry, address_of, gid_of
from s3verbs.rdma.verbs.fabric import VerbsFabric, open_verbs
from s3verbs.rdma.verbs.options import VerbsOptions
from s3verbs.rdma.verbs.sysfs import read_inventory
from tests.rdma_vm.rc_peer import RcPeer
from tests.rdma_vm.resources import wire

MIB = 1 << 20
SERVER, CLIENT = ("rxe0", "10.77.0.1"), ("rxe1", "10.77.0.2")
# An emulated machine under load answers late; what is tested is that things end, not how soon.
OPTIONS = VerbsOptions(devices=(SERVER[0],), connect_timeout=10.0, transfer_timeout=30.0)


class MappedArena:
    def __init__(self, chunks: int) -> None:
        self.memory = mmap.mmap(-1, chunks * CHUNK)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.size = chunks * CHUNK

    def buffer(self, number: int) -> "MappedBuffer":
        return MappedBuffer(self, number * CHUNK)


class MappedBuffer:
    def __init__(self, arena: MappedArena, offset: int) -> None:
        self.address = arena.address + offset
        self.view = memoryview(arena.memory)[offset : offset + CHUNK]


@asynccontextmanager
async def opened(options: VerbsOptions = OPTIONS, chunks: int = 8) -> AsyncIterator[tuple[VerbsFabric, MappedArena]]:
    arena = MappedArena(chunks)
    fabric = open_verbs(options, arena, asyncio.get_running_loop())
    try:
        yield fabric, arena
    finally:
        await fabric.close()


@contextmanager
def listening(size: int = 8 * MIB, where: tuple[str, str] = CLIENT, **options: object) -> Iterator[RcPeer]:
    peer = RcPeer(*where, size, **options)
    try:
        yield peer
    finally:
        peer.close()


@contextmanager
def other_process(size: int = 8 * MIB) -> Iterator[tuple[subprocess.Popen[str], Token]]:
    command = [sys.executable, str(Path(__file__).with_name("rc_peer.py")), *CLIENT, str(size)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, parse(json.loads(process.stdout.readline())["token"])
        finally:
            process.kill()


def resources() -> dict[str, str]:
    """Queue pairs, memory regions, ids of the kernel, by device, and the descriptors of this process."""
    text = subprocess.run(["rdma", "res", "show"], capture_output=True, text=True, check=True).stdout
    found = {line.split(":")[1].strip(): line.split(":")[2].strip() for line in text.splitlines()}
    return found | {"descriptors": str(sum(1 for _ in Path("/proc/self/fd").iterdir()))}


@pytest.fixture(scope="module")
def devices_known() -> None:
    """librdmacm keeps every device open that it has met once."""
    for where in (SERVER, CLIENT):
        with listening(size=CHUNK, where=where):
            pass


@pytest.fixture(autouse=True)
def nothing_is_left(devices_known: None) -> Iterator[None]:
    before = resources()
    yield
    assert resources() == before


async def test_8_mib_both_ways_in_chunks() -> None:
    with listening() as peer:
        peer.memory[:] = content = secrets.token_bytes(8 * MIB)
        async with opened() as (fabric, arena):
            region = await fabric.open(peer.token())
            assert (region.size, region.device, region.transport.value) == (8 * MIB, "rxe0", "rc")
            buffers = [arena.buffer(n) for n in range(8)]
            await asyncio.gather(*(region.read(n * CHUNK, buffers[n], CHUNK) for n in range(8)))
            assert arena.memory[:] == content
            arena.memory[:] = other = secrets.token_bytes(8 * MIB)
            await asyncio.gather(*(region.write(n * CHUNK, buffers[n], CHUNK) for n in range(8)))
            assert peer.memory[:] == other
            await region.close()
        assert peer.accepted == 1


async def test_odd_offsets_touch_nothing_else() -> None:
    with listening(size=MIB) as peer:
        async with opened() as (fabric, arena):
            region = await fabric.open(peer.token())
            arena.memory[:CHUNK] = content = secrets.token_bytes(CHUNK)
            await region.write(1001, arena.buffer(0), 77, start=13)
            assert peer.memory[:] == bytes(1001) + content[13:90] + bytes(MIB - 1078)
            arena.memory[:] = bytes(arena.size)
            await region.read(1000, arena.buffer(2), 79)
            assert arena.memory[:] == bytes(2 * CHUNK + 1) + content[13:90] + bytes(6 * CHUNK - 78)
            await region.close()


async def test_wrong_rkey_fails_that_request_only() -> None:
    with listening() as peer:
        async with opened() as (fabric, arena):
            good = await fabric.open(peer.token())
            bad = await fabric.open(peer.token(rkey=peer.region.rkey ^ 0x5500))
            await good.read(0, arena.buffer(0), CHUNK)
            with pytest.raises(RemoteAccess):
                await bad.read(0, arena.buffer(1), CHUNK)
            with pytest.raises((RemoteAccess, PeerUnreachable)):
                await bad.write(0, arena.buffer(1), CHUNK)
            peer.memory[:CHUNK] = content = secrets.token_bytes(CHUNK)
            await good.read(0, arena.buffer(0), CHUNK)
            assert arena.memory[:CHUNK] == content
            await bad.close()
            await good.close()


async def test_a_token_that_claims_more_than_is_registered() -> None:
    with listening(size=MIB) as peer:
        async with opened() as (fabric, arena):
            region = await fabric.open(peer.token(size=2 * MIB))
            with pytest.raises(RemoteAccess):
                await region.write(MIB - 4096, arena.buffer(0), 8192)
            await region.close()


async def test_the_listener_refuses_another_nonce() -> None:
    with listening() as peer:
        async with opened() as (fabric, _):
            with pytest.raises(PeerUnreachable) as failure:
                await fabric.open(peer.token(secret=bytes(16)))
            assert failure.value.reason is Failure.REJECTED
        assert peer.accepted == 0


async def test_a_listener_without_the_proof_gets_nothing() -> None:
    with listening(answer=lambda nonce: handshake.reply(bytes(16))) as peer:
        async with opened() as (fabric, _):
            with pytest.raises(PeerUnreachable) as failure:
                await fabric.open(peer.token())
            assert failure.value.reason is Failure.REJECTED


async def test_nobody_listens() -> None:
    with listening() as peer:
        token = peer.token()
    async with opened() as (fabric, _):
        with pytest.raises(PeerUnreachable) as failure:
            await fabric.open(token)
        assert failure.value.reason is Failure.UNREACHABLE


async def test_peers_outside_the_own_subnets_are_declined() -> None:
    with listening() as peer:
        async with opened() as (fabric, _):
            with pytest.raises(Declined) as decline:
                await fabric.open(peer.token(gid=bytes(10) + b"\xff\xff" + bytes((192, 0, 2, 1))))
            assert decline.value.reason is Decline.PEER_NOT_ALLOWED
        async with opened(replace(OPTIONS, allowed_peers=(ip_network("192.0.2.0/24"),))) as (fabric, _):
            with pytest.raises(Declined) as decline:
                await fabric.open(peer.token())
            assert decline.value.reason is Decline.PEER_NOT_ALLOWED


async def test_loopback_on_one_device() -> None:
    with listening(size=MIB, where=SERVER) as peer:
        peer.memory[:] = content = secrets.token_bytes(MIB)
        async with opened() as (fabric, arena):
            region = await fabric.open(peer.token())
            await region.read(0, arena.buffer(0), CHUNK)
            assert arena.memory[:CHUNK] == content
            await region.close()


@pytest.mark.parametrize("address", ["fd77::1", "link-local"])
async def test_ipv6(address: str) -> None:
    if address == "link-local":
        gid = next(entry.gid for entry in _gids(SERVER[0]) if address_of(entry.gid).is_link_local)
        where, scope = str(address_of(gid)), socket.if_nametoindex("rva")
    else:
        _ip(f"addr add {address}/64 dev rva nodad")
        where, scope = address, 0
    try:
        for _ in range(100):
            found = [entry.index for entry in _gids(SERVER[0]) if entry.gid == gid_of(ip_address(where))]
            if found:
                break
            await asyncio.sleep(0.1)
        with listening(size=CHUNK, where=(SERVER[0], where), scope=scope) as peer:
            peer.memory[:] = content = secrets.token_bytes(CHUNK)
            async with opened(replace(OPTIONS, devices=(f"{SERVER[0]}:1:{found[0]}",))) as (fabric, arena):
                region = await fabric.open(peer.token())
                await region.read(0, arena.buffer(0), CHUNK)
                assert arena.memory[:CHUNK] == content
                await region.close()
    finally:
        if not scope:
            _ip(f"addr del {address}/64 dev rva")


def _gids(device: str) -> Sequence[GidEntry]:
    return next(found for found in read_inventory().devices if found.name == device).ports[0].gids


async def test_a_peer_killed_in_the_middle_of_reads() -> None:
    with other_process() as (process, token):
        async with opened() as (fabric, arena):
            region = await fabric.open(token)
            await region.read(0, arena.buffer(0), CHUNK)
            assert arena.memory[:CHUNK] == b"\x5a" * CHUNK
            reads = [asyncio.ensure_future(region.read(n * CHUNK, arena.buffer(n), CHUNK)) for n in range(8)]
            await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
            process.kill()
            process.wait()
            results = await asyncio.gather(*reads, return_exceptions=True)
            # Those that were through are fine; the rest were lost, called again, and found nobody.
            assert all(result is None or isinstance(result, PeerUnreachable) for result in results)
            with pytest.raises(PeerUnreachable):
                await region.read(0, arena.buffer(0), CHUNK)
            arena.memory[:] = bytes(arena.size)
            await asyncio.sleep(0.5)
            assert arena.memory[:] == bytes(arena.size)
            await region.close()


async def test_a_silent_peer_is_given_up_before_the_transfer_timeout() -> None:
    options = replace(OPTIONS, connect_timeout=2.0, transfer_timeout=60.0)
    with listening() as peer:
        async with opened(options) as (fabric, arena):
            region = await fabric.open(peer.token())
            await region.read(0, arena.buffer(0), CHUNK)
            wire("down")
            try:
                with pytest.raises(PeerUnreachable) as raised:
                    await region.read(0, arena.buffer(0), CHUNK)
            finally:
                wire("up")
            assert raised.value.reason is not Failure.TIMEOUT
            await region.close()
        # What is left of the peer's half ends when it learns of it, or here.
    async with opened() as (fabric, arena):
        with listening() as peer:
            region = await fabric.open(peer.token())
            await region.read(0, arena.buffer(0), CHUNK)
            await region.close()


async def test_cancelled_reads_leave_the_buffer_alone() -> None:
    with listening() as peer:
        peer.memory[:] = b"\x5a" * peer.size
        async with opened() as (fabric, arena):
            for turn in range(10):
                region = await fabric.open(peer.token())
                reads = [asyncio.ensure_future(region.read(n * CHUNK, arena.buffer(n), CHUNK)) for n in range(8)]
                for _ in range(turn):
                    await asyncio.sleep(0)
                for read in reads:
                    read.cancel()
                await asyncio.gather(*reads, return_exceptions=True)
                arena.memory[:] = bytes(arena.size)
                await asyncio.sleep(0.05)
                assert arena.memory[:] == bytes(arena.size)
                await region.read(0, arena.buffer(0), CHUNK)
                assert arena.memory[:CHUNK] == b"\x5a" * CHUNK
                await region.close()


async def test_requests_of_one_client_share_a_connection() -> None:
    with listening() as peer:
        async with opened() as (fabric, arena):
            regions = await asyncio.gather(*(fabric.open(peer.token()) for _ in range(16)))
            await asyncio.gather(*(region.read(0, arena.buffer(n % 8), CHUNK) for n, region in enumerate(regions)))
            for region in regions:
                await region.close()
        assert peer.accepted == 1


async def test_connections_make_room_for_others() -> None:
    peers = [RcPeer(*CLIENT, CHUNK) for _ in range(4)]
    try:
        async with opened(replace(OPTIONS, max_connections=2)) as (fabric, arena):
            for peer in peers:
                region = await fabric.open(peer.token())
                await region.read(0, arena.buffer(0), CHUNK)
                await region.close()
            first, second = [await fabric.open(peer.token()) for peer in peers[:2]]
            with pytest.raises(Declined) as decline:
                await fabric.open(peers[2].token())
            assert decline.value.reason is Decline.NO_CONNECTION
            await first.close()
            third = await fabric.open(peers[2].token())
            await asyncio.gather(second.close(), third.close())
    finally:
        for peer in peers:
            peer.close()


async def test_200_connects_leave_nothing() -> None:
    with listening(size=CHUNK) as peer:
        async with opened() as (fabric, arena):
            during = None
            for turn in range(200):
                region = await fabric.open(peer.token())
                await region.write(0, arena.buffer(0), 4096)
                await region.close()
                for connection in list(fabric._cache._live.values()):
                    await connection.close()
                await asyncio.wait_for(_until(lambda: peer.connections == 0), 10)
                if turn == 20:
                    during = resources()
            assert resources() == during
        assert peer.accepted == 200


async def test_describes_itself() -> None:
    async with opened() as (fabric, _):
        assert fabric.describe() == "RC on rxe0:1:1 (10.77.0.1 on rva)"


async def _until(condition: object) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True)
