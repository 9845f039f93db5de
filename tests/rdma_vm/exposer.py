"""A client that registers memory, prints a token for it, and stays until its stdin ends or it is killed."""

import sys

from s3verbs.rdma.client.verbs import RcTransport
from tests.rdma_vm.resources import GuardedBuffer


def main() -> int:
    size = int(sys.argv[1])
    transport = RcTransport(["rxe1"])
    buffer = GuardedBuffer(size)
    print(transport.register(buffer.memory).token(0, size), flush=True)
    sys.stdin.read()
    transport.close()
    return 0 if buffer.intact() else 1


if __name__ == "__main__":
    raise SystemExit(main())
