"""Transport.SAMEHOST of the client: a session with the gateway's parent process on this machine."""

import contextlib
import logging
import os
import select
import socket
import struct
import threading
import time
import weakref

from s3verbs.rdma.client.transport import Memory, TransportUnavailable
from s3verbs.rdma.samehost import location, process_memory, protocol
from s3verbs.rdma.samehost.location import Candidate
from s3verbs.rdma.samehost.protocol import Message, Refusal
from s3verbs.rdma.token import HEAD_LENGTH, MAX_SIZE, Token, Transport

log = logging.getLogger("s3verbs")

PATIENCE = 5.0
"""Seconds for an answer of the gateway."""
SLICE = 0.02
"""Seconds that a thread waits with the lock held."""

_CREDENTIALS = struct.Struct("iII")


class _Refused(Exception):
    def __init__(self, code: Refusal, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Lost(Exception):
    """The connection is over."""


class _Link:
    """One session. The caller holds the transport's lock."""

    def __init__(self, candidate: Candidate) -> None:
        """Raises OSError, _Lost, _Refused, TransportUnavailable."""
        self.pid = os.getpid()
        self.ended = False
        """The gateway said that nothing touches our memory any more."""
        self.lost = False
        self.silent = False
        """It did not answer in time: good for nothing new, but what is registered can still be taken back in it."""
        self.quiet: set[int] = set()
        """Handles whose UNREGISTERED has come."""
        self._letting_go: set[int] = set()
        self._serial = 0
        self._answers: dict[int, Message] = {}
        self.lifeline = -1
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.socket.settimeout(PATIENCE)
            self.socket.connect(str(candidate.path))
            self.socket.setblocking(False)
            self._news = select.poll()
            self._news.register(self.socket, select.POLLIN)
            peer = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            self.supervisor, uid, _ = _CREDENTIALS.unpack(peer)
            if not location.is_trusted(candidate, uid):
                raise TransportUnavailable(f"{candidate.path} is listened on by uid {uid}, who is not trusted")
            self._open()
        except BaseException:
            self.socket.close()
            raise

    def _open(self) -> None:
        challenge = self.ask(protocol.Hello(self.next_serial()))
        if not isinstance(challenge, protocol.Challenge):
            raise _Lost("the gateway speaks another protocol")
        session = self.ask(protocol.Proof(self.next_serial(), challenge.nonce))
        if not isinstance(session, protocol.Session):
            raise _Lost("the gateway speaks another protocol")
        self._token_end = str(Token(0, 1, transport=Transport.SAMEHOST, secret=session.id))[HEAD_LENGTH:]

    def token(self, address: int, size: int) -> str:
        """For memory of this process; the caller has checked the numbers. Takes a tenth of the time of str(Token)."""
        return f"{address:016x}:{size:08x}{self._token_end}"

    def next_serial(self) -> int:
        self._serial = (self._serial + 1) % (1 << 32)
        return self._serial

    def ask(self, message: Message) -> Message:
        """The answer. Raises _Refused, _Lost."""
        deadline = time.monotonic() + PATIENCE
        spoken = self.send(message, deadline)
        while message.serial not in self._answers:
            if not spoken or not self.receive(deadline):
                self.silent = True
                raise _Lost("the gateway does not answer")
        answer = self._answers.pop(message.serial)
        if isinstance(answer, protocol.Refused):
            raise _Refused(answer.code, answer.text)
        return answer

    def send(self, message: Message, deadline: float) -> bool:
        """False when the gateway has not made room for it until then. Raises _Lost."""
        packet = protocol.encode(message)
        while True:
            try:
                self.socket.send(packet, socket.MSG_NOSIGNAL)
                return True
            except BlockingIOError:
                if not _ready(self.socket.fileno(), select.POLLOUT, max(0.0, deadline - time.monotonic())):
                    return False
            except OSError as error:
                self.hang_up()
                raise _Lost(str(error)) from None

    def usable(self) -> bool:
        """For something new."""
        return self.take_news() and not self.silent

    def take_news(self) -> bool:
        """Take what has come meanwhile. False when the connection is over."""
        if self.lost:
            return False
        if not self._news.poll(0):
            return True
        with contextlib.suppress(_Lost):
            while self.receive(0.0):
                pass
        return not self.lost

    def receive(self, deadline: float) -> bool:
        """Take one message; False when none comes until then. Raises _Lost."""
        if self.lost:
            raise _Lost("the gateway has ended the session")
        if not self._news.poll(1000 * max(0.0, deadline - time.monotonic())):
            return False
        try:
            packet, descriptors, flags, _ = socket.recv_fds(self.socket, protocol.MAX_MESSAGE + 1, 1)
        except BlockingIOError:
            return False
        except OSError as error:
            self.hang_up()
            raise _Lost(str(error)) from None
        for descriptor in descriptors:
            self._take(descriptor)
        try:
            if flags & socket.MSG_TRUNC:
                raise protocol.MalformedMessage("too long")
            message = protocol.decode(packet) if packet else None
        except protocol.MalformedMessage as error:
            self.hang_up()
            raise _Lost(f"the gateway: {error}") from None
        if message is None or isinstance(message, protocol.Ended):
            self.ended = message is not None
            self.hang_up()
            raise _Lost("the gateway has ended the session")
        if isinstance(message, protocol.Unregistered):
            self.quiet.add(message.handle)
        elif isinstance(message, protocol.Refused) and message.code is Refusal.NO_SUCH_REGION:
            pass  # Nothing of ours: only handles that were given are let go, once each.
        else:
            self._answers[message.serial] = message
        return True

    def _take(self, descriptor: int) -> None:
        if self.lifeline >= 0:
            os.close(descriptor)
            return
        os.set_inheritable(descriptor, False)
        self.lifeline = descriptor
        # Not before the last registration has let go of the link: it may have to ask.
        weakref.finalize(self, os.close, descriptor)

    def hang_up(self) -> None:
        self.lost = True
        self.socket.close()

    def __del__(self) -> None:
        self.socket.close()

    def is_quiet(self, handle: int) -> bool:
        """Whether the gateway is known to be unable to touch that region any more. Asks it to let go; does not wait."""
        if self.pid != os.getpid() or self.ended or handle in self.quiet:
            return True
        if not self.lost and handle not in self._letting_go:
            with contextlib.suppress(_Lost):
                if self.send(protocol.Unregister(self.next_serial(), handle), time.monotonic()):
                    self._letting_go.add(handle)
                self.receive(time.monotonic() + SLICE)
        if not self.take_news():
            return self.ended or handle in self.quiet or self._gateway_is_gone()
        return handle in self.quiet

    def _gateway_is_gone(self) -> bool:
        """Whether no process of that gateway exists any more: they all hold the other end of the pipe."""
        if self.lifeline < 0:
            return False
        return _ready(self.lifeline, 0, 0.0)

    def wait(self, seconds: float) -> None:
        """Until there may be news for `is_quiet`, or so long."""
        descriptor = self.lifeline if self.lost else self.socket.fileno()
        if descriptor >= 0:
            _ready(descriptor, 0 if self.lost else select.POLLIN, seconds)
        else:
            time.sleep(seconds)


def _ready(descriptor: int, events: int, seconds: float) -> bool:
    """Whether one of the events comes until then; that the other end has hung up always counts."""
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(seconds * 1000))


