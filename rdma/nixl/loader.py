"""What the dynamic loader makes of NIXL's OBJ plugin: which libcuobjclient.so.1 it takes, and what is missing.

The loader is asked, not modelled: `ldd -r` is its own dry run, with RPATH, LD_LIBRARY_PATH, ld.so.cache and symbol
versions as they will be, and it runs no code of the plugin. See docs/decisions/ask-the-loader.md.
"""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LIBRARY = "libcuobjclient.so.1"
VARIABLE = "LD_LIBRARY_PATH"

SYMBOLS: Mapping[str, str] = {
    "_ZN11cuObjClientC1ER10CUObjIOOps15cuObjProto_enum": "cuObjClient(CUObjIOOps&, cuObjProto_enum)",
    "_ZN11cuObjClientD1Ev": "~cuObjClient()",
    "_ZN11cuObjClient11isConnectedEv": "isConnected()",
    "_ZN11cuObjClient21cuMemObjGetDescriptorEPvm": "cuMemObjGetDescriptor(void*, size_t)",
    "_ZN11cuObjClient21cuMemObjPutDescriptorEPv": "cuMemObjPutDescriptor(void*)",
    "_ZN11cuObjClient8cuObjGetEPvS0_mll": "cuObjGet(void*, void*, size_t, loff_t, loff_t)",
    "_ZN11cuObjClient8cuObjPutEPvS0_mll": "cuObjPut(void*, void*, size_t, loff_t, loff_t)",
    "_ZN11cuObjClient6getCtxEPKv": "getCtx(const void*)",
}
"""What the plugin of NIXL 1.5 needs of the library: names in it, and the members of cuObjClient that they are."""

_PATIENCE = 60.0
_FOUND = re.compile(r"^\s+(\S+) => (.+?)(?: \(0x[0-9a-f]+\))?$")
_UNDEFINED = re.compile(r"^undefined symbol: (\S+)")
_VERSION = re.compile(r"version `(\S+)' not found \(required by (\S+)\)")
_ENGINE_SYMBOL = re.compile(r"_ZNK?11cuObjClient")


class LoaderUnavailable(Exception):
    """`ldd` cannot be run, or does not understand the file. The text says what to do."""


@dataclass(frozen=True, slots=True)
class Loading:
    """`needs_engine`: the plugin holds the accelerated engine. `library` is what it gets for that, None when there is
    none. `missing` are the other libraries that are not found, `undefined` the symbols that no library has, `versions`
    the symbol versions ("GLIBC_2.38 by /lib/x.so") that this machine's libraries are too old for."""

    needs_engine: bool
    library: Path | None
    missing: tuple[str, ...] = ()
    undefined: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()

    @property
    def loads(self) -> bool:
        return not (self.missing or self.undefined or self.versions) and (
            self.library is not None or not self.needs_engine
        )


def with_library(directory: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment in which the loader looks into `directory` first."""
    before = environment.get(VARIABLE)
    return {**environment, VARIABLE: f"{directory}:{before}" if before else str(directory)}


def examine(plugin: Path, environment: Mapping[str, str]) -> Loading:
    """Ask the loader, in that environment. Raises LoaderUnavailable."""
    try:
        answer = subprocess.run(  # noqa: S603 the file is what the caller examines
            ["ldd", "-r", str(plugin)],  # noqa: S607 wherever it is
            env={**environment, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
        )
    except FileNotFoundError:
        raise LoaderUnavailable("ldd is not installed: apt-get install libc-bin") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise LoaderUnavailable(f"ldd did not answer: {error}") from None
    if answer.returncode and " => " not in answer.stdout:
        said = (answer.stderr or answer.stdout).strip().splitlines()
        raise LoaderUnavailable(f"ldd: {said[-1].strip() if said else f'exit code {answer.returncode}'}")
    return _understand(answer.stdout + answer.stderr)


def _understand(text: str) -> Loading:
    libraries: dict[str, str] = {}
    undefined, versions = [], []
    for line in text.splitlines():
        if found := _FOUND.match(line):
            libraries[found[1]] = found[2]
        elif found := _UNDEFINED.match(line):
            undefined.append(found[1])
        elif found := _VERSION.search(line):
            versions.append(f"{found[1]} by {found[2]}")
    engine = libraries.pop(LIBRARY, None)
    # Without the library its symbols are missing too: that is said once.
    if engine == "not found":
        undefined = [name for name in undefined if not _ENGINE_SYMBOL.match(name)]
    return Loading(
        needs_engine=engine is not None,
        library=None if engine in (None, "not found") else Path(str(engine)),
        missing=tuple(name for name, where in libraries.items() if where == "not found"),
        undefined=tuple(undefined),
        versions=tuple(dict.fromkeys(versions)),
    )


def readable(symbol: str) -> str:
    """A symbol as a C++ programmer writes it, where it is one of the engine's."""
    return f"cuObjClient::{SYMBOLS[symbol]}" if symbol in SYMBOLS else symbol
