"""What `s3verbs client` does: `env` and `lmcache-config`. Needs no package of the server."""

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from s3verbs.gateway import setting_types as types
from s3verbs.gateway.config import ConfigError
from s3verbs.rdma.client import kv_models
from s3verbs.rdma.client.kv_models import KvModel
from s3verbs.rdma.doctor import Finding
from s3verbs.rdma.nixl import cufile, lmcache, readiness
from s3verbs.rdma.nixl.wheel import find_plugins
from s3verbs.rdma.survey import find_endpoint, survey
from s3verbs.rdma.verbs.device import Address, explain
from s3verbs.rdma.verbs.sysfs import read_inventory


def env(options: argparse.Namespace) -> int:
    """`client env`: 1 when there is a problem. Only the line is on standard output, whenever there is a library."""
    findings: list[Finding] = []
    try:
        library = readiness.find_library(options.library)
        line = readiness.export_line(library)
        sys.stdout.write(line + "\n")
        findings += readiness.load_findings(library, find_plugins(options.nixl))
    except FileNotFoundError as error:
        findings.append(("problem", str(error)))
    except ValueError as error:
        raise ConfigError(f"nixl: {options.nixl}: {error}") from None
    findings += _machine(options.endpoint)
    sys.stderr.write("".join(f"{state:<8} {text}\n" for state, text in findings))
    return int(any(state == "problem" for state, _ in findings))


def _machine(url: str | None) -> Iterator[Finding]:
    try:
        endpoint = find_endpoint(url) if url is not None else None
    except ValueError as error:
        raise ConfigError(f"endpoint: {error}") from None
    pins = [pin.strip() for pin in os.environ.get("S3VERBS_RDMA_DEVICES", "").split(",") if pin.strip()]
    try:
        found = survey(pins)
    except ValueError as error:
        yield "problem", f"S3VERBS_RDMA_DEVICES: {error}"
        found = survey()
    yield from readiness.environment_findings(found)
    yield from readiness.machine_findings(found, port=endpoint.port if endpoint and endpoint.local else None)
    if endpoint is not None:
        yield readiness.endpoint_finding(endpoint)


def lmcache_config(options: argparse.Namespace) -> int:
    """`client lmcache-config`. Raises ConfigError."""
    model = _model(options)
    storage = _storage(options)
    try:
        buffer = lmcache.buffer_for(model, options.context, tp=options.tp, chunk_size=options.chunk_size)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    yaml = lmcache.accelerated(storage, buffer, chunk_size=options.chunk_size, device=options.device)
    files = {"lmcache.yaml": yaml, "cufile.json": cufile.render(_addresses(options.rdma_address))}
    if options.out is None:
        sys.stdout.write("\n".join(f"# {name}\n{text}" for name, text in files.items()))
    else:
        _write(options.out, files)
    where, room = ("GPU", buffer.bytes) if options.device == "cuda" else ("host", buffer.gibibytes << 30)
    sys.stderr.write(
        f"{model.name}: {model.bytes_per_token(options.tp):,} B a token, {_mebibytes(buffer.object_bytes)} an object, "
        f"{buffer.chunks} objects for {options.context:,} tokens: {_gibibytes(room)} of {where} memory for "
        f"{'the worker' if options.tp == 1 else f'each of {options.tp} workers'}\n"
    )
    return 0


def _model(options: argparse.Namespace) -> KvModel:
    shape = [getattr(options, name) for name in kv_models.SHAPE]
    try:
        width = None if options.dtype is None else kv_models.dtype_bytes(options.dtype)
        if options.model is not None:
            if shape != [None] * 3:
                raise ConfigError("model: give --model, or --layers, --kv-heads and --head-dim, not both")
            model = kv_models.parse(options.model)
            return model if width is None else dataclasses.replace(model, dtype_bytes=width)
        if None in shape:
            raise ConfigError("model: give --model, or all of --layers, --kv-heads and --head-dim")
        return KvModel("this model", options.layers, options.kv_heads, options.head_dim, width or 2)
    except ValueError as error:
        raise ConfigError(f"model: {error}") from None


def _storage(options: argparse.Namespace) -> lmcache.Storage:
    if bool(options.access_key) != bool(options.secret_key_file):
        raise ConfigError("access_key: give both --access-key and --secret-key-file, or neither")
    secret = _secret(options.secret_key_file) if options.secret_key_file else ""
    try:
        endpoint = lmcache.endpoint_of(options.endpoint)
    except ValueError as error:
        raise ConfigError(f"endpoint: {error}") from None
    return lmcache.Storage(
        endpoint=endpoint,
        bucket=_checked("bucket", types.bucket, options.bucket).name,
        region=_checked("region", types.region, options.region),
        access_key=_checked("access_key", types.access_key, options.access_key) if secret else "",
        secret_key=secret,
    )


def _checked(name: str, parse: Callable[[Any], Any], value: str) -> Any:
    try:
        return parse(value)
    except ValueError:
        raise ConfigError(f"{name}: {value!r} is none that the endpoint would accept") from None


def _secret(file: str) -> str:
    try:
        text = sys.stdin.readline() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"secret_key_file: cannot read {file}: {error}") from None
    try:
        return types.secret_key(text.strip())
    except ValueError:
        raise ConfigError("secret_key_file: 8 to 128 printable characters are allowed; they are not shown") from None


def _addresses(given: list[str]) -> list[Address]:
    if given:
        try:
            return [ip_address(text) for text in given]
        except ValueError as error:
            raise ConfigError(f"rdma_address: {error}") from None
    verdicts = explain(read_inventory(Path("/sys")))
    return [verdict.rail.address for verdict in verdicts if verdict.rail is not None]


def _write(folder: Path, files: dict[str, str]) -> None:
    """Files that are there are left alone: they may have been edited. lmcache.yaml can hold a secret key."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in files:
            if (folder / name).exists():
                raise ConfigError(f"out: {folder / name} is there already; move it away, or give another directory")
        for name, text in files.items():
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as stream:
                stream.write(text)
            sys.stderr.write(f"wrote {folder / name}\n")
    except OSError as error:
        raise ConfigError(f"out: {error.filename or folder}: {error.strerror}") from None


def _mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.4g} MiB"


def _gibibytes(count: int) -> str:
    return f"{count / (1 << 30):.4g} GiB"
