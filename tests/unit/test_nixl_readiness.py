"""What `s3verbs client env` says of engines made here and machines made up."""

import json
import shlex
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from s3verbs.rdma.doctor import Finding
from s3verbs.rdma.machine import Attach, Gpu
from s3verbs.rdma.nixl import readiness
from s3verbs.rdma.nixl.loader import LIBRARY, SYMBOLS
from s3verbs.rdma.nixl.wheel import Plugin, find_plugins
from s3verbs.rdma.samehost.location import Candidate
from tests import nixl_stand_ins as make
from tests.unit.test_rdma_doctor import PLAIN, at, bare, equipped


def problems(found: Iterator[Finding]) -> list[str]:
    return [text for state, text in found if state == "problem"]


def one(found: Iterator[Finding], part: str) -> Finding:
    fitting = [finding for finding in found if part in finding[1]]
    assert len(fitting) == 1, fitting
    return fitting[0]


# -- loading --

DC_TOKEN = "00007f1dc46fd010:00002000:0000abcd:0000:001234:1:00000000000000000000ffff0a4d0001"
SAMEHOST_TOKEN = "00007f1dc46fd010:00002000:00000000:0000:000000:0:" + "0" * 32 + ":cma1:" + "5ec2e7" * 5 + "00"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return make.engine(tmp_path / "engine")


def tried(library: Path) -> list[Finding]:
    """What is said of an engine alone: the plugin is missing."""
    return [finding for finding in readiness.load_findings(library, []) if not finding[1].startswith("NIXL: ")]


@pytest.mark.parametrize(("token", "way"), [(DC_TOKEN, "dc from 10.77.0.1"), (SAMEHOST_TOKEN, "samehost")])
def test_an_engine_that_makes_a_token(token: str, way: str, tmp_path: Path) -> None:
    found = tried(make.engine(tmp_path, interface=make.interface(token=token)))
    assert found[1:] == [("info", "engine: info: one line"), ("ok", f"engine: host memory goes by {way}")]
    assert "5ec2e7" not in str(found), "a token is a secret"


def test_an_engine_without_a_transport_gives_its_reason(tmp_path: Path) -> None:
    found = tried(make.engine(tmp_path, interface=make.interface(error="no transport: none")))
    assert found[-1] == ("problem", "engine: no transport: none")


def test_an_engine_that_crashes_does_not_take_the_command_along(tmp_path: Path) -> None:
    (found,) = tried(make.engine(tmp_path, interface=make.interface(start="__builtin_trap();")))
    assert found[0] == "problem"
    assert "ends its process with code -4" in found[1]


def test_an_engine_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s3verbs.rdma.nixl.trial._PATIENCE", 1.0)
    (found,) = tried(make.engine(tmp_path, interface=make.interface(start="for (;;);")))
    assert found[1].endswith("does not come to an end within 1 s")


def test_another_vendors_library_is_not_judged(library: Path) -> None:
    assert "is not s3verbs' engine" in tried(library)[-1][1]
    assert tried(library)[-1][0] == "info"


def test_a_wheel_that_takes_the_library(library: Path, tmp_path: Path) -> None:
    make.wheel(tmp_path / "packages", "nixl-cu13", "1.5.1", library)
    found = list(readiness.load_findings(library, find_plugins(tmp_path / "packages", {})))
    assert problems(iter(found)) == []
    assert found[-1] == ("ok", f"nixl-cu13 1.5.1: its OBJ plugin loads and takes {library}")


def test_no_wheel_is_a_problem_that_names_both_ways_out(library: Path) -> None:
    (text,) = problems(readiness.load_findings(library, []))
    assert "pip install nixl-cu13" in text
    assert "--nixl PYTHON" in text


