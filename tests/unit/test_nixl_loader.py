"""The dynamic loader's own answers about plugins and engines that are made here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from s3verbs.rdma.nixl.loader import SYMBOLS, LoaderUnavailable, examine, readable, with_library
from s3verbs.rdma.nixl.wheel import Plugin, find_plugins
from tests import nixl_stand_ins as make

PLAIN = {"PATH": os.environ["PATH"]}
NEWER = "_ZN11cuObjClient20cuMemObjGetRDMATokenEPvmm14cuObjOpType_tPPc"


def opens(plugin: Path, environment: dict[str, str]) -> bool:
    """What dlopen says, which has the last word."""
    script = "import ctypes, sys; ctypes.CDLL(sys.argv[1], mode=2)"
    return subprocess.run([sys.executable, "-c", script, str(plugin)], env=environment).returncode == 0


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return make.engine(tmp_path / "engine folder")


@pytest.fixture
def plugin(tmp_path: Path, engine: Path) -> Path:
    return make.plugin(tmp_path / "wheel" / "plugins", engine)


def test_without_the_library_it_is_missing_and_its_symbols_are_not_named_too(plugin: Path) -> None:
    loading = examine(plugin, PLAIN)
    assert (loading.needs_engine, loading.library, loading.missing, loading.undefined) == (True, None, (), ())
    assert not loading.loads
    assert not opens(plugin, PLAIN)


def test_with_the_library_first_it_loads(plugin: Path, engine: Path) -> None:
    environment = with_library(engine.parent, PLAIN)
    loading = examine(plugin, environment)
    assert loading.library is not None
    assert loading.library.samefile(engine), "in a folder with a blank in its name"
    assert loading.loads
    assert opens(plugin, environment)


def test_the_plugins_own_folders_win(plugin: Path, engine: Path) -> None:
    other = make.engine(plugin.parent.parent)
    loading = examine(plugin, with_library(engine.parent, PLAIN))
    assert loading.library is not None
    assert loading.library.samefile(other)


def test_a_library_of_an_older_interface_lacks_symbols(tmp_path: Path) -> None:
    old = make.engine(tmp_path / "old")
    plugin = make.plugin(tmp_path / "plugins", old, [*SYMBOLS, NEWER])
    environment = with_library(old.parent, PLAIN)
    loading = examine(plugin, environment)
    assert loading.undefined == (NEWER,)
    assert not loading.loads
    assert not opens(plugin, environment)


def test_a_library_of_the_plugin_that_is_missing_is_named(tmp_path: Path, engine: Path) -> None:
    part = make.build(tmp_path / "libpart.so", "void part(void) {}\n", "-Wl,-soname,libpart.so")
    plugin = make.plugin(tmp_path / "plugins" / "p", engine, SYMBOLS, "-Wl,--no-as-needed", str(part))
    loading = examine(plugin, with_library(engine.parent, PLAIN))
    assert loading.missing == ("libpart.so",)
    assert not loading.loads


def test_a_symbol_version_that_is_too_new_is_named(tmp_path: Path, engine: Path) -> None:
    script = tmp_path / "versions"
    script.write_text("PART_9.9 { global: part; };\n")
    flags = ["-Wl,-soname,libpart.so", f"-Wl,--version-script={script}"]
    new = make.build(tmp_path / "new" / "libpart.so", "void part(void) {}\n", *flags)
    script.write_text("PART_1.0 { global: part; };\n")
    old = make.build(tmp_path / "old" / "libpart.so", "void part(void) {}\n", *flags)
    user = make.build(tmp_path / "libuser.so", "void part(void); void user(void) { part(); }\n", str(new))
    loading = examine(user, with_library(old.parent, PLAIN))
    assert [text.split(" by ")[0] for text in loading.versions] == ["PART_9.9"]
    assert not loading.needs_engine
    assert not loading.loads


def test_a_plugin_without_the_accelerated_engine_needs_no_library(tmp_path: Path) -> None:
    loading = examine(make.plugin(tmp_path / "plugins", None), PLAIN)
    assert (loading.needs_engine, loading.loads) == (False, True)


def test_what_is_no_shared_object_is_told_in_the_loaders_words(tmp_path: Path) -> None:
    text = tmp_path / "libplugin_OBJ.so"
    text.write_text("no ELF")
    with pytest.raises(LoaderUnavailable, match="not a dynamic executable"):
        examine(text, PLAIN)
    with pytest.raises(LoaderUnavailable, match="No such file"):
        examine(tmp_path / "absent.so", PLAIN)


def test_a_machine_without_ldd_is_told_what_to_install(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LoaderUnavailable, match="apt-get install libc-bin"):
        examine(plugin, {"PATH": "/nowhere"})


def test_a_symbol_is_told_as_the_member_that_it_is() -> None:
    first = next(iter(SYMBOLS))
    assert readable(first) == "cuObjClient::cuObjClient(CUObjIOOps&, cuObjProto_enum)"
    assert readable(NEWER) == NEWER


def test_the_search_path_keeps_what_was_there() -> None:
    before = {"LD_LIBRARY_PATH": "/a:/b", "HOME": "/root"}
    assert with_library(Path("/x"), before) == {"LD_LIBRARY_PATH": "/x:/a:/b", "HOME": "/root"}
    assert with_library(Path("/x"), {"LD_LIBRARY_PATH": ""})["LD_LIBRARY_PATH"] == "/x", "an empty part is the cwd"


# -- which plugin --


@pytest.fixture
def packages(tmp_path: Path, engine: Path) -> Path:
    folder = tmp_path / "site-packages"
    make.wheel(folder, "nixl-cu12", "1.5.1", None)
    make.wheel(folder, "nixl_cu13", "1.5.1", engine)
    return folder


def test_the_wheels_of_a_folder_the_newest_cuda_first(packages: Path) -> None:
    found = find_plugins(packages, {})
    assert [str(plugin) for plugin in found] == ["nixl-cu13 1.5.1", "nixl-cu12 1.5.1"]
    assert all(plugin.path.parent.name == "plugins" for plugin in found)


def test_those_of_another_interpreter_and_of_its_virtual_environment(packages: Path, tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    wanted = find_plugins(packages, {})
    assert find_plugins(python, {})[:2] == wanted
    assert find_plugins(tmp_path / "venv", {})[:2] == wanted


def test_a_plugin_by_its_own_file(plugin: Path) -> None:
    assert find_plugins(plugin, {}) == [Plugin(plugin, str(plugin))]


def test_nixls_own_variable_outdoes_the_wheels(plugin: Path, tmp_path: Path) -> None:
    (found,) = find_plugins(None, {"NIXL_PLUGIN_DIR": str(plugin.parent)})
    assert found.path == plugin
    assert find_plugins(None, {"NIXL_PLUGIN_DIR": str(tmp_path)}) == []


@pytest.mark.parametrize("kind", ["absent", "text", "false"])
def test_what_has_no_wheels_is_refused(kind: str, tmp_path: Path) -> None:
    place = tmp_path / kind
    if kind == "text":
        place.write_text("")
    if kind == "false":
        place.symlink_to("/bin/false")
    with pytest.raises(ValueError, match=r"is no interpreter|does not answer"):
        find_plugins(place, {})
