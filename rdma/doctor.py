"""What `s3verbs doctor` says about RDMA: on a server, and on a machine that runs clients of one.

Yields (state, text) pairs; a state is ok, info or problem. A problem is what someone asked for and will not get, or
what breaks transfers; a machine without RDMA devices has none. Looks, and changes nothing: no device is opened and
nothing is registered. The only connections made are those of `s3verbs.rdma.survey`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from s3verbs.rdma.machine import Attach, Machine
from s3verbs.rdma.survey import Endpoint, Survey
from s3verbs.rdma.verbs.device import Device, Network, Port, Rail, Verdict, address_of, gid_of, route

Finding = tuple[str, str]

DEFAULT_DC_KEY = 0xFFEEDDCC
"""The key that every cuFile installation starts with."""

_DRIVERS = {"rxe": "Soft-RoCE", "siw": "software iWARP"}
_PYVERBS = "apt-get install python3-pyverbs ibverbs-providers, or pip install pyverbs (docs/rdma-devices.md)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a server was told. `mode` is the setting `rdma`: off, auto or required; `pool` the bytes of registered
    memory of one worker. Empty `allowed_peers` are the subnets of the own rails. `same_host`: it opens a socket."""

    mode: str = "auto"
    pool: int = 0
    dc_key: int = DEFAULT_DC_KEY
    allowed_peers: tuple[Network, ...] = ()
    same_host: bool = True


def server_findings(plan: Plan, survey: Survey) -> Iterator[Finding]:
    """For the machine of a server."""
    if plan.mode == "off":
        yield "info", "RDMA: off (rdma = off); what follows is what `rdma = auto` would find"
    asked = plan.mode != "off"
    yield from device_findings(survey, asked)
    yield from _verbs(survey, asked)
    if survey.rails and plan.pool:
        yield _pool_memory(plan.pool, survey, asked)
        yield _huge_pages(plan.pool, survey.machine)
    networks = [network for rail in survey.rails for network in rail.networks]
    if networks and not plan.allowed_peers and all(network.num_addresses == 1 for network in networks):
        yield (
            "problem" if asked else "info",
            f"RDMA peers: no other machine is in {', '.join(map(str, networks))}; "
            "name the clients' networks in rdma_allowed_peers",
        )
    if any(rail.driver == "mlx5" for rail in survey.rails) and plan.dc_key == DEFAULT_DC_KEY:
        yield (
            "info",
            f"DC access key: {plan.dc_key:#x}, the default that every installation knows; set rdma_dc_key, "
            "here and in the clients' cufile.json",
        )
    if plan.same_host:
        yield from _same_host_server(survey)
    else:
        yield "info", "same host: off (socket = off)"
    if plan.mode == "required" and not survey.rails:
        yield "problem", "RDMA is required (rdma = required), and no device can be used"
    yield from _what_clients_get(plan, survey)


def client_findings(endpoint: Endpoint, survey: Survey) -> Iterator[Finding]:
    """For a machine whose clients use `endpoint`."""
    if endpoint.problem:
        yield "problem", f"endpoint {endpoint.url}: {endpoint.problem}"
    else:
        where = "this machine" if endpoint.local else "another machine"
        yield "ok", f"endpoint {endpoint.url}: answers at {endpoint.address}, {where}"
    yield from device_findings(survey)
    yield from _verbs(survey, True)
    if survey.rails:
        yield client_memory_finding(survey.machine)
    yield from _gpu(survey)
    if endpoint.local:
        yield from _same_host_client(survey)
    yield from _what_a_client_gets(endpoint, survey)


def device_findings(survey: Survey, asked: bool = True) -> Iterator[Finding]:
    """Every device, port and address, and which are used. `asked`: RDMA is wanted, so a useless pin is a problem."""
    devices = survey.inventory.devices
    if not devices:
        yield "info", "RDMA devices: none in /sys/class/infiniband"
    for device in devices:
        for port in device.ports:
            name = f"{device.name} port {port.number}"
            yield "info", f"{name}: {_driver(device)}, {_port(port)}"
            for text in _addresses(port):
                yield "info", f"{name}: {text}"
        yield from (_verdict(verdict, asked) for verdict in survey.verdicts if verdict.device == device.name)
    names = {device.name for device in devices}
    yield from (_verdict(verdict, asked) for verdict in survey.verdicts if verdict.device not in names)


def _verdict(verdict: Verdict, asked: bool) -> Finding:
    name = f"{verdict.device} port {verdict.port}" if verdict.port else verdict.device
    if verdict.rail is not None:
        return "ok", f"{name} is used: {verdict.text}"
    return ("problem" if asked and verdict.wanted else "info"), f"{name} is not used: {verdict.text}"


def _driver(device: Device) -> str:
    firmware = f", firmware {device.firmware}" if device.firmware else ""
    return f"{_DRIVERS.get(device.driver, device.driver)}{firmware}"


