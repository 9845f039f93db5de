"""What `s3verbs client env` says: whether NIXL's accelerated engine would run here, and with what.

Yields (state, text) pairs like `s3verbs.rdma.doctor`; a problem is what keeps the engine from loading or from moving
bytes, and its text says what would change that.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from s3verbs.rdma import doctor
from s3verbs.rdma.doctor import Finding
from s3verbs.rdma.machine import Attach, Machine
from s3verbs.rdma.nixl import cufile, loader, wheel
from s3verbs.rdma.nixl.loader import LIBRARY, LoaderUnavailable, Loading
from s3verbs.rdma.nixl.trial import EngineUnusable, try_engine
from s3verbs.rdma.nixl.wheel import Plugin
from s3verbs.rdma.samehost.location import VARIABLE as SOCKET_VARIABLE
from s3verbs.rdma.samehost.location import Candidate, candidates
from s3verbs.rdma.survey import Endpoint, Survey, try_socket
from s3verbs.rdma.verbs.device import Rail

CHECKOUT = Path(__file__).resolve().parents[2]
CACHE_BYTES = 1 << 30
"""A limit of locked memory below this is too low for any KV cache."""

_BUILD = "make client in a checkout builds it (docs/cuobjclient.md)"


def find_library(given: Path | None = None) -> Path:
    """The engine: in `given`, a folder or the file itself; else in this checkout's build folder, this installation's
    prefix, or the usual prefixes. Raises FileNotFoundError, whose text names the places."""
    if given is not None:
        places = [given if given.name == LIBRARY else given / LIBRARY]
    else:
        prefixes = dict.fromkeys((sys.prefix, "/usr/local", "/opt/s3verbs", "/usr"))
        places = [
            CHECKOUT / "build" / "client" / "lib" / LIBRARY,
            *(Path(prefix) / "lib" / "s3verbs" / LIBRARY for prefix in prefixes),
        ]
    for place in places:
        if place.is_file():
            return place.absolute()
    raise FileNotFoundError(f"no {LIBRARY} in {', '.join(str(place.parent) for place in places)}: {_BUILD}")


def export_line(library: Path) -> str:
    """For `eval` in any POSIX shell. Raises ValueError for a folder that LD_LIBRARY_PATH cannot name."""
    folder = str(library.parent)
    if set(folder) & set(":;$\n"):
        raise ValueError(f"{folder}: {loader.VARIABLE} cannot name a folder with : ; $ or a line break in it")
    quoted = "'" + folder.replace("'", "'\\''") + "'"
    return f'export {loader.VARIABLE}={quoted}"${{{loader.VARIABLE}:+:${loader.VARIABLE}}}"'


def load_findings(
    library: Path, plugins: Sequence[Plugin], environment: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    """Whether the engine works, and the plugins would load with it first in LD_LIBRARY_PATH."""
    with_library = loader.with_library(library.parent, environment)
    try:
        trial = try_engine(library, with_library)
    except EngineUnusable as error:
        yield "problem", f"{library}: {error}"
        return
    if trial.lacks:
        yield "problem", f"{library}: lacks {_members(trial.lacks)}: it is not a whole build; {_BUILD}"
    else:
        yield "ok", f"{library}: loads, and has what NIXL's plugin needs"
    yield from (("info", f"engine: {line.removeprefix('s3verbs: ')}") for line in trial.log)
    if not trial.ours:
        yield "info", f"{library}: is not s3verbs' engine; whether it finds a transport is not known"
    elif trial.error:
        yield "problem", f"engine: {trial.error}"
    else:
        yield "ok", f"engine: host memory goes by {trial.way}"
    if not plugins:
        yield "problem", "NIXL: no wheel in this interpreter: pip install nixl-cu13, or name vLLM's with --nixl PYTHON"
    readings = []
    for plugin in plugins:
        try:
            readings.append((plugin, loader.examine(plugin.path, with_library)))
        except LoaderUnavailable as error:
            yield "problem", f"{plugin}: {plugin.path}: {error}"
    accelerated = any(loading.needs_engine for _, loading in readings)
    for plugin, loading in readings:
        if loading.needs_engine or not accelerated:
            yield from _plugin(plugin, loading, library)
        else:
            yield (
                "info",
                f"{plugin}: has no accelerated engine; NIXL takes it where torch is built for its CUDA: "
                f"pip uninstall {plugin.name}",
            )


def _plugin(plugin: Plugin, loading: Loading, library: Path) -> Iterator[Finding]:
    if not loading.needs_engine:
        yield "problem", f"{plugin}: its OBJ plugin has no accelerated engine: pip install nixl-cu13, 1.5 or later"
    for name in loading.missing:
        yield "problem", f"{plugin}: {name} is not found{_advice(name)}"
    for name in loading.versions:
        yield "problem", f"{plugin}: needs {name}: this system is too old for that build"
    if loading.undefined:
        yield "problem", f"{plugin}: no library has {_members(loading.undefined)}: build a newer {LIBRARY}"
    if not loading.needs_engine:
        return
    if loading.library is None:
        yield "problem", f"{plugin}: {LIBRARY} is not found, although {library} is there: is it of this machine's kind?"
    elif not loading.library.samefile(library):
        yield (
            "problem",
            f"{plugin}: takes {loading.library}, in a folder that its RPATH names before {loader.VARIABLE}: "
            "move it away",
        )
    elif loading.loads:
        yield "ok", f"{plugin}: its OBJ plugin loads and takes {loading.library}"


def _members(symbols: Sequence[str]) -> str:
    shown = [loader.readable(name) for name in symbols]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")


def _advice(name: str) -> str:
    packages = {"libibverbs.so.1": "libibverbs1", "librdmacm.so.1": "librdmacm1"}
    return f": apt-get install {packages[name]}" if name in packages else ""


def environment_findings(survey: Survey, environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Where NIXL looks for plugins, and what cufile.json says of this machine."""
    if named := environment.get(wheel.DIRECTORY_VARIABLE):
        yield "info", f"{wheel.DIRECTORY_VARIABLE} is {named}: NIXL looks for its plugins there and nowhere else"
    if not (path := environment.get(cufile.VARIABLE)):
        yield "info", f"{cufile.VARIABLE} is not set: every RDMA device is used"
        return
    try:
        document = cufile.read(Path(path))
        addresses = cufile.addresses_of(document)
    except cufile.CufileError as error:
        yield "problem", f"{cufile.VARIABLE}: {path}: {error}"
        return
    yield "ok", f"{cufile.VARIABLE}: {path} is read"
    missing = [name for name in addresses if not any(_is_at(rail, name) for rail in survey.rails)]
    # One that is here is enough; and on the gateway's own machine none is needed.
    enough = len(missing) < len(addresses)
    same_host = environment.get(SOCKET_VARIABLE) or environment.get("S3VERBS_TRANSPORT") == "samehost"
    for name in missing:
        bad = "info" if enough or same_host else "problem"
        yield bad, f"{path}: rdma_dev_addr_list has {name}, which no RDMA device here has"


