"""What every driver script shares. A script reads JSON requests from standard input, one a line,

    {"case": NAME, "endpoint": {"url", "access_key", "secret_key", "region", "ca"}, "arguments": {...}}

calls the function of that name, prints its result as one JSON line, and leaves when there are no more requests.
Whatever a client library prints goes to standard error. Runs in the environments of the clients, so it imports nothing
outside the standard library.
"""

import hashlib
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Case = Callable[..., Any]

CASES: dict[str, Case] = {}

# Before a client library is imported: it may print then.
_output = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def payload(seed: int | str, size: int) -> bytes:
    return random.Random(str(seed)).randbytes(size)


def sha256(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


def mapped_libraries(*names: str) -> list[str]:
    """The files that this process has mapped whose names begin with one of these; links are followed."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {Path(line.split(maxsplit=5)[5]) for line in lines if "/" in line}
    return sorted(str(path) for path in paths if path.name.startswith(names))


def emit(value: Any) -> None:
    """Print one JSON line now."""
    _output.write(json.dumps(value) + "\n")
    _output.flush()


def main(*, leave_at_once: bool = False) -> None:
    """Run the requested cases. With `leave_at_once` no destructor runs: some clients hang in theirs."""
    for line in sys.stdin:
        request = json.loads(line)
        endpoint = SimpleNamespace(**request["endpoint"])
        emit(CASES[request["case"]](endpoint, **request["arguments"]))
    if leave_at_once:
        sys.stderr.flush()
        os._exit(0)