def _port(port: Port) -> str:
    mtu = f", path MTU {port.mtu}" if port.mtu else ""
    return f"{port.state}, {port.link_layer}, {port.rate}{mtu}"


def _addresses(port: Port) -> Iterator[str]:
    """An address is in the table once for each type."""
    gids: dict[tuple[bytes, str], list[str]] = {}
    for gid in port.gids:
        gids.setdefault((gid.gid, gid.netdev), []).append(f"{gid.index} ({gid.type or 'type unknown'})")
    for (raw, netdev), indices in gids.items():
        yield f"{address_of(raw)}{f' on {netdev}' if netdev else ''} is GID {', '.join(indices)}"


def _verbs(survey: Survey, asked: bool) -> Iterator[Finding]:
    bad = "problem" if asked and survey.rails else "info"
    if survey.verbs:
        yield "ok", f"verbs: {survey.verbs}"
    else:
        yield bad, f"verbs: {survey.verbs_problem}"
    yield from ((bad, text) for text in device_file_obstacles(survey))


def device_file_obstacles(survey: Survey) -> Iterator[str]:
    """What keeps a process of this user from the devices it would use."""
    for rail in survey.rails:
        if rail.device in survey.closed:
            yield f"{rail.device}: /dev/infiniband/{survey.closed[rail.device]} cannot be opened by this user"
        elif survey.verbs and rail.device not in survey.seen:
            yield f"{rail.device}: libibverbs does not see it; apt-get install ibverbs-providers"
    if survey.rails and not survey.machine.cm_device:
        yield "/dev/infiniband/rdma_cm cannot be opened: modprobe rdma_ucm, or give it to the container"


def _pool_memory(pool: int, survey: Survey, asked: bool) -> Finding:
    devices = len({rail.device for rail in survey.rails})
    needed = pool * devices
    text = f"locked memory: {_size(needed)} for each worker"
    if devices > 1:
        text += f" ({_size(pool)} for each of {devices} devices)"
    limit = survey.machine.locked_memory
    if limit is None:
        return "ok", f"{text}; no limit for this user"
    if limit >= needed:
        return "ok", f"{text}; the limit is {_size(limit)}"
    state = "problem" if asked else "info"
    return state, f"{text}; the limit is {_size(limit)}: LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited"


def client_memory_finding(machine: Machine) -> Finding:
    """Locked memory, for a machine with rails."""
    if machine.locked_memory is None:
        return "ok", "locked memory: no limit for this user"
    return "info", (
        f"locked memory: the limit is {_size(machine.locked_memory)}; larger buffers cannot be registered "
        "(ulimit -l unlimited, or --ulimit memlock=-1 of a container)"
    )


def _huge_pages(pool: int, machine: Machine) -> Finding:
    free = machine.huge_page * machine.huge_pages_free
    text = f"huge pages: {machine.huge_pages_free} of {_size(machine.huge_page)} free"
    if machine.huge_page and free >= pool:
        return "ok", text
    if machine.transparent in ("always", "madvise"):
        return "info", f"{text}; the pool of {_size(pool)} uses transparent ones ({machine.transparent})"
    return "info", f"{text} and transparent ones are off: the pool is in ordinary pages"


def _gpu(survey: Survey) -> Iterator[Finding]:
    machine = survey.machine
    if not machine.gpus:
        yield "info", "GPU memory: no NVIDIA or AMD driver on this machine"
    for gpu in machine.gpus:
        name = f"GPU memory: {gpu.driver} {gpu.version}".rstrip()
        if gpu.open_module and machine.dmabuf_regions:
            ways = "by dma-buf, where the RDMA driver can (mlx5, irdma, bnxt_re; not Soft-RoCE)"
            yield "ok", f"{name}: {ways}{'; nvidia_peermem is loaded too' if gpu.peer_memory else ''}"
        elif gpu.peer_memory:
            yield "ok", f"{name}: by nvidia_peermem"
        elif gpu.driver == "nvidia":
            kernel = ".".join(map(str, machine.kernel))
            yield (
                "info",
                (
                    f"{name}: no way for RDMA; modprobe nvidia_peermem, or the open kernel modules and Linux 5.12 "
                    f"(this is {kernel}) for dma-buf. Until then it is copied through host memory"
                ),
            )
        else:
            yield "info", f"{name}: dma-buf needs Linux 5.12. Until then it is copied through host memory"


def _same_host_server(survey: Survey) -> Iterator[Finding]:
    machine = survey.machine
    yield "info", f"same host: {_attach(machine)}"
    if machine.attach is not Attach.NONE and not machine.may_attach_any:
        yield "info", f"same host: serves processes of uid {survey.uid}; those of others need CAP_SYS_PTRACE here"
    yield from _sockets(survey)


def _same_host_client(survey: Survey) -> Iterator[Finding]:
    yield "info", f"same host: {_attach(survey.machine)}"
    yield from _sockets(survey)


