"""Access keys in the store."""

import json
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.gateway.auth.access_keys import AccessKeys, Status, check_key_pair, new_key_pair, root_key
from s3verbs.gateway.auth.principal import ROOT_ACCOUNT
from s3verbs.storage.errors import StoreUnusable
from s3verbs.storage.memory import MemoryDisk, MemoryMetadataStore
from s3verbs.storage.metadata import Table


class Bytes:
    """Counting bytes in place of random ones."""

    def __init__(self) -> None:
        self._next: Iterator[int] = count()

    def __call__(self, length: int) -> bytes:
        return bytes(next(self._next) % 256 for _ in range(length))


@pytest.fixture
def store() -> MemoryMetadataStore:
    return MemoryMetadataStore(rehearse=True)


@pytest.fixture
def keys(store: MemoryMetadataStore) -> AccessKeys:
    return AccessKeys(store, clock=lambda: 42, random_bytes=Bytes())


def test_a_created_key_is_found_by_other_processes(store: MemoryMetadataStore, keys: AccessKeys) -> None:
    key = keys.create(description="for LMCache", principal_id="abc", name="cache")
    other = AccessKeys(MemoryMetadataStore(store.disk))
    assert other.get(key.access_key) == key
    assert (key.principal.id, key.principal.display_name, key.principal.access_key) == ("abc", "cache", key.access_key)
    assert (key.status, key.created_ns, key.description) == (Status.ACTIVE, 42, "for LMCache")
    assert (key.session_token, key.expires_ns) == ("", 0)


def test_generated_pairs_have_aws_s_lengths(keys: AccessKeys) -> None:
    first, second = keys.create(), keys.create()
    for key in (first, second):
        assert len(key.access_key) == 20
        assert key.access_key == key.access_key.upper()
        assert key.access_key.isalnum()
        assert len(key.secret) == 40
        assert key.secret.isalnum()
    assert first.access_key != second.access_key
    assert first.secret != second.secret


def test_a_key_speaks_for_the_root_account_unless_another_is_given(keys: AccessKeys) -> None:
    assert (keys.create().principal.id, keys.create().principal.display_name) == (ROOT_ACCOUNT, ROOT_ACCOUNT)
    first, second = (keys.create(principal_id="team-a").principal for _ in range(2))
    assert (first.id, second.id, first.display_name) == ("team-a", "team-a", "team-a")


@pytest.mark.parametrize("account", ["", "anonymous", "a/b", "two words", "clé", "x" * 65])
def test_accounts_that_cannot_be(keys: AccessKeys, account: str) -> None:
    with pytest.raises(ValueError, match="account"):
        keys.create(principal_id=account)
    assert keys.list() == []


def test_pairs_come_from_the_system_s_randomness_by_default() -> None:
    assert len({new_key_pair() for _ in range(50)}) == 50


def test_every_character_of_a_secret_is_equally_likely() -> None:
    drawn = "".join(
        new_key_pair(lambda length: bytes(range(256))[:length] if length > 256 else bytes(range(256)))[1]
        for _ in range(1)
    )
    assert drawn == "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmn"
    high = iter([bytes([250] * 40), bytes(range(40))])
    assert new_key_pair(lambda length: bytes(20) if length == 20 else next(high))[1] == drawn


def test_disable_enable_delete(store: MemoryMetadataStore, keys: AccessKeys) -> None:
    key = keys.create(session_token="token", expires_ns=7)
    assert keys.disable(key.access_key).status is Status.INACTIVE
    reopened = AccessKeys(MemoryMetadataStore(store.disk))
    found = reopened.get(key.access_key)
    assert found is not None
    assert (found.status, found.secret, found.session_token, found.expires_ns) == (
        Status.INACTIVE,
        key.secret,
        "token",
        7,
    )
    assert reopened.enable(key.access_key) == key
    assert keys.get(key.access_key) == key
    keys.delete(key.access_key)
    assert reopened.get(key.access_key) is None


@pytest.mark.parametrize("access_key", ["NOSUCHKEY", "", "é", "x" * 200])
def test_a_key_that_is_not_there(keys: AccessKeys, access_key: str) -> None:
    assert keys.get(access_key) is None
    for change in (keys.disable, keys.enable, keys.delete):
        with pytest.raises(KeyError):
            change(access_key)


