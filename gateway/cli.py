"""The command `s3verbs`: serve, admin, doctor, client, bench.

Exit codes: 0 done, 1 failed or damage found, 2 cannot start or wrong use.

Imports little, so that the parent of `serve` stays small.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from s3verbs import __version__
from s3verbs.bench import options as bench_options
from s3verbs.gateway import client_cli, config, extras
from s3verbs.gateway.config import ConfigError, Loaded
from s3verbs.gateway.listening import StartError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. Errors of use and of start-up are one line on stderr."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except (ConfigError, StartError) as error:
        sys.stderr.write(f"s3verbs: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130


def load(options: argparse.Namespace) -> Loaded:
    """The settings of a command: its flags, the environment, the file. Raises ConfigError."""
    file = options.config or (Path(os.environ["S3VERBS_CONFIG"]) if os.environ.get("S3VERBS_CONFIG") else None)
    flags = {name: value for name in config.FIELDS if (value := getattr(options, f"setting_{name}", None)) is not None}
    return config.load(file, os.environ, flags)


def _serve(options: argparse.Namespace) -> int:
    loaded = load(options)
    if options.print_config:
        sys.stdout.write(config.render(loaded))
        return 0
    loaded.settings.check()
    _need_server_packages()
    from s3verbs.gateway.serve import serve

    return serve(loaded.settings, show_lmcache=options.show_lmcache)


def _admin(options: argparse.Namespace) -> int:
    loaded = load(options)
    if not loaded.settings.data:
        raise ConfigError("data: no data directory is given; use --data DIR, the file or S3VERBS_DATA")
    _need_server_packages()
    from s3verbs.gateway import admin

    return admin.run(loaded.settings, options)


def _need_server_packages() -> None:
    if missing := extras.missing():
        raise StartError(f"not installed: {', '.join(missing)}; install the extra: pip install 's3verbs[server]'")


def _doctor(options: argparse.Namespace) -> int:
    loaded = load(options)
    from s3verbs.gateway import doctor

    return doctor.run(loaded.settings, options.endpoint)


def _bench_kv(options: argparse.Namespace) -> int:
    if options.endpoint is None:
        _need_server_packages()
    from s3verbs.bench import kv

    return kv.run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="s3verbs", description="S3-compatible object store for GPU inference.")
    parser.add_argument("--version", action="version", version=f"s3verbs {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    serve = commands.add_parser("serve", help="run the endpoint")
    _add_settings(serve, list(config.FIELDS))
    serve.add_argument("--print-config", action="store_true", help="print the effective settings as TOML and exit")
    serve.add_argument("--show-lmcache", action="store_true", help="print an LMCache configuration at start")
    serve.set_defaults(run=_serve)

    admin = commands.add_parser("admin", help="keys, buckets and checks; opens the store directly")
    topics = admin.add_subparsers(metavar="TOPIC", required=True)
    _add_keys(topics)
    _add_buckets(topics)
    check = _add_admin(topics, "check", "compare metadata and payloads")
    check.add_argument(
        "--repair", action="store_true", help="quarantine what is damaged or orphaned; nothing is deleted"
    )
    check.add_argument("--read-payloads", action="store_true", help="read every payload and compare its checksums")
    check.set_defaults(action="check")

    doctor = commands.add_parser("doctor", help="say what works on this machine, for a server or a client")
    examined = ["data", "listen", "metrics_listen", "workers", "socket"]
    _add_settings(doctor, [*examined, *(name for name in config.FIELDS if name.startswith("rdma"))])
    doctor.add_argument(
        "--endpoint", metavar="URL", help="examine a machine that runs clients: what they get from this endpoint"
    )
    doctor.set_defaults(run=_doctor)
    client_cli.add_parsers(commands)

    benches = commands.add_parser("bench", help="measure an endpoint with real clients")
    kv = benches.add_subparsers(metavar="BENCH", required=True).add_parser(
        "kv", help="store and load a model's KV cache through NIXL, over HTTP and over RDMA"
    )
    bench_options.add_arguments(kv)
    kv.set_defaults(run=_bench_kv)
    return parser


def _add_keys(topics: Any) -> None:
    actions = topics.add_parser("key", help="access keys").add_subparsers(metavar="ACTION", required=True)
    create = _add_admin(actions, "create", "make an access key and print it")
    create.add_argument("--name", default="", help="what the key is for; shown by list")
    _add_account(create, "account that the key speaks for")
    create.add_argument("--access-key", default="", help="instead of a generated one")
    create.add_argument(
        "--secret-key-file", default="", metavar="FILE", help="read the secret from FILE, or - for standard input"
    )
    create.set_defaults(action="key-create")
    _add_admin(actions, "list", "list the access keys, without secrets").set_defaults(action="key-list")
    for name, text in (
        ("disable", "refuse what the key signs from now on"),
        ("enable", "accept it again"),
        ("delete", "remove the key for good"),
    ):
        command = _add_admin(actions, name, text)
        command.add_argument("access_key", metavar="ACCESS_KEY")
        command.set_defaults(action=f"key-{name}")


def _add_buckets(topics: Any) -> None:
    actions = topics.add_parser("bucket", help="buckets").add_subparsers(metavar="ACTION", required=True)
    create = _add_admin(actions, "create", "make a bucket")
    create.add_argument("bucket")
    create.add_argument("--durability", choices=("strict", "relaxed"), default="strict")
    _add_account(create, "account that owns it")
    create.set_defaults(action="bucket-create")
    _add_admin(actions, "list", "list the buckets").set_defaults(action="bucket-list")
    delete = _add_admin(actions, "delete", "remove an empty bucket")
    delete.add_argument("bucket")
    delete.set_defaults(action="bucket-delete")
    change = _add_admin(actions, "set-durability", "change what a 200 of this bucket promises")
    change.add_argument("bucket")
    change.add_argument("durability", choices=("strict", "relaxed"))
    change.set_defaults(action="bucket-set-durability")


def _add_account(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument(
        "--account", default="root", metavar="NAME", help=f"{text}; the default, root, may do everything"
    )


def _add_admin(actions: Any, name: str, text: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = actions.add_parser(name, help=text)
    _add_settings(command, ["data", "map_bytes", "reserve_bytes", "region"])
    command.set_defaults(run=_admin)
    return command


def _add_settings(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with settings (or S3VERBS_CONFIG)")
    for name in names:
        if name in config.NO_FLAG:
            continue
        item = config.FIELDS[name]
        text = f"{item.metadata['help']} ({item.metadata['allowed']}{_default(name)})".replace("%", "%%")
        options: dict[str, Any] = {"dest": f"setting_{name}", "default": None, "help": text}
        if item.metadata["many"]:
            parser.add_argument(config.flag_of(name), action="append", metavar=_metavar(name), **options)
        elif item.type is bool:
            parser.add_argument(config.flag_of(name), nargs="?", const="true", metavar="BOOL", **options)
        else:
            parser.add_argument(config.flag_of(name), metavar=_metavar(name), **options)


def _default(name: str) -> str:
    value = getattr(config.Settings(), name)
    if config.FIELDS[name].metadata["many"]:
        return "; repeat it for several" + (f"; default {value[0]}" if value else "")
    return f"; default {str(value).lower() if isinstance(value, bool) else value}" if value not in (None, "") else ""


def _metavar(name: str) -> str:
    return {"data": "DIR", "listen": "HOST:PORT", "metrics_listen": "HOST:PORT", "workers": "N"}.get(name, "VALUE")