def test_a_wheel_without_the_accelerated_engine(library: Path, tmp_path: Path) -> None:
    """Beside one that has it, it is only pointed out: which of the two NIXL takes is torch's choice."""
    make.wheel(tmp_path, "nixl-cu12", "1.5.1", None)
    alone = readiness.load_findings(library, find_plugins(tmp_path, {}))
    assert problems(alone) == [
        "nixl-cu12 1.5.1: its OBJ plugin has no accelerated engine: pip install nixl-cu13, 1.5 or later"
    ]
    make.wheel(tmp_path, "nixl-cu13", "1.5.1", library)
    both = list(readiness.load_findings(library, find_plugins(tmp_path, {})))
    assert problems(iter(both)) == []
    assert one(iter(both), "nixl-cu12")[0] == "info"


def test_another_library_in_the_plugins_own_folders_is_a_problem(library: Path, tmp_path: Path) -> None:
    plugin = make.wheel(tmp_path, "nixl-cu13", "1.5.1", library)
    other = make.engine(plugin.parent.parent)
    (text,) = problems(readiness.load_findings(library, find_plugins(tmp_path, {})))
    assert f"{other.parent}" in text
    assert "move it away" in text


def test_a_library_that_lacks_a_member(tmp_path: Path) -> None:
    half = make.engine(tmp_path / "half", [name for name in SYMBOLS if "cuObjPut" not in name])
    built_with = make.engine(tmp_path / "whole")
    make.wheel(tmp_path / "packages", "nixl-cu13", "1.5.1", built_with)
    found = problems(readiness.load_findings(half, find_plugins(tmp_path / "packages", {})))
    member = "cuObjClient::cuObjPut(void*, void*, size_t, loff_t, loff_t)"
    assert found[0].startswith(f"{half}: lacks {member}")
    assert found[1].startswith(f"nixl-cu13 1.5.1: no library has {member}")


def test_a_library_that_does_not_load_ends_there(tmp_path: Path) -> None:
    text = tmp_path / LIBRARY
    text.write_text("no ELF")
    (problem,) = readiness.load_findings(text, [Plugin(tmp_path / "p.so", "p")])
    assert problem[0] == "problem"
    assert "too short" in problem[1] or "invalid ELF" in problem[1]


def test_a_plugin_that_is_none_is_told_in_the_loaders_words(library: Path, tmp_path: Path) -> None:
    (tmp_path / "libplugin_OBJ.so").write_text("")
    (problem,) = problems(readiness.load_findings(library, find_plugins(tmp_path / "libplugin_OBJ.so", {})))
    assert "not a dynamic executable" in problem


# -- the library and its line --


def test_a_library_is_found_by_folder_or_file(library: Path, tmp_path: Path) -> None:
    assert readiness.find_library(library) == readiness.find_library(library.parent) == library
    with pytest.raises(FileNotFoundError, match=f"no {LIBRARY} in {tmp_path}: make client"):
        readiness.find_library(tmp_path)


def test_a_library_is_found_where_make_client_install_puts_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(readiness, "CHECKOUT", tmp_path / "checkout")
    monkeypatch.setattr(readiness.sys, "prefix", str(tmp_path / "venv"))
    installed = make.engine(tmp_path / "venv" / "lib" / "s3verbs")
    assert readiness.find_library() == installed
    built = make.engine(tmp_path / "checkout" / "build" / "client" / "lib")
    assert readiness.find_library() == built


@pytest.mark.parametrize("folder", ["/plain", "/with blank", "/it's", '/"quoted"', "/a*b", "/`id`"])
@pytest.mark.parametrize("before", [None, "", "/a:/b c"])
def test_the_line_is_understood_by_the_shell(folder: str, before: str | None) -> None:
    line = readiness.export_line(Path(folder) / LIBRARY)
    start = "unset LD_LIBRARY_PATH" if before is None else f"LD_LIBRARY_PATH={shlex.quote(before)}"
    script = f'{start}\neval "$1"\n/usr/bin/printenv LD_LIBRARY_PATH'
    result = subprocess.run(["sh", "-c", script, "sh", line], capture_output=True, text=True, check=True)
    assert result.stdout == (f"{folder}:{before}\n" if before else f"{folder}\n")


