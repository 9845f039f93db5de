"""A server's end of a reliable connection, as plain as can be: one queue pair, one work request at a time.

The tests of the client's transport use it, so that they depend on no code of the server.
"""

import ctypes
import mmap
import time

from s3verbs.rdma import handshake
from s3verbs.rdma.token import Token
from s3verbs.rdma.verbs.api import CompletionQueue, Context, MemoryRegion, ProtectionDomain, QueuePair
from s3verbs.rdma.verbs.attributes import LocalSpan
from s3verbs.rdma.verbs.cm import ConnectParameters, Event, EventChannel, EventKind, Peer
from s3verbs.rdma.verbs.constants import Access, CompletionStatus, QueuePairState
from s3verbs.rdma.verbs.device import Rail, address_of

SECONDS = 30.0


class Refused(Exception):
    """The listener did not accept; `kind` and `status` are those of the event."""

    def __init__(self, event: Event) -> None:
        super().__init__(f"{event.kind.name} {event.status}")
        self.kind = event.kind
        self.status = event.status


class Initiator:
    """A device of the server's side with `size` bytes of registered memory. Use as a context manager."""

    def __init__(self, rail: Rail, size: int) -> None:
        self._source = Peer(rail.address)
        self._context = Context(rail.device)
        self._domain = ProtectionDomain(self._context)
        self._queue = CompletionQueue(self._context, 64)
        self.memory = mmap.mmap(-1, size)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self._region = MemoryRegion(self._domain, self._address, size, Access.LOCAL_WRITE)

    def __enter__(self) -> "Initiator":
        return self

    def __exit__(self, *_: object) -> None:
        for part in (self._region, self._domain, self._queue, self._context):
            part.close()

    def connect(self, token: Token, private_data: bytes | None = None) -> "Link":
        """`private_data`: what to say instead of the token's nonce. Raises Refused."""
        return Link(self, token, handshake.request(token.secret) if private_data is None else private_data)


class Link:
    """A connection to the client behind a token. Use as a context manager."""

    def __init__(self, owner: Initiator, token: Token, private_data: bytes) -> None:
        assert token.gid is not None
        self._owner = owner
        self._token = token
        self._work = 0
        self._channel = EventChannel()
        self._id = self._channel.create_id()
        self._pair = QueuePair(owner._domain, owner._queue, 16)
        try:
            # Without a source the kernel would take the client's own address, which is local too.
            self._id.resolve_address(owner._source, Peer(address_of(token.gid), token.qp), SECONDS)
            self.expect(EventKind.ADDR_RESOLVED)
            self._id.resolve_route(SECONDS)
            self.expect(EventKind.ROUTE_RESOLVED)
            self._id.connect(ConnectParameters(self._pair.number, private_data, 0, 16))
            event = self.expect(EventKind.CONNECT_RESPONSE)
            self.proved = handshake.is_reply(event.private_data, token.secret)
            for state in (QueuePairState.INIT, QueuePairState.RTR, QueuePairState.RTS):
                self._pair.modify(self._id.queue_pair_attributes(state))
            self._id.establish()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Link":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._id.disconnect()
        self._pair.close()
        self._id.close()
        self._channel.close()

    def expect(self, *kinds: EventKind) -> Event:
        """The next event, which must be of one of these kinds. Raises Refused."""
        event = self._channel.next_event(SECONDS)
        if event is None:
            raise TimeoutError(f"no {' or '.join(kind.name for kind in kinds)} after {SECONDS} s")
        if event.kind not in kinds:
            raise Refused(event)
        return event

    def write(self, data: bytes, offset: int = 0, *, rkey: int | None = None) -> CompletionStatus:
        """RDMA WRITE of the data to the token's memory at `offset`."""
        self._owner.memory[: len(data)] = data
        return self._transfer(self._pair.post_write, len(data), offset, rkey)

    def read(self, length: int, offset: int = 0, *, rkey: int | None = None) -> tuple[CompletionStatus, bytes]:
        """RDMA READ of the token's memory at `offset`."""
        status = self._transfer(self._pair.post_read, length, offset, rkey)
        return status, self._owner.memory[:length]

    def _transfer(self, post: object, length: int, offset: int, rkey: int | None) -> CompletionStatus:
        self._work += 1
        span = LocalSpan(self._owner._address, length, self._owner._region.lkey)
        key = self._token.rkey if rkey is None else rkey
        post(self._work, span, self._token.address + offset, key)  # type: ignore[operator]
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            for completion in self._owner._queue.poll(16):
                if completion.work == self._work:
                    return completion.status
            time.sleep(0.002)
        raise TimeoutError("no completion")
