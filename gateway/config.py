# ruff: noqa: RUF009  _setting is dataclasses.field with this module's metadata
"""Settings: defaults < TOML file < environment (`S3VERBS_<NAME>`) < command line.

One table, the fields of `Settings`, is the source of every name, default, parser and help text. The TOML file is
flat and uses the same names. A wrong setting raises ConfigError, whose text names the setting, where it came from,
the value, and what is allowed.
"""

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from s3verbs.gateway import setting_types as types
from s3verbs.gateway.setting_types import Address, InitialBucket, Network

PREFIX = "S3VERBS_"
SECRET = frozenset({"root_secret_key"})
NO_FLAG = frozenset({"root_access_key", "root_secret_key"})
"""Settings without a command-line flag: other users of a machine can read a command line."""
CLIENT_VARIABLES = frozenset({"S3VERBS_TRANSPORT", "S3VERBS_DC_KEY", "S3VERBS_LOG"})
"""Variables of the client engine (docs/cuobjclient.md), which a server on the same machine may find and does not read.
S3VERBS_SOCKET and S3VERBS_RDMA_DEVICES mean the same to both."""


class ConfigError(Exception):
    """A setting that cannot be used."""


def _setting(parse: types.Parse, allowed: str, text: str, default: Any = None, *, many: bool = False) -> Any:
    metadata = {"parse": parse, "allowed": allowed, "help": text, "many": many}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def _cores() -> int:
    return max(1, min(4, len(os.sched_getaffinity(0))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set. Times are seconds, sizes bytes."""

    data: tuple[Path, ...] = _setting(
        types.path, "a path", "data directory, one per drive; the first also holds the metadata", (), many=True
    )
    listen: tuple[Address, ...] = _setting(
        types.address,
        "HOST:PORT with a port of 0 to 65535",
        "address of the S3 endpoint",
        (Address("127.0.0.1", 9000),),
        many=True,
    )
    workers: int = _setting(types.whole(1, 256), "a whole number of 1 to 256", "worker processes", _cores)
    region: str = _setting(
        types.region, "lower-case letters, digits and hyphens", "region that the endpoint reports", "us-east-1"
    )
    enforce_region: bool = _setting(types.boolean, "true or false", "refuse signatures made for another region", False)
    domains: tuple[str, ...] = _setting(
        types.domain, "a DNS name without a port", "base domain of virtual-hosted buckets", (), many=True
    )
    tls_cert: Path | None = _setting(
        types.path, "a PEM file", "certificate chain; serves HTTPS on every listen address"
    )
    tls_key: Path | None = _setting(types.path, "a PEM file", "private key of tls_cert")
    metrics_listen: Address | None = _setting(
        types.optional_address, "HOST:PORT or off", "address of /metrics and /health", Address("127.0.0.1", 9090)
    )
    root_access_key: str = _setting(
        types.access_key, "3 to 128 letters, digits and ._-", "access key made at the first start", ""
    )
    root_secret_key: str = _setting(types.secret_key, "8 to 128 printable characters", "its secret key", "")
    buckets: tuple[InitialBucket, ...] = _setting(
        types.bucket,
        "NAME, NAME:strict or NAME:relaxed, with a NAME of 3 to 63 lower-case letters, digits, dots and hyphens",
        "bucket made at start when it is not there",
        (),
        many=True,
    )
    access_log: str = _setting(types.log_target, "off, stdout or a file's path", "one JSON line per request", "off")
    audit_log: str = _setting(
        types.log_target, "off, stdout or a file's path", "one JSON line per authorization decision", "off"
    )
    header_timeout: float = _setting(
        types.seconds(0.1, 3600), "seconds, 0.1 to 3600", "time for a request's head to arrive", 30.0
    )
    body_timeout: float = _setting(
        types.seconds(0.1, 3600),
        "seconds, 0.1 to 3600",
        "time of waiting for a client in which a body must move by 1 KiB a second, in either direction",
        60.0,
    )
    keep_alive_timeout: float = _setting(
        types.seconds(0.1, 3600), "seconds, 0.1 to 3600", "time that an idle connection stays open", 75.0
    )
    drain_timeout: float = _setting(
        types.seconds(0, 3600), "seconds, 0 to 3600", "time for requests to finish after a stop signal", 30.0
    )
    max_connections: int = _setting(
        types.whole(1, 1_000_000), "a whole number of 1 to 1000000", "open connections of all workers together", 4096
    )
    buffer_pool: int = _setting(
        types.size(4 << 20, 64 << 30), "bytes, 4MiB to 64GiB", "payload buffers of all workers together", 64 << 20
    )
    map_bytes: int = _setting(
        types.size(16 << 20, 16 << 40),
        "bytes, 16MiB to 16TiB",
        "first size of the metadata map; it grows by itself",
        1 << 30,
    )
    reserve_bytes: int = _setting(
        types.size(0, 1 << 40),
        "bytes, 0 to 1TiB",
        "space kept free on each drive, so that DELETE works when it is full",
        64 << 20,
    )
    stale_upload_days: float = _setting(
        types.days(0, 36500),
        "days, 0 to 36500; 0 keeps them for ever",
        "age at which an unfinished multipart upload is aborted",
        7.0,
    )
    trusted_proxies: tuple[Network, ...] = _setting(
        types.network,
        "an IP address or network",
        "proxy whose X-Forwarded-For, -Host and -Proto are believed",
        (),
        many=True,
    )
    rdma: str = _setting(
        types.rdma,
        "auto, required or off",
        "RDMA data path: auto offers what this machine has, required does not start without an RDMA device",
        "auto",
    )
    rdma_devices: tuple[str, ...] = _setting(
        types.rdma_device,
        "DEVICE, DEVICE:PORT or DEVICE:PORT:GID_INDEX",
        "RDMA device to use, in place of every active RoCE port",
        (),
        many=True,
    )
    rdma_dc_key: int = _setting(
        types.dc_key,
        "a number of 32 bits, as 0xffeeddcc",
        "access key of dynamic connections; the same as the clients' rdma_dc_key",
        0xFFEEDDCC,
    )
    rdma_allowed_peers: tuple[Network, ...] = _setting(
        types.network,
        "an IP address or network",
        "clients that RDMA may reach, in place of the subnets of the RDMA devices",
        (),
        many=True,
    )
    rdma_pool_bytes: int = _setting(
        types.size(4 << 20, 256 << 30), "bytes, 4MiB to 256GiB", "registered buffers of all workers together", 64 << 20
    )
    rdma_transfer_timeout: float = _setting(
        types.seconds(0.1, 600), "seconds, 0.1 to 600", "time for each chunk of 1 MiB to move", 10.0
    )
    rdma_queue_timeout: float = _setting(
        types.seconds(0, 600), "seconds, 0 to 600", "time to wait for a registered buffer before a decline", 2.0
    )
    rdma_max_connections: int = _setting(
        types.whole(1, 1_000_000), "a whole number of 1 to 1000000", "queue pairs of all workers together", 1024
    )
    rdma_idle_timeout: float = _setting(
        types.seconds(1, 86400), "seconds, 1 to 86400", "time that an idle RDMA connection stays open", 300.0
    )
    socket: str = _setting(
        types.socket_path,
        "auto, off or a socket's path",
        "UNIX socket of the same-host transport; auto finds a place that clients find too",
        "auto",
    )

    def check(self) -> None:
        """What involves several settings. Raises ConfigError."""
        if not self.data:
            raise ConfigError(
                'data: no data directory is given; use --data DIR, data = ["DIR"] in the file, or S3VERBS_DATA'
            )
        if len({path.resolve() for path in self.data}) != len(self.data):
            raise ConfigError(
                f"data: a directory is given twice: {', '.join(map(str, self.data))}; allowed: different directories"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            raise ConfigError(f"{missing}: is not set although {given} is; allowed: both or neither")
        if bool(self.root_access_key) != bool(self.root_secret_key):
            given, missing = (
                ("root_access_key", "root_secret_key")
                if self.root_access_key
                else ("root_secret_key", "root_access_key")
            )
            raise ConfigError(f"{missing}: is not set although {given} is; allowed: both or neither")
        if self.rdma_pool_bytes < self.workers * (2 << 20):
            raise ConfigError(
                f"rdma_pool_bytes: {self.rdma_pool_bytes} is too small; allowed: at least 2MiB for each of the "
                f"{self.workers} workers"
            )
        if self.buffer_pool < self.workers * (4 << 20):
            raise ConfigError(
                f"buffer_pool: {self.buffer_pool} is too small; allowed: at least 4MiB for each of the "
                f"{self.workers} workers"
            )


FIELDS: Mapping[str, dataclasses.Field[Any]] = {item.name: item for item in dataclasses.fields(Settings)}


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and for each name where its value came from. `ignored` are the variables of clients that are set."""

    settings: Settings
    sources: Mapping[str, str]
    ignored: tuple[str, ...] = ()


def load(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Loaded:
    """Read all sources. `flags` holds setting names with text (or lists of text) from the command line.

    Raises ConfigError. `Settings.check` is left to the caller: some commands need only the data directories.
    """
    values: dict[str, Any] = {}
    sources = dict.fromkeys(FIELDS, "default")

    def take(name: str, raw: Any, source: str) -> None:
        values[name] = _parse(name, raw, source)
        sources[name] = source

    if file is not None:
        for name, raw in _flat(_read_file(file)).items():
            _known(name, str(file))
            take(name, raw, str(file))
    for variable, text in environment.items():
        if not variable.startswith(PREFIX) or variable == PREFIX + "CONFIG" or variable in CLIENT_VARIABLES:
            continue
        name = variable.removeprefix(PREFIX).lower()
        _known(name, "environment", variable)
        take(name, text, variable)
    for name, raw in flags.items():
        take(name, raw, flag_of(name))
    return Loaded(Settings(**values), sources, tuple(sorted(CLIENT_VARIABLES & environment.keys())))


def flag_of(name: str) -> str:
    """The command-line flag of a setting: repeated ones are singular."""
    singular = {
        "domains": "domain",
        "buckets": "bucket",
        "trusted_proxies": "trusted_proxy",
        "rdma_devices": "rdma_device",
        "rdma_allowed_peers": "rdma_allowed_peer",
    }
    return "--" + singular.get(name, name).replace("_", "-")


def render(loaded: Loaded) -> str:
    """The effective settings as a TOML file, sources in comments; secrets are not shown."""
    lines = [f"# {variable} is set, for clients; it is no setting of the server" for variable in loaded.ignored]
    for name, item in FIELDS.items():
        value = getattr(loaded.settings, name)
        lines.append(f"# {item.metadata['help']}; {item.metadata['allowed']}")
        if name in SECRET and value:
            lines.append(f"# {name} is set and not shown    # {loaded.sources[name]}")
        elif value == "" or (value is None and item.metadata["parse"] is types.path):
            lines.append(f"# {name} is not set    # {loaded.sources[name]}")
        else:
            lines.append(f"{name} = {types.to_toml(value)}    # {loaded.sources[name]}")
    return "\n".join(lines) + "\n"


def _read_file(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise ConfigError(f"config: cannot read {file}: {error.strerror}; allowed: a readable TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config: {file} is not valid TOML: {error}") from None


def _flat(table: dict[str, Any]) -> dict[str, Any]:
    """`[rdma]` may be a table: `mode` is the setting `rdma`, other names are without their `rdma_`."""
    section = table.get("rdma")
    if not isinstance(section, dict):
        return table
    flat = {name: value for name, value in table.items() if name != "rdma"}
    for name, value in section.items():
        full = f"rdma_{name}"
        flat["rdma" if name == "mode" else full if full in FIELDS or name not in FIELDS else name] = value
    return flat


def _known(name: str, source: str, shown: str | None = None) -> None:
    if name in FIELDS:
        return
    close = difflib.get_close_matches(name, FIELDS, n=1)
    if shown is None:
        hint = f"; did you mean {close[0]}?" if close else ""
    else:
        hint = f"; did you mean {PREFIX}{close[0].upper()}?" if close else ""
    raise ConfigError(f"{shown or name}: unknown setting in {source}{hint}")


def _parse(name: str, raw: Any, source: str) -> Any:
    metadata = FIELDS[name].metadata
    parse, allowed = metadata["parse"], metadata["allowed"]
    if not metadata["many"]:
        return _parse_one(name, raw, source, parse, allowed)
    if isinstance(raw, str):
        raw = [part.strip() for part in raw.split(",") if part.strip()]
    if not isinstance(raw, list):
        raise ConfigError(f"{name}: {raw!r} (from {source}); allowed: a list, each {allowed}")
    return tuple(_parse_one(name, part, source, parse, allowed) for part in raw)


def _parse_one(name: str, raw: Any, source: str, parse: types.Parse, allowed: str) -> Any:
    try:
        return parse(raw)
    except (ValueError, TypeError):
        shown = "the value is not shown" if name in SECRET else repr(raw)
        raise ConfigError(f"{name}: {shown} (from {source}); allowed: {allowed}") from None