def _is_at(rail: Rail, address: str) -> bool:
    return address.partition("%")[0] in (str(rail.address).partition("%")[0], rail.device, rail.netdev)


def machine_findings(
    survey: Survey, environment: Mapping[str, str] = os.environ, port: int | None = None
) -> Iterator[Finding]:
    """What the engine could use here: devices, locked memory, GPU memory, gateways' sockets. `port` is the one of an
    endpoint on this machine. Which of them it takes is the engine's own word, not said here."""
    same_host_only = environment.get("S3VERBS_TRANSPORT") == "samehost"
    yield from doctor.device_findings(survey)
    if survey.rails and not same_host_only:
        yield from (("problem", text) for text in doctor.device_file_obstacles(survey))
        yield _locked_memory(survey.machine)
    yield from _gpu_memory(survey)
    if survey.machine.attach is Attach.NONE:
        bad = "problem" if same_host_only or not survey.rails else "info"
        yield bad, "same host: Yama ptrace_scope is 3, so no process can reach another's memory"
    yield from _sockets(environment, port)


def _locked_memory(machine: Machine) -> Finding:
    state, text = doctor.client_memory_finding(machine)
    low = machine.locked_memory is not None and machine.locked_memory < CACHE_BYTES
    return ("problem" if low else state), text


def _gpu_memory(survey: Survey) -> Iterator[Finding]:
    """The engine has no staging: GPU memory that no device can reach is refused."""
    for gpu in survey.machine.gpus:
        name = f"GPU memory: {gpu.driver} {gpu.version}".rstrip()
        if not survey.rails:
            yield "info", f"{name}: without an RDMA device it cannot be registered; nixl_buffer_device: cpu"
        elif gpu.open_module and survey.machine.dmabuf_regions:
            yield "ok", f"{name}: by dma-buf, where the RDMA driver can (mlx5, irdma, bnxt_re; not Soft-RoCE)"
        elif gpu.peer_memory:
            yield "ok", f"{name}: by nvidia_peermem"
        else:
            yield "info", f"{name}: modprobe nvidia_peermem, or the open kernel modules and Linux 5.12; else use cpu"


def _sockets(environment: Mapping[str, str], port: int | None) -> Iterator[Finding]:
    found = [try_socket(place) for place in socket_places(environment)]
    yield from (("ok", f"same host: {place.path}: a gateway answers") for place in found if not place.problem)
    # Gateways that were killed leave theirs behind: on a machine that tests run on, hundreds.
    useless: dict[tuple[Path, str], list[Path]] = {}
    for place in found:
        if place.problem:
            useless.setdefault((place.path.parent, place.problem), []).append(place.path)
    for (folder, problem), paths in useless.items():
        which = str(paths[0]) if len(paths) == 1 else f"{len(paths)} sockets in {folder}"
        yield "info", f"same host: {which}: {problem}"
    if not found:
        places = dict.fromkeys(str(place.path.parent) for place in candidates(0, None, environment))
        yield "info", f"same host: no gateway's socket in {', '.join(places)}"
    own = [place.path for place in found if not place.problem and place.path.stem == str(port)]
    if own and sum(not place.problem for place in found) > 1:
        yield "info", f"same host: the endpoint's gateway is at {own[0]}: export {SOCKET_VARIABLE}={own[0]}"


def socket_places(environment: Mapping[str, str] = os.environ) -> list[Candidate]:
    """Where something is that may be a gateway's socket, whatever its port: S3VERBS_SOCKET, or all *.sock."""
    if environment.get(SOCKET_VARIABLE):
        return [place for place in candidates(0, None, environment) if place.path.exists()]
    return [
        Candidate(path, place.mode)
        for place in candidates(0, None, environment)
        for path in sorted(place.path.parent.glob("*.sock"))
    ]


def endpoint_finding(endpoint: Endpoint) -> Finding:
    """Whether the S3 endpoint answers."""
    if endpoint.problem:
        return "problem", f"endpoint {endpoint.url}: {endpoint.problem}"
    where = "this machine" if endpoint.local else "another machine"
    return "ok", f"endpoint {endpoint.url}: answers at {endpoint.address}, {where}"
