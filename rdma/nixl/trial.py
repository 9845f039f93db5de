"""Opens the client engine in a process of its own, and lets it make a token for a little host memory.

That is the engine's own word on its configuration, its devices and the gateway's socket: rdma/cuobjclient, s3verbs.h.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from s3verbs.rdma.errors import MalformedToken
from s3verbs.rdma.nixl.loader import SYMBOLS
from s3verbs.rdma.token import parse
from s3verbs.rdma.verbs.device import address_of

_PATIENCE = 60.0

_SCRIPT = """
import ctypes, json, sys

engine = ctypes.CDLL(sys.argv[1], mode=2)
found = {"lacks": [name for name in sys.argv[2:] if not hasattr(engine, name)], "error": "", "token": ""}
found["ours"] = hasattr(engine, "s3verbs_init")
if found["ours"]:
    engine.s3verbs_error.restype = ctypes.c_char_p
    memory, token = ctypes.create_string_buffer(8192), ctypes.create_string_buffer(128)
    size = ctypes.c_size_t(len(memory))
    done = (
        engine.s3verbs_init() == 0
        and engine.s3verbs_register(memory, size) == 0
        and engine.s3verbs_token(memory, size, token, ctypes.c_size_t(len(token))) == 0
    )
    found["token"] = token.value.decode()
    found["error"] = "" if done else engine.s3verbs_error().decode(errors="replace")
    engine.s3verbs_release(memory)
    engine.s3verbs_shutdown()
print(json.dumps(found))
"""


class EngineUnusable(Exception):
    """It cannot be opened, or ends the process that did. The text is the loader's, or says how the process ended."""


@dataclass(frozen=True, slots=True)
class Trial:
    """`lacks` are missing symbols. `ours`: it is s3verbs' engine, and was tried; `error` is why it makes no token, and
    `way` how one goes: "samehost", or "rc from 10.0.0.1". `log` are the lines that the engine wrote."""

    lacks: tuple[str, ...]
    ours: bool
    error: str
    way: str
    log: tuple[str, ...]


def try_engine(library: Path, environment: Mapping[str, str], symbols: Sequence[str] = tuple(SYMBOLS)) -> Trial:
    """In that environment. Raises EngineUnusable."""
    command = [sys.executable, "-I", "-c", _SCRIPT, str(library), *symbols]
    try:
        answer = subprocess.run(  # noqa: S603 opening that library is the purpose
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise EngineUnusable(f"does not come to an end within {_PATIENCE:.0f} s") from None
    said = answer.stderr.strip().splitlines()
    if answer.returncode:
        text = said[-1].removeprefix("OSError: ") if answer.returncode > 0 and said else ""
        raise EngineUnusable(text or f"ends its process with code {answer.returncode}")
    found = json.loads(answer.stdout.strip().splitlines()[-1])
    return Trial(tuple(found["lacks"]), found["ours"], found["error"], _way(found["token"]), tuple(said))


def _way(text: str) -> str:
    if not text:
        return ""
    try:
        token = parse(text)
    except MalformedToken:
        return "a token of an unknown kind"
    return token.transport.value + (f" from {address_of(token.gid)}" if token.gid is not None else "")