def test_keys_are_listed_in_order_with_the_root_key_first(store: MemoryMetadataStore) -> None:
    root = root_key("zzz-root", "secret-of-root")
    keys = AccessKeys(store, root=root)
    for name in ("BBB", "AAA"):
        keys.create(access_key=name)
    assert [key.access_key for key in keys.list()] == ["zzz-root", "AAA", "BBB"]


def test_the_root_key_of_the_settings_is_never_stored_or_changed(store: MemoryMetadataStore) -> None:
    root = root_key("root-key", "secret-of-root")
    keys = AccessKeys(store, root=root)
    assert keys.get("root-key") is root
    assert AccessKeys(store).get("root-key") is None
    for change in (keys.disable, keys.enable, keys.delete):
        with pytest.raises(ValueError, match="root key of the settings"):
            change("root-key")
    with pytest.raises(ValueError, match="root key of the settings"):
        keys.create(access_key="root-key")


def test_a_key_is_not_created_twice(keys: AccessKeys) -> None:
    keys.create(access_key="twice", secret="the first secret".replace(" ", "-"))
    with pytest.raises(ValueError, match="exists already"):
        keys.create(access_key="twice")
    found = keys.get("twice")
    assert found is not None
    assert found.secret == "the-first-secret"


@pytest.mark.parametrize(
    ("access_key", "secret", "part"),
    [
        ("ab", "long-enough", "access key 'ab'"),
        ("a" * 129, "long-enough", "3 to 128"),
        ("with space", "long-enough", "access key"),
        ("a/b/c", "long-enough", "access key"),
        ("clé", "long-enough", "access key"),
        ("good", "short", "secret key"),
        ("good", "with a space in it", "secret key"),
        ("good", "non-ascii-é-secret", "secret key"),
        ("good", "x" * 129, "secret key"),
    ],
)
def test_pairs_that_cannot_be_used(keys: AccessKeys, access_key: str, secret: str, part: str) -> None:
    with pytest.raises(ValueError, match=part) as error:
        keys.create(access_key=access_key, secret=secret)
    assert secret not in str(error.value)
    with pytest.raises(ValueError, match=part):
        root_key(access_key, secret)


def test_secrets_do_not_show_in_representations(keys: AccessKeys) -> None:
    key = keys.create(session_token="hidden-token")
    assert key.secret not in repr(key)
    assert "hidden-token" not in repr(key)


def test_the_record_is_as_documented(store: MemoryMetadataStore, keys: AccessKeys) -> None:
    keys.create(access_key="AKID", secret="12345678", principal_id="id", name="näme")
    with store.read() as transaction:
        record = transaction.get(Table.ACCESS_KEYS, b"AKID")
    assert record is not None
    assert record[:1] == b"\x01"
    assert json.loads(record[1:].decode("utf-8")) == {
        "secret": "12345678",
        "id": "id",
        "name": "näme",
        "status": "Active",
        "created_ns": 42,
        "description": "",
    }


def test_a_record_of_a_newer_release_is_refused(store: MemoryMetadataStore, keys: AccessKeys) -> None:
    store.write_now(lambda transaction: transaction.put(Table.ACCESS_KEYS, b"AKID", b"\x02{}"))
    with pytest.raises(StoreUnusable, match="newer release"):
        keys.get("AKID")


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
printable = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=128)
identifiers = st.text("ABCabc019-_.", min_size=3, max_size=128)


@settings(max_examples=100, deadline=None)
@given(identifiers, printable, names, names, st.integers(0, 2**62))
def test_any_usable_key_comes_back(access_key: str, secret: str, name: str, description: str, expires_ns: int) -> None:
    check_key_pair(access_key, secret)
    disk = MemoryDisk()
    key = AccessKeys(MemoryMetadataStore(disk)).create(
        access_key=access_key, secret=secret, name=name, description=description, expires_ns=expires_ns
    )
    assert AccessKeys(MemoryMetadataStore(disk)).get(access_key) == key
    assert key.secret == secret