class SameHostTransport:
    """Implements `ClientTransport` for a gateway on this machine. Any thread; calls take turns.

    It connects when it is first used, and again after the gateway was restarted; memory that is still registered is
    then registered again when its next token is asked for. In a forked child it opens a session of the child's own.
    """

    transport = Transport.SAMEHOST

    def __init__(self, endpoint_host: str, endpoint_port: int, socket_path: str | None = None) -> None:
        """The endpoint as the S3 client has it. With `socket_path` (or S3VERBS_SOCKET) that socket is used wherever
        the endpoint seems to be. Connects to nothing yet; raises nothing."""
        self._host = endpoint_host
        self._port = endpoint_port
        self._socket_path = socket_path
        self._here: bool | None = None
        self._lock = threading.Lock()
        self._link: _Link | None = None
        self._registered: set[SameHostRegistration] = set()
        _transports.add(self)

    def register(self, memory: Memory) -> "SameHostRegistration":
        """Raises TransportUnavailable: GPU memory, memory that is not mapped, no gateway on this machine, a gateway
        that may not reach this process, or that has no more room."""
        if memory.gpu is not None:
            raise TransportUnavailable("the same-host transport moves host memory only, and this is a GPU's")
        if memory.size <= 0:
            raise TransportUnavailable("there is nothing to register in 0 bytes")
        if not (
            process_memory.is_mapped(memory.address) and process_memory.is_mapped(memory.address + memory.size - 1)
        ):
            raise TransportUnavailable(f"{memory.size} bytes at {memory.address:#x} are not mapped in this process")
        registration = SameHostRegistration(self, memory)
        with self._lock:
            registration._join()
            self._registered.add(registration)
        return registration

    def close(self) -> None:
        """Revokes what is still registered, and ends the session. What could not be taken back within some seconds
        stays registered; its `revoke` can be called again."""
        deadline = time.monotonic() + PATIENCE
        for registration in list(self._registered):
            registration._revoke(deadline)
        with self._lock:
            link, self._link = self._link, None
            if link is not None and not self._registered:
                link.hang_up()

    # -- with the lock held --

    def _connected(self) -> _Link:
        link = self._link
        if link is not None and link.pid == os.getpid() and link.usable():
            return link
        if link is not None and link.pid != os.getpid():
            # This closes the forked child's copy only; the parent's session goes on.
            link.hang_up()
        self._link = None
        self._link = self._connect()
        return self._link

    def _connect(self) -> _Link:
        named = self._socket_path or os.environ.get(location.VARIABLE)
        if self._here is None:
            self._here = bool(named) or location.is_this_machine(self._host)
        if not self._here:
            raise TransportUnavailable(f"{self._host} is not this machine")
        problems = []
        for candidate in location.candidates(self._port, self._socket_path):
            if not candidate.path.exists():
                continue
            try:
                return _Link(candidate)
            except (OSError, _Lost, _Refused, TransportUnavailable) as error:
                problems.append(f"{candidate.path}: {error}")
        raise TransportUnavailable("; ".join(problems) or self._no_socket())

    def _no_socket(self) -> str:
        places = ", ".join(str(candidate.path) for candidate in location.candidates(self._port, self._socket_path))
        return f"no gateway has a same-host socket for port {self._port} here ({places})"

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()


