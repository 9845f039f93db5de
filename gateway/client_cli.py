"""The parsers of `s3verbs client`, for machines that run vLLM, LMCache and NIXL. `client_commands` does the work."""

import argparse
from pathlib import Path
from typing import Any

from s3verbs.rdma.client import kv_models


def add_parsers(commands: Any) -> None:
    """Add `client` and its verbs to the command line's parsers."""
    client = commands.add_parser("client", help="what clients need: the engine under NIXL, LMCache's configuration")
    verbs = client.add_subparsers(metavar="VERB", required=True)
    _add_env(verbs)
    _add_lmcache_config(verbs)


def _add_env(verbs: Any) -> None:
    parser = verbs.add_parser(
        "env", help="print the line that makes NIXL load the engine, for eval; check that it would, on standard error"
    )
    parser.add_argument(
        "--library",
        type=Path,
        metavar="DIR",
        help="where libcuobjclient.so.1 is; default: as installed or built",
    )
    parser.add_argument(
        "--nixl", type=Path, metavar="PYTHON", help="vLLM's interpreter or virtual environment; default: this one"
    )
    parser.add_argument("--endpoint", metavar="URL", help="S3 endpoint to ask, too")
    parser.set_defaults(run=_env)


def _env(options: argparse.Namespace) -> int:
    from s3verbs.gateway import client_commands

    return client_commands.env(options)


def _lmcache_config(options: argparse.Namespace) -> int:
    from s3verbs.gateway import client_commands

    return client_commands.lmcache_config(options)


def _add_lmcache_config(verbs: Any) -> None:
    parser = verbs.add_parser("lmcache-config", help="print or write lmcache.yaml and cufile.json for a model")
    model = parser.add_argument_group("model")
    model.add_argument("--model", metavar="NAME", help=f"one of {', '.join(kv_models.PRESETS)}, or give its numbers:")
    for name in kv_models.SHAPE:
        model.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=f"{name} in its config.json")
    model.add_argument("--dtype", metavar="TYPE", help="type of the KV cache, such as bf16 (the default) or fp8")
    size = parser.add_argument_group("size")
    size.add_argument("--context", type=int, required=True, metavar="TOKENS", help="that the buffer holds at a time")
    size.add_argument("--tp", type=int, default=1, metavar="N", help="tensor-parallel workers; default 1")
    size.add_argument("--chunk-size", type=int, default=kv_models.CHUNK_SIZE, metavar="TOKENS", help="default 256")
    size.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="where the buffer is; default cuda, for GPU memory"
    )
    storage = parser.add_argument_group("storage")
    storage.add_argument("--endpoint", default="http://127.0.0.1:9000", metavar="URL", help="default %(default)s")
    storage.add_argument("--bucket", default="kvcache", help="default %(default)s")
    storage.add_argument("--region", default="us-east-1", help="default %(default)s")
    storage.add_argument("--access-key", default="", metavar="KEY", help="without it NIXL takes AWS's own chain")
    storage.add_argument(
        "--secret-key-file",
        default="",
        metavar="FILE",
        help="its secret key, to write out; - is standard input",
    )
    storage.add_argument(
        "--rdma-address",
        action="append",
        default=[],
        metavar="IP",
        help="address of an RDMA device of this client; repeat it for several; default: those of this machine",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the two files there, in place of printing them")
    parser.set_defaults(run=_lmcache_config)
