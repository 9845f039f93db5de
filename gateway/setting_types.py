"""What a setting's value may be: parsers from text or a TOML value, and back to TOML. All raise ValueError.

A parser gets text from the command line and the environment, and a TOML value from the file.
"""

import ipaddress
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s3verbs.rdma.verbs.device import parse_pin
from s3verbs.storage.model import Durability

Parse = Callable[[Any], Any]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_SIZE = re.compile(r"(\d+)\s*(|B|KiB|MiB|GiB|TiB)")
_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_DOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP address. `host` may be an IPv6 address, without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class InitialBucket:
    """A bucket that is made at start."""

    name: str
    durability: Durability

    def __str__(self) -> str:
        return f"{self.name}:{self.durability.value}"


def path(raw: Any) -> Path:
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise ValueError
    try:
        return Path(raw).expanduser()
    except RuntimeError:  # a home directory that nobody has
        raise ValueError from None


def address(raw: Any) -> Address:
    if not isinstance(raw, str):
        raise TypeError
    host, colon, port = raw.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = str(ipaddress.IPv6Address(host[1:-1]))
    elif ":" in host:
        raise ValueError
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError
    return Address(host, int(port))


def optional_address(raw: Any) -> Address | None:
    return None if raw == "off" else address(raw)


def whole(low: int, high: int) -> Parse:
    def parse(raw: Any) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int | str):
            raise TypeError
        value = int(raw)
        if not low <= value <= high:
            raise ValueError
        return value

    return parse


def seconds(low: float, high: float) -> Parse:
    def parse(raw: Any) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float | str):
            raise TypeError
        value = float(raw)
        if not low <= value <= high:
            raise ValueError
        return value

    return parse


days = seconds


def size(low: int, high: int) -> Parse:
    def parse(raw: Any) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int | str):
            raise TypeError
        if isinstance(raw, str):
            match = _SIZE.fullmatch(raw.strip())
            if match is None:
                raise ValueError
            raw = int(match[1]) * _UNITS[match[2]]
        if not low <= raw <= high:
            raise ValueError
        return int(raw)

    return parse


def boolean(raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    value = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(_text(raw).lower())
    if value is None:
        raise ValueError
    return value


def region(raw: Any) -> str:
    return _matching(r"[a-z0-9-]{1,64}", raw)


def domain(raw: Any) -> str:
    text = _text(raw).lower()
    if not _DOMAIN.fullmatch(text):
        raise ValueError
    return text


def access_key(raw: Any) -> str:
    return _matching(r"[A-Za-z0-9._-]{3,128}", raw)


def secret_key(raw: Any) -> str:
    return _matching(r"[!-~]{8,128}", raw)


def bucket(raw: Any) -> InitialBucket:
    name, _, durability = _text(raw).partition(":")
    if not _BUCKET.fullmatch(name):
        raise ValueError
    return InitialBucket(name, Durability(durability or "strict"))


def log_target(raw: Any) -> str:
    text = _text(raw)
    if not text:
        raise ValueError
    return text


def network(raw: Any) -> Network:
    return ipaddress.ip_network(_text(raw), strict=False)


def rdma(raw: Any) -> str:
    return _matching(r"auto|required|off", raw)


def rdma_device(raw: Any) -> str:
    return str(parse_pin(_text(raw)))


def dc_key(raw: Any) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int | str):
        raise TypeError
    value = raw if isinstance(raw, int) else int(raw, 0)
    if not 0 <= value <= 0xFFFFFFFF:
        raise ValueError
    return value


def socket_path(raw: Any) -> str:
    text = _text(raw)
    if text in ("auto", "off"):
        return text
    if not text.startswith("/") or len(text.encode()) > 107:
        raise ValueError
    return text


def to_toml(value: Any) -> str:
    """A setting's value as TOML text that its parser reads back to the same value. None is an address that is off."""
    if value is None:
        return '"off"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(to_toml, value)) + "]"
    return json.dumps(str(value), ensure_ascii=False)


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError
    return raw.strip()


def _matching(pattern: str, raw: Any) -> str:
    text = _text(raw)
    if not re.fullmatch(pattern, text):
        raise ValueError
    return text
