"""What the process of each transport is told: parameters of the OBJ plugin, the client engine, the gateway's socket."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from s3verbs.bench.endpoint import Access
from s3verbs.bench.errors import CannotStart
from s3verbs.bench.worker_process import Job
from s3verbs.rdma.nixl.loader import LIBRARY, VARIABLE, with_library
from s3verbs.rdma.nixl.readiness import find_library
from s3verbs.rdma.samehost.location import VARIABLE as SOCKET_VARIABLE
from s3verbs.rdma.samehost.location import candidates, is_this_machine
from s3verbs.rdma.survey import try_socket

ACCELERATED = {"accelerated": "true", "type": "dell"}
"""What selects the engine that hands out memory descriptors; the type names the dialect, not the server."""


def job_for(
    options: argparse.Namespace, transport: str, access: Access, bucket: str, socket: str, slots: int, slot_bytes: int
) -> Job:
    """`socket`: the gateway's of the same-host transport, "" for none. Raises CannotStart."""
    parameters = {**access.parameters(bucket), "num_threads": str(options.num_threads)}
    if transport == "rdma":
        parameters |= ACCELERATED
    parameters |= {name: value for which, name, value in options.nixl if which in ("", transport)}
    environment = {SOCKET_VARIABLE: socket} if socket else {}
    if options.rdma_transport:
        environment["S3VERBS_TRANSPORT"] = options.rdma_transport
    if (library := _library(options.library, os.environ)) is not None:
        # The plugin is linked against it, so HTTP needs it as well.
        environment[VARIABLE] = with_library(library.parent)[VARIABLE]
    return Job(transport, options.python, parameters, slots, slot_bytes, options.timeout, environment)


def local_socket(url: str, environment: Mapping[str, str] = os.environ) -> str:
    """The socket of the gateway at that endpoint, when it is on this machine and serves this user. "" when not, or when
    the caller's environment names one. The engine does not know the endpoint, and of several gateways takes none."""
    parts = urlsplit(url)
    if environment.get(SOCKET_VARIABLE) or not is_this_machine(parts.hostname or ""):
        return ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    for place in candidates(port, environment=environment):
        if (found := try_socket(place)).there and not found.problem:
            return str(place.path)
    return ""


def _library(given: Path | None, environment: Mapping[str, str]) -> Path | None:
    """What must be put in the loader's way; None when it finds one there already, or when there is none: NIXL tells."""
    folders = environment.get(VARIABLE, "").split(":")
    if given is None and any(folder and Path(folder, LIBRARY).exists() for folder in folders):
        return None
    try:
        return find_library(given)
    except FileNotFoundError as error:
        if given is None:
            return None
        raise CannotStart(f"--library: {error}") from None
