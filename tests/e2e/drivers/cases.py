"""What every driver script shares. A script reads one JSON request from standard input,

    {"case": NAME, "endpoint": {"url", "access_key", "secret_key", "region", "ca"}, "arguments": {...}}

calls the function of that name, and prints its result as one JSON line. Whatever a client library prints goes to
standard error. Runs in the environments of the clients, so it imports nothing outside the standard library.
"""

import hashlib
import json
import os
import random
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

Case = Callable[..., Any]

CASES: dict[str, Case] = {}
_output = sys.stdout


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def payload(seed: int | str, size: int) -> bytes:
    return random.Random(str(seed)).randbytes(size)


def sha256(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


def emit(value: Any) -> None:
    """Print one JSON line now."""
    _output.write(json.dumps(value) + "\n")
    _output.flush()


def main(*, leave_at_once: bool = False) -> None:
    """Run the requested case. With `leave_at_once` no destructor runs: some clients hang in theirs."""
    global _output
    _output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    endpoint = SimpleNamespace(**request["endpoint"])
    emit(CASES[request["case"]](endpoint, **request["arguments"]))
    if leave_at_once:
        sys.stderr.flush()
        os._exit(0)
