"""`s3verbs admin`: access keys, buckets and the consistency check, on the store itself.

The store may be in use by a running server: LMDB is shared between processes, and a change is seen by the server's
next request.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from s3verbs.gateway.access_log import timestamp
from s3verbs.gateway.auth.access_keys import AccessKey, AccessKeys, check_account
from s3verbs.gateway.config import Settings
from s3verbs.gateway.http.target import valid_bucket_name
from s3verbs.gateway.listening import StartError
from s3verbs.storage.check import ORPHAN, check_store
from s3verbs.storage.errors import BucketExists, BucketNotEmpty, BucketNotFound, StorageError
from s3verbs.storage.model import Durability
from s3verbs.storage.opening import Store, holds_store, open_store


class AdminError(Exception):
    """The command cannot be done; the text says why."""


def run(settings: Settings, options: argparse.Namespace) -> int:
    """Run one command: 0 done, 1 refused or damage found. Raises StartError when the store cannot be opened."""
    command = _COMMANDS[options.action]
    check = options.action == "check"
    try:
        new = not holds_store(settings.data)
        if new and options.action not in _MAY_MAKE_A_STORE:
            shown = ", ".join(map(str, settings.data))
            raise StartError(f"data: {shown}: there is no store; give the data directories that the server has")
        store = open_store(
            settings.data,
            map_bytes=settings.map_bytes,
            reserve_bytes=settings.reserve_bytes,
            # Repair takes away what nothing refers to, which a running server may just be about to refer to.
            exclusive=check and options.repair,
            read_only=check and not options.repair,
        )
    except StorageError as error:
        raise StartError(str(error)) from error
    if new:
        sys.stderr.write(f"s3verbs: made a new store in {store.home}\n")
    try:
        return command(store, settings, options)
    except AdminError as error:
        sys.stderr.write(f"s3verbs: {error}\n")
        return 1
    except StorageError as error:
        sys.stderr.write(f"s3verbs: {error or type(error).__name__}\n")
        return 1
    finally:
        store.close()


def _key_create(store: Store, settings: Settings, options: argparse.Namespace) -> int:
    secret = _secret(options.secret_key_file) if options.secret_key_file else ""
    try:
        key = AccessKeys(store.metadata).create(
            access_key=options.access_key, secret=secret, principal_id=options.account, description=options.name
        )
    except ValueError as error:
        raise AdminError(str(error)) from None
    shown = "(the given one)" if secret else f"{key.secret}    (it is not shown again)"
    sys.stdout.write(f"access key  {key.access_key}\nsecret key  {shown}\naccount     {key.principal.id}\n")
    return 0


def _secret(file: str) -> str:
    try:
        secret = (sys.stdin.read() if file == "-" else Path(file).read_text()).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AdminError(f"secret key file {file}: {error}") from None
    if not secret:
        raise AdminError(f"secret key file {file}: it is empty")
    return secret


def _key_list(store: Store, settings: Settings, options: argparse.Namespace) -> int:
    for key in AccessKeys(store.metadata).list():
        created = timestamp(key.created_ns / 1e9)
        sys.stdout.write(f"{key.access_key}\t{key.status.value}\t{created}\t{key.principal.id}\t{key.description}\n")
    return 0


def _key_change(change: Callable[[AccessKeys, str], AccessKey | None], done: str) -> "_Command":
    def command(store: Store, settings: Settings, options: argparse.Namespace) -> int:
        try:
            change(AccessKeys(store.metadata), options.access_key)
        except KeyError:
            raise AdminError(f"access key {options.access_key!r}: there is none of that id") from None
        sys.stdout.write(f"{options.access_key}\t{done}\n")
        return 0

    return command


def _bucket_create(store: Store, settings: Settings, options: argparse.Namespace) -> int:
    if not valid_bucket_name(options.bucket):
        raise AdminError(
            f"bucket {options.bucket!r}: 3 to 63 lower-case letters, digits, dots and hyphens are allowed, "
            "beginning and ending with a letter or digit"
        )
    durability = Durability(options.durability)
    try:
        check_account(options.account)
    except ValueError as error:
        raise AdminError(str(error)) from None
    try:
        _run(
            store,
            store.objects.create_bucket(
                options.bucket, owner=options.account, durability=durability, region=settings.region
            ),
        )
    except BucketExists:
        raise AdminError(f"bucket {options.bucket!r}: exists already") from None
    sys.stdout.write(f"{options.bucket}\t{durability.value}\n")
    return 0


def _bucket_list(store: Store, settings: Settings, options: argparse.Namespace) -> int:
    last, more = "", True
    while more:
        page, more = store.objects.buckets(start_after=last)
        for bucket in page:
            created = timestamp(bucket.created_ns / 1e9)
            sys.stdout.write(f"{bucket.name}\t{bucket.durability.value}\t{created}\t{bucket.owner}\n")
        last = page[-1].name if page else ""
    return 0


def _bucket_delete(store: Store, settings: Settings, options: argparse.Namespace) -> int:
    try:
        _run(store, store.objects.delete_bucket(options.bucket))
    except BucketNotFound:
        raise AdminError(f"bucket {options.bucket!r}: there is none of that name") from None
    except BucketNotEmpty:
        raise AdminError(f"bucket {options.bucket!r}: still holds objects; delete them first") from None
    sys.stdout.write(f"{options.bucket}\tdeleted\n")
    return 0


def _bucket_set_durability(store: Store, settings: Settings, options: argparse.Namespace) -> int:
    durability = Durability(options.durability)
    try:
        _run(store, store.objects.update_bucket(options.bucket, durability=durability))
    except BucketNotFound:
        raise AdminError(f"bucket {options.bucket!r}: there is none of that name") from None
    sys.stdout.write(f"{options.bucket}\t{durability.value}\n")
    return 0


def _check(store: Store, settings: Settings, options: argparse.Namespace) -> int:
    """1 when something is damaged, also when it was set aside. Orphan files are told but are no damage: a crash leaves
    them, and the server's sweep takes them away."""
    report = check_store(store, read_payloads=options.read_payloads, repair=options.repair)
    for finding in report.findings:
        done = "done: " if report.repaired else ""
        sys.stdout.write(f"{finding.kind}\t{finding.where}\t{done}{finding.remedy}\n")
    if report.records is not None:
        sys.stdout.write(f"removed records\t{report.records}\n")
    counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(report.counts.items()))
    sys.stdout.write(f"checked: {counts or 'an empty store'}\n")
    damaged = sum(finding.kind != ORPHAN for finding in report.findings)
    orphans = len(report.findings) - damaged
    sys.stdout.write(f"{damaged} damaged, {orphans} orphan files\n" if report.findings else "clean\n")
    if report.repaired and report.findings:
        sys.stdout.write(f"repaired; what was taken away is in {store.quarantine}\n")
    elif damaged:
        sys.stdout.write(
            "a server that writes meanwhile can cause findings: stop it and check again, with --repair to quarantine\n"
        )
    return 1 if damaged else 0


def _run(store: Store, change: Coroutine[Any, Any, object]) -> None:
    """Run a change to its end, reclaim included."""

    async def until_done() -> None:
        try:
            await change
        finally:
            await store.objects.close()

    asyncio.run(until_done())


_Command = Callable[[Store, Settings, argparse.Namespace], int]

_MAY_MAKE_A_STORE = frozenset({"key-create", "bucket-create"})
"""What is of use before the first start."""

_COMMANDS: Mapping[str, _Command] = {
    "key-create": _key_create,
    "key-list": _key_list,
    "key-disable": _key_change(AccessKeys.disable, "Inactive"),
    "key-enable": _key_change(AccessKeys.enable, "Active"),
    "key-delete": _key_change(lambda keys, access_key: keys.delete(access_key), "deleted"),
    "check": _check,
    "bucket-create": _bucket_create,
    "bucket-list": _bucket_list,
    "bucket-delete": _bucket_delete,
    "bucket-set-durability": _bucket_set_durability,
}