@pytest.mark.parametrize("folder", ["/a:b", "/a;b", "/a\nb", "/$ORIGIN"])
def test_a_folder_that_the_loader_would_misread_is_refused(folder: str) -> None:
    with pytest.raises(ValueError, match="LD_LIBRARY_PATH cannot name"):
        readiness.export_line(Path(folder) / LIBRARY)


# -- variables --


def test_a_plain_machine_has_nothing_to_say_of_variables() -> None:
    assert [state for state, _ in readiness.environment_findings(bare(), {})] == ["info"]


def cufile(tmp_path: Path, *addresses: str) -> dict[str, str]:
    path = tmp_path / "cufile.json"
    path.write_text("// mine\n" + json.dumps({"properties": {"rdma_dev_addr_list": addresses}}))
    return {"CUFILE_ENV_PATH_JSON": str(path)}


@pytest.mark.parametrize("name", ["10.77.0.1", "mlx5_0", "eth0"])
def test_a_device_of_cufile_json_is_found(name: str, tmp_path: Path) -> None:
    found = list(readiness.environment_findings(equipped("mlx5"), cufile(tmp_path, name)))
    assert problems(iter(found)) == []
    assert found[0][0] == "ok"


def test_a_cufile_json_for_other_devices_is_a_problem(tmp_path: Path) -> None:
    said = "rdma_dev_addr_list has 10.9.9.9, which no RDMA device here has"
    (text,) = problems(readiness.environment_findings(equipped("mlx5"), cufile(tmp_path, "10.9.9.9")))
    assert said in text
    one_is_here = readiness.environment_findings(equipped("mlx5"), cufile(tmp_path, "10.77.0.1", "10.9.9.9"))
    assert one(one_is_here, said)[0] == "info", "it is enough for the engine"
    same_host = {"S3VERBS_SOCKET": "/run/gateway.sock", **cufile(tmp_path, "10.9.9.9")}
    assert problems(readiness.environment_findings(bare(), same_host)) == []


def test_a_cufile_json_that_cannot_be_used_is_a_problem(tmp_path: Path) -> None:
    missing = {"CUFILE_ENV_PATH_JSON": str(tmp_path / "absent.json")}
    (text,) = problems(readiness.environment_findings(bare(), missing))
    assert "absent.json: cannot be read: No such file" in text
    (tmp_path / "cufile.json").write_text("{\n,}")
    broken = {"CUFILE_ENV_PATH_JSON": str(tmp_path / "cufile.json")}
    (text,) = problems(readiness.environment_findings(bare(), broken))
    assert "line 2: " in text


# -- the machine --


@pytest.fixture
def runtime(tmp_path: Path) -> dict[str, str]:
    """An environment whose first place for sockets is a folder of this test."""
    (tmp_path / "s3verbs").mkdir(mode=0o700)
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


@pytest.fixture
def gateways(runtime: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Path]]:
    """Two sockets that answer; those of other servers on this machine are out of sight."""
    places = [Candidate(tmp_path / "s3verbs" / "0.sock", 0o700)]

    def only_here(port: int, explicit: str | None, environment: dict[str, str]) -> list[Candidate]:
        named = environment.get("S3VERBS_SOCKET")
        return [Candidate(Path(named), None)] if named else places

    monkeypatch.setattr(readiness, "candidates", only_here)
    paths = [tmp_path / "s3verbs" / f"{port}.sock" for port in (9000, 9001)]
    with ExitStack() as held:
        for path in paths:
            listener = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            listener.bind(str(path))
            listener.listen()
        yield paths


def test_every_gateway_is_listed_and_the_endpoints_own_is_pointed_out(
    gateways: list[Path], runtime: dict[str, str]
) -> None:
    found = list(readiness.machine_findings(bare(), runtime))
    assert [text for state, text in found if state == "ok"] == [
        f"same host: {path}: a gateway answers" for path in gateways
    ]
    told = one(readiness.machine_findings(bare(), runtime, port=9001), "the endpoint's gateway")
    assert told == (
        "info",
        f"same host: the endpoint's gateway is at {gateways[1]}: export S3VERBS_SOCKET={gateways[1]}",
    )
    named = {**runtime, "S3VERBS_SOCKET": str(gateways[0])}
    assert not [text for _, text in readiness.machine_findings(bare(), named, port=9001) if str(gateways[1]) in text]


