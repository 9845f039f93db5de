"""The arguments of `s3verbs bench kv`. Standard library and arithmetic only: the command line's parser imports it."""

import argparse
import dataclasses
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from s3verbs.bench import recompute
from s3verbs.rdma.client import kv_models

TRANSPORTS = ("http", "rdma")
DEFAULT_MODEL = "Llama-3.1-8B"
CONTEXTS = "1K,2K,4K,8K,16K,32K,64K,128K,235K"

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cache = parser.add_argument_group("the cache")
    cache.add_argument(
        "--model",
        type=_typed(kv_models.parse),
        metavar="NAME",
        help=f"one of {', '.join(kv_models.PRESETS)} (default {DEFAULT_MODEL}), or give its numbers:",
    )
    for name in kv_models.SHAPE:
        cache.add_argument(f"--{name.replace('_', '-')}", type=_whole(1), metavar="N", help="in its config.json")
    cache.add_argument(
        "--dtype", type=_typed(kv_models.dtype_bytes), metavar="TYPE", help="of the cache: bf16, fp8, ..."
    )
    cache.add_argument("--tp", type=_whole(1), default=1, metavar="N", help="tensor-parallel workers; one is measured")
    cache.add_argument(
        "--chunk-size", type=_whole(1), default=kv_models.CHUNK_SIZE, metavar="TOKENS", help="of an object"
    )
    cache.add_argument(
        "--contexts", type=_typed(contexts), default=CONTEXTS, metavar="LIST", help=f"tokens (default {CONTEXTS})"
    )
    cache.add_argument(
        "--recompute",
        type=_typed(recompute.parse),
        metavar="TIME",
        help=f"what loading competes with: {recompute.ALLOWED}",
    )

    run = parser.add_argument_group("the run")
    run.add_argument("--transports", type=_typed(transports), default="http,rdma", metavar="LIST", help="http,rdma")
    run.add_argument("--repeat", type=_whole(1), default=3, metavar="N", help="times that each context is moved")
    run.add_argument("--warm-up", type=_whole(0), default=1, metavar="N", help="times that the shortest is, before")
    run.add_argument(
        "--memory",
        type=_typed(memory),
        default="25%",
        metavar="SIZE",
        help="for the buffers of all transports, as 8GiB or 25%% of what is available; longer contexts go through the "
        "buffers in rounds (default 25%%, at most 8 GiB each)",
    )
    run.add_argument("--num-threads", type=_whole(1), default=4, metavar="N", help="requests in flight, of each engine")
    run.add_argument(
        "--nixl",
        type=_typed(nixl_parameter),
        action="append",
        default=[],
        metavar="[TRANSPORT:]NAME=VALUE",
        help="a further parameter of the OBJ plugin, as http:crtMinLimit=8388608",
    )
    run.add_argument(
        "--timeout", type=_typed(seconds), default=300.0, metavar="SECONDS", help="for one buffer full (default 300)"
    )
    run.add_argument("--python", default=sys.executable, metavar="FILE", help="interpreter that has NIXL and numpy")
    run.add_argument(
        "--library",
        type=Path,
        metavar="DIR",
        help="where libcuobjclient.so.1 is (default: what the loader finds, or as installed or built)",
    )
    run.add_argument(
        "--rdma-transport",
        choices=("auto", "dc", "rc", "samehost"),
        help="how the library moves bytes (S3VERBS_TRANSPORT)",
    )

    endpoint = parser.add_argument_group("the endpoint")
    endpoint.add_argument(
        "--endpoint",
        metavar="URL",
        help="http(s)://HOST:PORT; keys from the environment, ~/.aws, ... (default: a gateway of its own on loopback)",
    )
    endpoint.add_argument("--bucket", default="kvcache", help="where the objects go (default kvcache)")
    endpoint.add_argument("--region", default=os.environ.get("AWS_REGION") or "us-east-1")
    endpoint.add_argument("--keep", action="store_true", help="leave the objects in the bucket")
    endpoint.add_argument("--folder", type=Path, metavar="DIR", help="where the own gateway keeps its data")
    endpoint.add_argument(
        "--serve",
        type=_typed(setting),
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a further setting of the own gateway",
    )

    output = parser.add_argument_group("the output")
    output.add_argument("--json", type=Path, metavar="FILE", help="write all measurements")
    output.add_argument("--plot", type=Path, metavar="FILE", help="draw them: a PNG, or what the suffix says")
    output.add_argument("--quiet", action="store_true", help="no progress on stderr")


def model_of(options: argparse.Namespace) -> kv_models.KvModel:
    """The model with the type that was asked for. Raises ValueError."""
    shape = [getattr(options, name) for name in kv_models.SHAPE]
    model: kv_models.KvModel = options.model or kv_models.PRESETS[DEFAULT_MODEL]
    if any(shape):
        if options.model is not None or not all(shape):
            raise ValueError("give --model, or all of --layers, --kv-heads and --head-dim")
        model = kv_models.KvModel("{} layers, {} KV heads of {}".format(*shape), *shape)
    return dataclasses.replace(model, dtype_bytes=options.dtype) if options.dtype else model


def contexts(text: str) -> list[int]:
    return sorted({recompute.parse_tokens(part) for part in text.split(",")})


def transports(text: str) -> list[str]:
    """In the order of TRANSPORTS."""
    given = set(text.split(","))
    if not given <= set(TRANSPORTS):
        raise ValueError(f"{text!r}: must be http, rdma or http,rdma")
    return [name for name in TRANSPORTS if name in given]


def seconds(text: str) -> float:
    found = float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else 0.0
    if not found:
        raise ValueError(f"{text!r}: must be seconds, more than 0")
    return found


def memory(text: str) -> int | float:
    """Bytes, or a share of what is available."""
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)%", text):
        share = float(match[1]) / 100
        if 0 < share <= 1:
            return share
    elif match := re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", text):
        return int(match[1]) * _UNITS[match[2]]
    raise ValueError(f"{text!r}: must be a size such as 8GiB, or a share such as 25%")


def nixl_parameter(text: str) -> tuple[str, str, str]:
    """Transport ("" for each), name, value."""
    match = re.fullmatch(r"(?:(http|rdma):)?(\w+)=(.*)", text)
    if match is None:
        raise ValueError(f"{text!r}: must be NAME=VALUE, http:NAME=VALUE or rdma:NAME=VALUE")
    return match[1] or "", match[2], match[3]


def setting(text: str) -> str:
    if not re.fullmatch(r"[\w-]+=.+", text):
        raise ValueError(f"{text!r}: must be NAME=VALUE, a setting of s3verbs serve")
    return text


def _whole(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low:
            raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number of at least {low}")
        return value

    return parse


def _typed(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """argparse hides the text of a ValueError."""

    def typed(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return typed
