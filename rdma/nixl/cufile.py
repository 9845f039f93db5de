"""cufile.json, the file that CUFILE_ENV_PATH_JSON names: NVIDIA's configuration of cuFile, JSON with comments.

The engine reads four names of it (docs/cuobjclient.md); the others are NVIDIA's and are left alone.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from s3verbs.rdma.verbs.device import Address

VARIABLE = "CUFILE_ENV_PATH_JSON"


class CufileError(Exception):
    """A file that cannot be used. The text does not repeat its path."""


_COMMENTS = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)


def render(addresses: Sequence[Address]) -> str:
    """The published file. `addresses` are those of this machine's RDMA devices; without any every device is used."""
    properties: dict[str, Any] = {"allow_compat_mode": True, "use_pci_p2pdma": True, "rdma_peer_type": "dmabuf"}
    if addresses:
        properties["rdma_dev_addr_list"] = [str(address) for address in addresses]
    return json.dumps({"execution": {"parallel_io": False}, "properties": properties}, indent=2) + "\n"


def parse(text: str) -> dict[str, Any]:
    """The document, its // and /* */ comments left out. Raises CufileError, whose text names the line."""
    # A comment's line breaks stay, so that lines in messages are those of the file.
    bare = _COMMENTS.sub(lambda match: match[1] or re.sub(r"[^\n]", " ", match[0]), text)
    try:
        document = json.loads(bare)
    except json.JSONDecodeError as error:
        raise CufileError(f"line {error.lineno}: {error.msg}") from None
    except RecursionError:
        raise CufileError("it is nested too deeply") from None
    if not isinstance(document, dict):
        raise CufileError("it holds no JSON object")
    return document


def read(path: Path) -> dict[str, Any]:
    """The document of a file. Raises CufileError."""
    try:
        return parse(path.read_text())
    except OSError as error:
        raise CufileError(f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise CufileError("is not text") from None


def addresses_of(document: dict[str, Any]) -> list[str]:
    """`rdma_dev_addr_list`: IP addresses, or names of RDMA devices or network interfaces. Raises CufileError."""
    properties = document.get("properties", {})
    if not isinstance(properties, dict):
        raise CufileError("properties is no object")
    given = properties.get("rdma_dev_addr_list", [])
    if not isinstance(given, list) or not all(isinstance(entry, str) and entry for entry in given):
        raise CufileError('rdma_dev_addr_list is no list of addresses, such as ["10.0.1.2"]')
    return given