def _sockets(survey: Survey) -> Iterator[Finding]:
    there = [place for place in survey.sockets if place.there]
    for place in there:
        yield ("info" if place.problem else "ok"), f"same host: {place.path}: {place.problem or 'a server answers'}"
    if not there:
        yield "info", f"same host: no server's socket in {', '.join(str(place.path) for place in survey.sockets)}"


def _attach(machine: Machine) -> str:
    match machine.attach:
        case None | Attach.CLASSIC:
            return "the kernel lets processes of one user reach each other's memory"
        case Attach.RESTRICTED:
            return "Yama ptrace_scope is 1: a client allows its server by itself"
        case Attach.ADMIN_ONLY:
            return "Yama ptrace_scope is 2: only a server with CAP_SYS_PTRACE can reach a client's memory"
        case Attach.NONE:
            return "Yama ptrace_scope is 3: no process can reach another's memory, so this transport is off"


def _what_clients_get(plan: Plan, survey: Survey) -> Iterator[Finding]:
    if plan.mode == "off":
        yield "info", "clients get HTTP: RDMA is off"
        return
    if obstacle := same_host_obstacle(survey.machine) if plan.same_host else "socket = off":
        yield "info", f"a client on this machine does not get the same-host transport: {obstacle}"
    else:
        yield "ok", "a client on this machine gets the same-host transport"
    without_rc = rc_obstacle(survey)
    if without_rc:
        yield "info", f"a client with an RDMA device does not get RC: {without_rc}"
    else:
        yield "ok", f"a client with an RDMA device in {_peers(plan, survey)} gets RC"
    if obstacle := without_rc or dc_obstacle(survey):
        yield "info", f"a client with DC tokens (cuObject, NIXL) does not get DC: {obstacle}"
    else:
        yield "ok", "a client with DC tokens (cuObject, NIXL) gets DC, which has not run on hardware yet"
    yield "info", "any other client gets HTTP"


def same_host_obstacle(machine: Machine) -> str:
    """Why a server here cannot reach the memory of clients on its machine, or ""."""
    if machine.attach is Attach.NONE:
        return "Yama ptrace_scope is 3"
    if machine.attach is Attach.ADMIN_ONLY and not machine.may_attach_any:
        return "Yama ptrace_scope is 2 and this user has no CAP_SYS_PTRACE"
    return ""


def rc_obstacle(survey: Survey) -> str:
    """Why RC cannot be spoken from here, or ""."""
    if not survey.inventory.devices:
        return "there is no RDMA device"
    if not survey.rails:
        return "no device can be used (see above)"
    if not survey.verbs:
        return "pyverbs cannot be used (see above)"
    if not any(rail.device in survey.seen and rail.device not in survey.closed for rail in survey.rails):
        return "the devices cannot be opened (see above)"
    if not survey.machine.cm_device:
        return "/dev/infiniband/rdma_cm cannot be opened"
    return ""


def dc_obstacle(survey: Survey) -> str:
    """Why no rail speaks DC, or ""."""
    drivers = sorted({rail.driver for rail in survey.rails})
    return "" if "mlx5" in drivers else f"DC needs an mlx5 device and this is {', '.join(drivers)}"


def _peers(plan: Plan, survey: Survey) -> str:
    networks = plan.allowed_peers or [network for rail in survey.rails for network in rail.networks]
    return ", ".join(dict.fromkeys(map(str, networks))) or "an allowed network"


def _what_a_client_gets(endpoint: Endpoint, survey: Survey) -> Iterator[Finding]:
    reasons = []
    if not endpoint.local:
        reasons.append(("same host", "the endpoint is on another machine"))
    elif survey.same_host_socket is None:
        reasons.append(("same host", "no server answers at its socket"))
    elif survey.machine.attach is Attach.NONE:
        reasons.append(("same host", "Yama ptrace_scope is 3"))
    chosen = "" if reasons else "the same-host transport"
    if not chosen:
        if obstacle := rc_obstacle(survey):
            reasons.append(("RC", obstacle))
        else:
            chosen = f"RC, when the server has it: {_way(endpoint, survey)}"
    for transport, reason in reasons:
        yield "info", f"not {transport}: {reason}"
    if endpoint.problem:
        return
    yield ("ok" if chosen else "info"), f"a client here gets from {endpoint.url}: {chosen or 'HTTP'}"


def _way(endpoint: Endpoint, survey: Survey) -> str:
    """Which rail a server would connect to, and what must be so for that."""
    if endpoint.address is None:
        return str(survey.rails[0])
    ways: list[Rail] = route(survey.rails, gid_of(endpoint.address)) or list(survey.rails)
    rail = ways[0]
    if any(endpoint.address in network for network in rail.networks if network.version == endpoint.address.version):
        return f"it connects to {rail}, in the endpoint's own subnet"
    networks = ", ".join(map(str, rail.networks))
    return f"it connects to {rail}; the server must have a way to {networks} and allow it"


def _size(count: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.4g} {unit}"
    return f"{count} B"
