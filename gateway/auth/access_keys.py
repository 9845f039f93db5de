"""Access keys: the table of who may sign, in the metadata store.

A record is the version byte 0x01 and a JSON object in UTF-8 with the members `secret`, `id` and `name` (of the
principal), `status` ("Active" | "Inactive"), `created_ns`, `description`, and `session_token` and `expires_ns` for
temporary keys. The record's key is the access key in ASCII. Secrets are stored as they are, because a signature
can only be verified with them: the store's files are readable by their owner alone.
"""

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from s3verbs.gateway.auth.principal import ANONYMOUS, ROOT_ACCOUNT, Principal
from s3verbs.storage.errors import StoreUnusable
from s3verbs.storage.metadata import MetadataStore, Table, WriteTransaction

ACCESS_KEY_LENGTH = 20
SECRET_LENGTH = 40

_VERSION = b"\x01"
_ACCESS_KEY_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_SECRET_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"  # noqa: S105  letters to draw from
_ACCESS_KEY_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")


class Status(StrEnum):
    """IAM's words for whether a key may be used."""

    ACTIVE = "Active"
    INACTIVE = "Inactive"


@dataclass(frozen=True, slots=True)
class AccessKey:
    """A key pair and who it speaks for. `session_token` and `expires_ns` are "" and 0 for a permanent key."""

    access_key: str
    secret: str = field(repr=False)
    principal: Principal
    status: Status = Status.ACTIVE
    created_ns: int = 0
    description: str = ""
    session_token: str = field(default="", repr=False)
    expires_ns: int = 0


def root_key(access_key: str, secret: str, *, principal_id: str = ROOT_ACCOUNT, name: str = ROOT_ACCOUNT) -> AccessKey:
    """The root key of the settings; it is never stored. Raises ValueError when it cannot be used to sign."""
    check_key_pair(access_key, secret)
    return AccessKey(access_key, secret, Principal(principal_id, name, access_key), description="root key")


def check_key_pair(access_key: str, secret: str) -> None:
    """Raises ValueError, with a message that says what is allowed."""
    if not 3 <= len(access_key) <= 128 or not _ACCESS_KEY_CHARACTERS.issuperset(access_key):
        raise ValueError(f"access key {access_key!r}: 3 to 128 letters, digits, '-', '_' and '.' are allowed")
    if not 8 <= len(secret) <= 128 or not secret.isascii() or not secret.isprintable() or " " in secret:
        raise ValueError("secret key: 8 to 128 printable ASCII characters without spaces are allowed")


def check_account(name: str) -> None:
    """Raises ValueError, with a message that says what is allowed."""
    if not 1 <= len(name) <= 64 or not _ACCESS_KEY_CHARACTERS.issuperset(name) or name == ANONYMOUS.id:
        raise ValueError(
            f"account {name!r}: 1 to 64 letters, digits, '-', '_' and '.' are allowed, but not {ANONYMOUS.id!r}"
        )