def test_a_dead_socket_is_no_gateway(gateways: list[Path], runtime: dict[str, str]) -> None:
    for path in gateways:
        path.unlink()
    assert "no gateway's socket in" in one(readiness.machine_findings(bare(), runtime), "same host")[1]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(gateways[0]))
    assert one(readiness.machine_findings(bare(), runtime, port=9000), "same host") == (
        "info",
        f"same host: {gateways[0]}: Connection refused",
    )


def test_dead_sockets_are_one_line(gateways: list[Path], runtime: dict[str, str]) -> None:
    folder = gateways[0].parent
    for number in range(3):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
            dead.bind(str(folder / f"{number}.sock"))
    lines = [line for line in readiness.machine_findings(bare(), runtime) if str(folder) in line[1]]
    assert lines == [
        *(("ok", f"same host: {path}: a gateway answers") for path in gateways),
        ("info", f"same host: 3 sockets in {folder}: Connection refused"),
    ]


def test_yama_3_leaves_nothing_for_the_same_host() -> None:
    closed = replace(PLAIN, attach=Attach.NONE)
    nowhere = {"XDG_RUNTIME_DIR": "/nowhere"}
    assert "Yama ptrace_scope is 3" in problems(readiness.machine_findings(bare(machine=closed), nowhere))[0]
    assert problems(readiness.machine_findings(equipped("mlx5", machine=closed), nowhere)) == []


@pytest.mark.parametrize(("limit", "bad"), [(8 << 20, True), (64 << 30, False), (None, False)])
def test_a_limit_of_locked_memory_below_any_cache_is_a_problem(limit: int | None, bad: bool) -> None:
    survey = equipped("mlx5", machine=replace(PLAIN, locked_memory=limit))
    found = problems(readiness.machine_findings(survey, {}))
    assert bool(found) == bad
    assert not bad or "ulimit -l unlimited" in found[0]
    same_host = readiness.machine_findings(survey, {"S3VERBS_TRANSPORT": "samehost"})
    assert not [text for text in problems(same_host) if "locked" in text], "it locks nothing"


def test_a_device_file_that_cannot_be_opened_is_a_problem() -> None:
    survey = equipped("mlx5", closed={"mlx5_0": "uverbs0"})
    assert problems(readiness.machine_findings(survey, {})) == [
        "mlx5_0: /dev/infiniband/uverbs0 cannot be opened by this user"
    ]


@pytest.mark.parametrize(
    ("gpu", "devices", "said"),
    [
        (Gpu("nvidia", "570.1", open_module=True), ("mlx5",), "by dma-buf"),
        (Gpu("nvidia", "570.1", peer_memory=True), ("mlx5",), "by nvidia_peermem"),
        (Gpu("nvidia", "570.1"), ("mlx5",), "modprobe nvidia_peermem"),
        (Gpu("nvidia", "570.1"), (), "nixl_buffer_device: cpu"),
    ],
)
def test_the_way_to_gpu_memory(gpu: Gpu, devices: tuple[str, ...], said: str) -> None:
    survey = (
        equipped(*devices, machine=replace(PLAIN, gpus=(gpu,)))
        if devices
        else bare(machine=replace(PLAIN, gpus=(gpu,)))
    )
    assert said in one(readiness.machine_findings(survey, {}), "GPU memory")[1]


def test_the_endpoint() -> None:
    assert readiness.endpoint_finding(at("10.77.0.9"))[0] == "ok"
    assert readiness.endpoint_finding(at("10.77.0.9", problem="refused")) == (
        "problem",
        "endpoint http://10.77.0.9:9000: refused",
    )
