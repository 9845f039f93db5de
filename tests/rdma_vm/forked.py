"""A child that exposes memory of its own, beside a parent whose memory stays exposed."""

import os
from collections.abc import Callable

from s3verbs.rdma.token import Token
from s3verbs.rdma.token import parse as parse_token
from s3verbs.rdma.verbs.constants import CompletionStatus
from tests.rdma_vm.initiator import Initiator
from tests.rdma_vm.resources import GuardedBuffer, eventually

Expose = Callable[[GuardedBuffer], tuple[str, Callable[[], None]]]
"""Called in the child: the token for all of a buffer, and what takes it back."""


def both_are_reached(server: Initiator, token: Token, buffer: GuardedBuffer, expose: Expose) -> None:
    """Fork. Require that the server reaches the child's memory, over a connection of its own, and after the child's end
    the parent's `buffer` by the `token` that it had before."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            own = GuardedBuffer(4096)
            text, take_back = expose(own)
            os.write(writer, text.encode())
            assert eventually(lambda: bytes(own.view[:5]) == b"child")
            take_back()
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        of_child = parse_token(os.read(pipe.fileno(), 4096).decode())
    assert of_child.secret != token.secret
    with server.connect(of_child) as link:
        assert link.write(b"child") is CompletionStatus.SUCCESS
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with server.connect(token) as link:
        assert link.write(b"parent") is CompletionStatus.SUCCESS
    assert bytes(buffer.view[:6]) == b"parent"
