"""`python -m conformance NAME ...`: checks and measurements of an S3 endpoint. None of them imports the endpoint."""

import sys
from importlib import import_module

COMMANDS = {
    "rdma": "the RDMA-for-S3 contract, case by case, against any server",
    "perf": "the load benchmark (also: python -m conformance.perf)",
    "s3tests": "the ceph/s3-tests suite (also: python -m conformance.s3tests)",
}


def main(arguments: list[str]) -> int:
    name, *rest = arguments or [""]
    if name not in COMMANDS:
        lines = [f"  {command:8} {text}" for command, text in COMMANDS.items()]
        asked = name in ("-h", "--help")
        print("\n".join(["usage: python -m conformance NAME ...", *lines]), file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    status: int = import_module(f"conformance.{name}.__main__").main(rest)
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