_transports: weakref.WeakSet[SameHostTransport] = weakref.WeakSet()


def _after_fork() -> None:
    # Another thread of the parent may have held a lock.
    for transport in list(_transports):
        transport._renew_lock()


os.register_at_fork(after_in_child=_after_fork)


class SameHostRegistration:
    """Implements `Registration`. Made by `SameHostTransport.register`."""

    def __init__(self, transport: SameHostTransport, memory: Memory) -> None:
        self._transport = transport
        self._memory = memory
        self._revoked = False
        self._held: list[tuple[_Link, int]] = []
        """Sessions in which the memory is registered, under which handle; only the last can be the current one, the
        others were lost, and their gateway may still be at it."""

    def token(self, offset: int, size: int) -> str:
        """Raises TransportUnavailable when there is no gateway any more, or after `revoke`."""
        if offset < 0 or not 0 < size <= MAX_SIZE or offset + size > self._memory.size:
            raise ValueError(f"[{offset}, {offset + size}) of {self._memory.size} bytes, {MAX_SIZE} at most")
        with self._transport._lock:
            if self._revoked:
                raise TransportUnavailable("the memory was revoked")
            return self._join().token(self._memory.address + offset, size)

    def revoke(self) -> bool:
        """True: the gateway has answered that nothing touches the memory, or has ended the session in order, or none
        of its processes exists any more."""
        return self._revoke(time.monotonic() + PATIENCE)

    def _revoke(self, deadline: float) -> bool:
        while True:
            # The lock is let go now and then: other memory's tokens need not wait for a gateway that is slow here.
            with self._transport._lock:
                self._revoked = True
                self._held = [(link, handle) for link, handle in self._held if not link.is_quiet(handle)]
                if not self._held:
                    self._transport._registered.discard(self)
                    return True
                if time.monotonic() >= deadline:
                    return False
                self._held[0][0].wait(SLICE)

    def _join(self) -> _Link:
        """Be registered in the current session. With the transport's lock held."""
        for _ in range(2):
            link = self._transport._connected()
            if self._held and self._held[-1][0] is link:
                return link
            # What a parent process has registered is its own.
            self._held = [(former, handle) for former, handle in self._held if former.pid == link.pid]
            try:
                self._held.append((link, self._register(link)))
            except _Lost:
                continue  # The gateway was restarted just now.
            return link
        raise TransportUnavailable("the gateway ends the session at once")

    def _register(self, link: _Link) -> int:
        size = self._memory.size
        for last in (False, True):
            try:
                answer = link.ask(protocol.Register(link.next_serial(), self._memory.address, size))
            except _Refused as refusal:
                if refusal.code is Refusal.NOT_PERMITTED and link.supervisor > 0 and not last:
                    # Only now: there is one such permission in a process, and it may have been given to another.
                    process_memory.allow_tracer(link.supervisor)
                    continue
                raise TransportUnavailable(str(refusal)) from None
            if isinstance(answer, protocol.Registered):
                return answer.handle
            break
        link.hang_up()
        raise TransportUnavailable("the gateway speaks another protocol")