def new_key_pair(random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> tuple[str, str]:
    """An access key of 20 upper-case characters and a secret of 40 letters and digits (238 bits)."""
    return (
        _draw(_ACCESS_KEY_ALPHABET, ACCESS_KEY_LENGTH, random_bytes),
        _draw(_SECRET_ALPHABET, SECRET_LENGTH, random_bytes),
    )


class AccessKeys:
    """The access keys of a store, and the root key where the settings give one.

    `get` is called for every request: one read of the store, so a key that another process disables stops working
    at once. The changing methods block until the change is durable; they are for commands and start-up. They refuse
    the root key of the settings with ValueError, and raise KeyError when there is no such key.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        root: AccessKey | None = None,
        clock: Callable[[], int] = time.time_ns,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._metadata = metadata
        self._root = root
        self._clock = clock
        self._random_bytes = random_bytes

    def get(self, access_key: str) -> AccessKey | None:
        """The key of that id, in any status, or None."""
        root = self._root
        if root is not None and access_key == root.access_key:
            return root
        # Ids from the wire can be anything; the store's keys are short.
        if not access_key.isascii() or not 0 < len(access_key) <= 128:
            return None
        with self._metadata.read() as transaction:
            record = transaction.get(Table.ACCESS_KEYS, access_key.encode("ascii"))
        return None if record is None else _decode(access_key, bytes(record))

    def list(self) -> list[AccessKey]:
        """All keys in the order of their ids; the root key of the settings first."""
        keys = [] if self._root is None else [self._root]
        with self._metadata.read() as transaction:
            for key, record in transaction.scan(Table.ACCESS_KEYS):
                keys.append(_decode(bytes(key).decode("ascii"), bytes(record)))
        return keys

    def create(
        self,
        *,
        access_key: str = "",
        secret: str = "",
        principal_id: str = ROOT_ACCOUNT,
        name: str = "",
        description: str = "",
        session_token: str = "",
        expires_ns: int = 0,
    ) -> AccessKey:
        """Store a key; a key pair that is not given is generated. `principal_id` is the account that the key speaks
        for, `name` the display name, by default the account.

        Raises ValueError when the key exists or cannot be used.
        """
        drawn_access_key, drawn_secret = new_key_pair(self._random_bytes)
        access_key = access_key or drawn_access_key
        secret = secret or drawn_secret
        check_key_pair(access_key, secret)
        if self._root is not None and access_key == self._root.access_key:
            raise ValueError(f"access key {access_key!r} is the root key of the settings")
        check_account(principal_id)
        key = AccessKey(
            access_key,
            secret,
            Principal(principal_id, name or principal_id, access_key),
            Status.ACTIVE,
            self._clock(),
            description,
            session_token,
            expires_ns,
        )
        record = _encode(key)

        def change(transaction: WriteTransaction) -> bool:
            if transaction.get(Table.ACCESS_KEYS, access_key.encode("ascii")) is not None:
                return False
            transaction.put(Table.ACCESS_KEYS, access_key.encode("ascii"), record)
            return True

        if not self._metadata.write_now(change):
            raise ValueError(f"access key {access_key!r} exists already")
        return key

    def disable(self, access_key: str) -> AccessKey:
        """Make a key inactive: requests it signs are answered InvalidAccessKeyId."""
        return self._set_status(access_key, Status.INACTIVE)

    def enable(self, access_key: str) -> AccessKey:
        """Make a key active again."""
        return self._set_status(access_key, Status.ACTIVE)

    def delete(self, access_key: str) -> None:
        """Remove a key for good."""
        raw = self._stored(access_key)
        if not self._metadata.write_now(lambda transaction: transaction.delete(Table.ACCESS_KEYS, raw)):
            raise KeyError(access_key)

    def _set_status(self, access_key: str, status: Status) -> AccessKey:
        raw = self._stored(access_key)

        def change(transaction: WriteTransaction) -> AccessKey | None:
            record = transaction.get(Table.ACCESS_KEYS, raw)
            if record is None:
                return None
            old = _decode(access_key, bytes(record))
            key = AccessKey(
                old.access_key,
                old.secret,
                old.principal,
                status,
                old.created_ns,
                old.description,
                old.session_token,
                old.expires_ns,
            )
            transaction.put(Table.ACCESS_KEYS, raw, _encode(key))
            return key

        key = self._metadata.write_now(change)
        if key is None:
            raise KeyError(access_key)
        return key

    def _stored(self, access_key: str) -> bytes:
        if self._root is not None and access_key == self._root.access_key:
            raise ValueError(f"access key {access_key!r} is the root key of the settings: change it there")
        if not access_key.isascii() or not 0 < len(access_key) <= 128:
            raise KeyError(access_key)
        return access_key.encode("ascii")


def _encode(key: AccessKey) -> bytes:
    members: dict[str, str | int] = {
        "secret": key.secret,
        "id": key.principal.id,
        "name": key.principal.display_name,
        "status": key.status.value,
        "created_ns": key.created_ns,
        "description": key.description,
    }
    if key.session_token:
        members["session_token"] = key.session_token
    if key.expires_ns:
        members["expires_ns"] = key.expires_ns
    return _VERSION + json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


@lru_cache(maxsize=4096)
def _decode(access_key: str, record: bytes) -> AccessKey:
    """Cached by the record's bytes, so a changed record is always decoded anew. Raises StoreUnusable."""
    if record[:1] != _VERSION:
        raise StoreUnusable(
            f"access key {access_key!r} has a record of an unknown version: it was written by a newer release"
        )
    members = json.loads(record[1:])
    return AccessKey(
        access_key,
        members["secret"],
        Principal(members["id"], members["name"], access_key),
        Status(members["status"]),
        members["created_ns"],
        members["description"],
        members.get("session_token", ""),
        members.get("expires_ns", 0),
    )


def _draw(alphabet: str, length: int, random_bytes: Callable[[int], bytes]) -> str:
    """`length` characters, each equally likely: bytes beyond the last whole multiple of the alphabet are skipped."""
    limit = 256 - 256 % len(alphabet)
    drawn: list[str] = []
    while len(drawn) < length:
        drawn += [alphabet[byte % len(alphabet)] for byte in random_bytes(length) if byte < limit]
    return "".join(drawn[:length])
