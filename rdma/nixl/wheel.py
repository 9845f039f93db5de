"""Which OBJ plugin a NIXL wheel would open. Nothing of NIXL is imported.

NIXL 1.5 opens `plugins/libplugin_OBJ.so` in the folder of its libnixl.so (`.nixl_cuXX.mesonpy.libs`), or in
NIXL_PLUGIN_DIR and nowhere else. A wheel has a second copy in `nixl_cuXX.libs/nixl`, which is never opened.
"""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PLUGIN = "libplugin_OBJ.so"
DIRECTORY_VARIABLE = "NIXL_PLUGIN_DIR"

_WHEEL = re.compile(r"nixl-cu\d+")
_PATIENCE = 30.0
"""Seconds that another interpreter may take to tell its path."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """`name` is what brought it: a distribution such as nixl-cu13, or a file. `version` is "" for a file."""

    path: Path
    name: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}".rstrip()


def find_plugins(place: Path | None = None, environment: Mapping[str, str] = os.environ) -> list[Plugin]:
    """The plugins of the wheels of this interpreter, or of `place`: an interpreter, a virtual environment, a folder
    of packages, or a plugin's own file. The newest CUDA version first.

    Raises ValueError when `place` is none of these; its text does not repeat it.
    """
    if place is not None and place.is_file() and place.suffix == ".so":
        return [Plugin(place.absolute(), str(place))]
    named = environment.get(DIRECTORY_VARIABLE)
    if named and place is None:
        path = Path(named).absolute() / PLUGIN
        return [Plugin(path, f"{DIRECTORY_VARIABLE}={named}")] if path.is_file() else []
    return sorted(_in_wheels(_search_path(place)), key=lambda plugin: plugin.name, reverse=True)


def _search_path(place: Path | None) -> list[str]:
    if place is None:
        return sys.path
    if place.is_dir() and not (place / "bin" / "python").exists():
        return [str(place)]
    python = place / "bin" / "python" if place.is_dir() else place
    if not os.access(python, os.X_OK) or not python.is_file():
        raise ValueError("is no interpreter, virtual environment, folder of packages or plugin")
    ask = [str(python), "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    try:
        answer = subprocess.run(ask, capture_output=True, timeout=_PATIENCE, check=True).stdout  # noqa: S603 asked for by the caller
        return [str(entry) for entry in json.loads(answer)]
    except (OSError, subprocess.SubprocessError, ValueError):
        raise ValueError("does not answer as a Python interpreter") from None


def _in_wheels(path: list[str]) -> Iterable[Plugin]:
    seen = set()
    for distribution in importlib.metadata.distributions(path=path):
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        if not _WHEEL.fullmatch(name) or name in seen:
            continue
        seen.add(name)
        folder = f".{name.replace('-', '_')}.mesonpy.libs"
        plugin = Path(str(distribution.locate_file(folder))) / "plugins" / PLUGIN
        if plugin.is_file():
            yield Plugin(plugin, name, distribution.version)
