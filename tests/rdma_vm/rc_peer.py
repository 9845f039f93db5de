"""A client of RC transfers reduced to what the server's half needs: a listener, a nonce, one memory region.

As a program it prints one line of JSON and serves until its standard input ends:
    python rc_peer.py DEVICE ADDRESS SIZE
"""

import ctypes
import ipaddress
import json
import mmap
import secrets
import sys
import threading
from collections.abc import Callable

from s3verbs.rdma import handshake
from s3verbs.rdma.token import Token, Transport
from s3verbs.rdma.verbs import cm
from s3verbs.rdma.verbs.api import CompletionQueue, Context, ProtectionDomain, QueuePair
from s3verbs.rdma.verbs.constants import QueuePairState
from s3verbs.rdma.verbs.device import gid_of
from s3verbs.rdma.verbs.memory import REMOTE, register

_OVER = (
    *(cm.EventKind.DISCONNECTED, cm.EventKind.CONNECT_ERROR),
    *(cm.EventKind.UNREACHABLE, cm.EventKind.REJECTED),
)


class RcPeer:
    """Listens in a thread of its own. `answer` makes the private data of an accept from the nonce."""

    def __init__(
        self,
        device: str,
        address: str,
        size: int,
        *,
        scope: int = 0,
        answer: Callable[[bytes], bytes] = handshake.reply,
    ) -> None:
        self.memory = mmap.mmap(-1, size)
        self.size = size
        self.nonce = secrets.token_bytes(16)
        self.accepted = 0
        self._answer = answer
        self._context = Context(device)
        self._domain = ProtectionDomain(self._context)
        self._queue = CompletionQueue(self._context, 16)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.region = register(self._domain, self.base, size, REMOTE)
        self._channel = cm.EventChannel()
        listener = self._channel.create_id()
        self.ip = ipaddress.ip_address(address)
        listener.bind(cm.Peer(self.ip, scope=scope))
        listener.listen(64)
        self.port = listener.local.port
        self._connections: dict[cm.ConnectionId, QueuePair] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def token(self, **changes: object) -> Token:
        values: dict = {
            "address": self.base,
            "size": self.size,
            "rkey": self.region.rkey,
            "qp": self.port,
            "gid": gid_of(self.ip),
            "transport": Transport.RC,
            "secret": self.nonce,
        }
        return Token(**(values | changes))

    @property
    def connections(self) -> int:
        return len(self._connections)

    def _serve(self) -> None:
        while not self._stop.is_set():
            event = self._channel.next_event(0.1)
            if event is None:
                continue
            if event.kind is cm.EventKind.CONNECT_REQUEST:
                self._asked(event)
            elif event.kind in _OVER:
                self._gone(event.id)

    def _asked(self, event: cm.Event) -> None:
        if not handshake.is_request(event.private_data, self.nonce):
            event.id.reject()
            event.id.close()
            return
        pair = QueuePair(self._domain, self._queue, 1)
        for state in (QueuePairState.INIT, QueuePairState.RTR, QueuePairState.RTS):
            pair.modify(event.id.queue_pair_attributes(state))
        self._connections[event.id] = pair
        data = self._answer(self.nonce)
        event.id.accept(cm.ConnectParameters(pair.number, data, min(16, event.responder_resources), 0))
        self.accepted += 1

    def _gone(self, connection: cm.ConnectionId) -> None:
        pair = self._connections.pop(connection, None)
        if pair is not None:
            connection.disconnect()
            pair.close()
            connection.close()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for connection in list(self._connections):
            self._gone(connection)
        self._channel.close()
        self.region.close()
        self._domain.close()
        self._queue.close()
        self._context.close()


def main() -> None:
    peer = RcPeer(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    peer.memory[:] = bytes([0x5A]) * peer.size
    print(json.dumps({"token": str(peer.token())}), flush=True)
    sys.stdin.read()
    peer.close()


if __name__ == "__main__":
    main()
