"""Shared objects that the dynamic loader treats like NIXL's OBJ plugin and the engine under it, by the C compiler.

In C the members of cuObjClient are functions of their mangled names.
"""

import subprocess
from collections.abc import Iterable
from pathlib import Path

from s3verbs.rdma.nixl.loader import LIBRARY, SYMBOLS
from s3verbs.rdma.nixl.wheel import PLUGIN


def build(target: Path, source: str, *flags: str) -> Path:
    """A shared object of C source."""
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", str(target), *flags]
    subprocess.run(command, input=source, text=True, check=True)
    return target


def engine(folder: Path, symbols: Iterable[str] = tuple(SYMBOLS), *, interface: str = "") -> Path:
    """libcuobjclient.so.1 with these symbols, which do nothing, and with the functions of `interface`."""
    source = interface + "".join(f"void {name}(void) {{}}\n" for name in symbols)
    return build(folder / LIBRARY, source, f"-Wl,-soname,{LIBRARY}")


def interface(token: str = "", error: str = "", start: str = "") -> str:
    """s3verbs.h as C source: every token is that one, or nothing works for that reason. `start` is done first."""
    failed = -1 if error else 0
    return f"""
#include <stdio.h>
int s3verbs_init(void) {{ {start} fputs("s3verbs: info: one line\\n", stderr); return {failed}; }}
int s3verbs_register(void* address, size_t size) {{ return {failed}; }}
int s3verbs_token(const void* address, size_t size, char* token, size_t room) {{
    return snprintf(token, room, "%s", "{token}") < 0;
}}
int s3verbs_release(void* address) {{ return 0; }}
void s3verbs_shutdown(void) {{}}
const char* s3verbs_error(void) {{ return "{error}"; }}
"""


def plugin(folder: Path, built_with: Path | None, symbols: Iterable[str] = tuple(SYMBOLS), *flags: str) -> Path:
    """libplugin_OBJ.so that uses these symbols of an engine, and looks for it where the wheel's plugin does; without
    `built_with` one that has no accelerated engine."""
    names = list(symbols) if built_with is not None else []
    source = "".join(f"void {name}(void);\n" for name in names)
    source += "void nixl_plugin_init(void) {" + " ".join(f"{name}();" for name in names) + "}\n"
    link = [str(built_with)] if built_with is not None else []
    rpath = "-Wl,--disable-new-dtags,-rpath,$ORIGIN/.."
    return build(folder / PLUGIN, source, *link, rpath, "-Wl,--allow-shlib-undefined", "-Wl,-z,undefs", *flags)


def wheel(packages: Path, name: str, version: str, built_with: Path | None) -> Path:
    """An installed NIXL wheel as far as the plugin goes; the plugin's path."""
    package = name.replace("-", "_")
    metadata = packages / f"{package}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n")
    return plugin(packages / f".{package}.mesonpy.libs" / "plugins", built_with)
