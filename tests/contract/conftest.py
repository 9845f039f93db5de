"""The implementations that the contract tests run over."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from s3verbs.storage.lmdb_store import LmdbMetadataStore
from s3verbs.storage.metadata import MetadataStore


def lmdb_metadata(directory: Path) -> MetadataStore:
    return LmdbMetadataStore(directory, map_bytes=1 << 20, reserve_bytes=0)


METADATA_STORES: list[Callable[[Path], MetadataStore]] = [lmdb_metadata]
"""Each makes an empty store, in the directory if it keeps files."""


@pytest.fixture(params=METADATA_STORES, ids=lambda make: make.__name__)
def metadata(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MetadataStore]:
    store = request.param(tmp_path / "metadata")
    yield store
    store.close()
