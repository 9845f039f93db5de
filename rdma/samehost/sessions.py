"""The service that same-host clients open sessions with. Runs in the server's parent process, on its selector.

It must never wait: not for a client (sockets do not block, one answer to each message, whoever does not read is
dropped), and not for a client's memory (it touches none; see `process_memory.check_access`).
"""

import contextlib
import logging
import os
import selectors
import socket
import time
from collections.abc import Callable
from functools import partial

from s3verbs.rdma.samehost import protocol
from s3verbs.rdma.samehost.conversation import ANCILLARY, Conversation, Peer, Refuse, speaker
from s3verbs.rdma.samehost.protocol import Message, Refusal
from s3verbs.rdma.samehost.table import SessionTable

log = logging.getLogger("s3verbs")

HANDSHAKE_SECONDS = 5.0
NEWCOMERS = 64
"""Connections that have not proved anything yet."""
AT_ONCE = 16
"""Packets of one connection before the others get their turn; also connections accepted at a time."""
PATIENCE = (0.001, 0.05)
"""Seconds between two looks whether a region is quiet: at first, and at most."""
PAUSE_SECONDS = 1.0
"""How long nothing is accepted when descriptors are short."""


class SessionService:
    """Single-threaded. Owns `listener` (of `location.bind_socket`); `table` stays the caller's.

    To be made before workers are forked: they inherit the write end of a pipe, whose read end every client gets. When
    it hangs up, no process of this server exists any more, and none can touch the client's memory.
    """

    def __init__(self, listener: socket.socket, table: SessionTable) -> None:
        self._listener = listener
        self._table = table
        self._selector: selectors.BaseSelector | None = None
        self._peers: set[Peer] = set()
        self._newcomers = 0
        self._conversation = Conversation(table)
        self._wait = PATIENCE[0]
        self._look_at: float | None = None
        self._resume_at: float | None = None
        self._lifeline_out, self._lifeline_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listener.setblocking(False)

    @property
    def sessions(self) -> int:
        """How many are live."""
        return sum(peer.slot >= 0 and not peer.leaving for peer in self._peers)

    def register(self, selector: selectors.BaseSelector) -> None:
        """Watch the descriptors there, with `data` = what to call when one is readable."""
        self._selector = selector
        self._watch(self._listener, self._accept)

    def next_event(self) -> float | None:
        """Seconds until `tick` has something to do; None when it waits only for descriptors."""
        times = [peer.deadline for peer in self._peers if peer.slot < 0]
        times += [at for at in (self._look_at, self._resume_at) if at is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def tick(self) -> None:
        """Do what is due. May be called at any time."""
        now = time.monotonic()
        for peer in [peer for peer in self._peers if peer.slot < 0 and peer.deadline <= now]:
            self._end(peer)
        if self._look_at is not None and self._look_at <= now:
            self._answer_quiet()
        if self._resume_at is not None and self._resume_at <= now:
            self._resume_at = None if self._watch(self._listener, self._accept) else now + PAUSE_SECONDS

    def worker_exited(self, number: int) -> None:
        """That worker is dead and reaped: what it was doing is over."""
        self._table.clear(number)
        self._answer_quiet()

    def leave(self) -> None:
        """In a forked child: close what belongs to the parent. The pipe's write end stays open as long as the child."""
        for peer in self._peers:
            peer.socket.close()
            if peer.pidfd >= 0:
                os.close(peer.pidfd)
        self._peers.clear()
        self._listener.close()
        os.close(self._lifeline_out)
        self._lifeline_out = -1

    def close(self) -> None:
        """End all sessions; to be called when all workers are gone, so that each client can be told that its memory is
        its own again. Removes the socket's path."""
        for number in range(self._table.workers):
            self._table.clear(number)
        for peer in list(self._peers):
            self._end(peer)
        self._answer_quiet()
        if self._selector is not None and self._resume_at is None:
            self._unwatch(self._listener)
        self._listener.close()
        for descriptor in (self._lifeline_out, self._lifeline_in):
            os.close(descriptor)

    # -- connections --

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            connection.setblocking(False)
            if self._newcomers >= NEWCOMERS:
                self._send(connection, protocol.Refused(0, Refusal.BUSY, "too many connections at a time; try again"))
                connection.close()
                continue
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            peer = Peer(connection, time.monotonic() + HANDSHAKE_SECONDS)
            self._peers.add(peer)
            self._newcomers += 1
            if not self._watch(connection, partial(self._receive, peer)):
                self._end(peer)

    def _pause(self, error: OSError) -> None:
        """Short of descriptors: the listener would be readable again at once, for ever."""
        log.error("same-host socket: accept: %s", error.strerror)
        self._unwatch(self._listener)
        self._resume_at = time.monotonic() + PAUSE_SECONDS

    def _receive(self, peer: Peer) -> None:
        for _ in range(AT_ONCE):
            if peer.closed or peer.leaving:
                return
            try:
                packet, ancillary, flags, _ = peer.socket.recvmsg(protocol.MAX_MESSAGE + 1, ANCILLARY)
            except BlockingIOError:
                return
            except OSError:
                self._end(peer)
                return
            if not packet:
                self._end(peer)
                return
            serial = 0
            try:
                if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                    raise Refuse(Refusal.MALFORMED, "too long, or with descriptors")
                try:
                    message = protocol.decode(packet)
                except protocol.MalformedMessage as error:
                    raise Refuse(Refusal.MALFORMED, str(error)) from None
                serial = message.serial
                pid, uid = speaker(ancillary)
                answer = self._conversation.answer(peer, message, pid, uid)
            except Refuse as refusal:
                answer = protocol.Refused(serial, refusal.code, str(refusal))
            descriptors: tuple[int, ...] = ()
            if answer is None:
                self._look_soon()
                continue
            if isinstance(answer, protocol.Challenge):
                if not self._watch(peer.pidfd, partial(self._end, peer)):
                    answer = protocol.Refused(serial, Refusal.UNAVAILABLE, "the gateway is short of memory")
            elif isinstance(answer, protocol.Session):
                self._newcomers -= 1
                descriptors = (self._lifeline_out,)
            sent = self._send(peer.socket, answer, descriptors)
            if not sent or (isinstance(answer, protocol.Refused) and answer.code not in protocol.LASTING):
                self._end(peer)

    # -- endings --

    def _end(self, peer: Peer) -> None:
        """Nothing new begins for that client; close when nothing is in flight for it."""
        if peer.closed or peer.leaving:
            return
        self._unwatch(peer.socket)
        if peer.pidfd >= 0:
            self._unwatch(peer.pidfd)
        if peer.slot < 0:
            self._newcomers -= 1
            self._close(peer)
            return
        peer.leaving = True
        self._table.end(peer.slot)
        if any(slot == peer.slot for slot, _ in self._table.in_flight()):
            self._look_soon()
        else:
            self._farewell(peer)

    def _farewell(self, peer: Peer) -> None:
        for serial, handle, _ in peer.unregistering:
            self._send(peer.socket, protocol.Unregistered(serial, handle))
        self._send(peer.socket, protocol.Ended(0))
        self._table.vacate(peer.slot)
        self._close(peer)

    def _close(self, peer: Peer) -> None:
        peer.closed = True
        self._peers.discard(peer)
        peer.socket.close()
        if peer.pidfd >= 0:
            os.close(peer.pidfd)
        self._conversation.forget(peer)

    def _look_soon(self) -> None:
        self._wait = PATIENCE[0]
        self._look_at = time.monotonic() + self._wait

    def _answer_quiet(self) -> None:
        """Answer what waited for system calls that are over by now; look again later while some are not."""
        busy = self._table.in_flight()
        waiting = False
        for peer in [peer for peer in self._peers if peer.leaving or peer.unregistering]:
            if peer.leaving:
                if any(slot == peer.slot for slot, _ in busy):
                    waiting = True
                else:
                    self._farewell(peer)
                continue
            left = []
            for serial, handle, row in peer.unregistering:
                if (peer.slot, row) in busy:
                    left.append((serial, handle, row))
                    continue
                self._table.free(peer.slot, row)
                if not self._send(peer.socket, protocol.Unregistered(serial, handle)):
                    self._end(peer)
                    break
            peer.unregistering = left
            waiting = waiting or bool(left)
        self._wait = min(2 * self._wait, PATIENCE[1])
        self._look_at = time.monotonic() + self._wait if waiting or any(p.leaving for p in self._peers) else None

    # -- plumbing --

    def _send(self, connection: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> bool:
        """False when the client does not read, or is gone."""
        packet = protocol.encode(message)
        try:
            if descriptors:
                return socket.send_fds(connection, [packet], list(descriptors), socket.MSG_NOSIGNAL) == len(packet)
            return connection.send(packet, socket.MSG_NOSIGNAL) == len(packet)
        except OSError:
            return False

    def _watch(self, descriptor: socket.socket | int, react: Callable[[], None]) -> bool:
        """False when the kernel has no room for another watch."""
        assert self._selector is not None
        try:
            self._selector.register(descriptor, selectors.EVENT_READ, react)
        except OSError as error:
            log.error("same-host socket: %s", error.strerror)
            return False
        return True

    def _unwatch(self, descriptor: socket.socket | int) -> None:
        if self._selector is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(descriptor)
