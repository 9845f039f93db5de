"""The marker that tells a payload directory from any other, and the numbering of directories.

`s3verbs-payloads.json` in each payload directory:

    {"format": "s3verbs-payloads", "version": 1, "store": "<uuid>", "number": 0, "directories": 2}

`number` is what payload records say, so the order on the command line does not matter. `directories` is the number of
directories of the store when the marker was last written: the highest one found says how many there must be.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from s3verbs.storage.block_io import write_error
from s3verbs.storage.directory_sync import sync_directory
from s3verbs.storage.errors import StoreUnusable

MARKER_NAME = "s3verbs-payloads.json"
MAX_DIRECTORIES = 256

_FORMAT = "s3verbs-payloads"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Marker:
    """The content of a marker file."""

    store: UUID
    number: int
    directories: int


def read_marker(path: Path) -> Marker | None:
    """The marker of the directory `path`; None when it has none or does not exist. Raises StoreUnusable."""
    try:
        text = (path / MARKER_NAME).read_text()
    except (FileNotFoundError, NotADirectoryError):
        if path.exists() and not path.is_dir():
            raise StoreUnusable(f"{path} is not a directory; give a directory to --data") from None
        return None
    except OSError as error:
        raise StoreUnusable(f"{path / MARKER_NAME} cannot be read: {error.strerror}; check its permissions") from error
    except UnicodeDecodeError:
        text = ""
    try:
        return _parse(path, json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise StoreUnusable(f"{path / MARKER_NAME} is damaged; write it again from a backup") from error


def _parse(path: Path, document: dict[str, object]) -> Marker:
    if document["format"] != _FORMAT:
        raise ValueError("not a marker")
    version = document["version"]
    if not isinstance(version, int) or version < 1:
        raise ValueError("not a version")
    if version > _VERSION:
        raise StoreUnusable(
            f"{path} was written in format version {version}, this program knows up to {_VERSION}; install a later one"
        )
    number, directories = document["number"], document["directories"]
    if not isinstance(number, int) or not isinstance(directories, int) or not 0 <= number < directories:
        raise ValueError("numbers do not agree")
    return Marker(UUID(str(document["store"])), number, directories)


def write_marker(path: Path, marker: Marker, *, replace: bool) -> None:
    """Write and make durable. Without `replace`, raises FileExistsError when there is a marker already.
    Raises StorageFull, StoreUnusable."""
    text = json.dumps(
        {
            "format": _FORMAT,
            "version": _VERSION,
            "store": str(marker.store),
            "number": marker.number,
            "directories": marker.directories,
        }
    )
    draft = path / f"{MARKER_NAME}.{os.getpid()}"
    try:
        with draft.open("w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        if replace:
            draft.replace(path / MARKER_NAME)
        else:
            os.link(draft, path / MARKER_NAME)
        sync_directory(path)
    except FileExistsError:
        raise
    except OSError as error:
        raise write_error(error, str(path / MARKER_NAME)) from error
    finally:
        draft.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Numbering:
    """The numbers of a store's directories. `added` are those of `paths` that have no marker yet, `outdated` those
    whose marker knows fewer directories than there are."""

    paths: dict[int, Path]
    added: tuple[int, ...]
    outdated: tuple[int, ...]


def number_directories(paths: Sequence[Path], markers: Sequence[Marker | None], store: UUID) -> Numbering:
    """Give every directory its number. Raises StoreUnusable when one is another store's, doubled or missing."""
    if not paths:
        raise StoreUnusable("no payload directory; give at least one --data")
    if len(paths) > MAX_DIRECTORIES:
        raise StoreUnusable(f"{len(paths)} payload directories; at most {MAX_DIRECTORIES} can be used")
    for path in paths:
        if paths.count(path) > 1:
            raise StoreUnusable(f"{path} is given twice; give each payload directory once")
    numbered: dict[int, Path] = {}
    known = 0
    for path, marker in zip(paths, markers, strict=True):
        if marker is None:
            continue
        if marker.store != store:
            raise StoreUnusable(
                f"{path} belongs to store {marker.store}, not to {store}; give each store the --data directories it "
                "was made with"
            )
        if marker.number in numbered:
            raise StoreUnusable(
                f"{path} and {numbered[marker.number]} are both payload directory {marker.number}; one is a copy of "
                "the other or the same: give only the one in use"
            )
        numbered[marker.number] = path
        known = max(known, marker.directories)
    blank = [path for path, marker in zip(paths, markers, strict=True) if marker is None]
    missing = [number for number in range(known) if number not in numbered]
    if missing:
        names = ", ".join(str(number) for number in missing)
        hint = (
            f"{', '.join(str(path) for path in blank)} has no {MARKER_NAME}: is its drive mounted?"
            if blank
            else "add the missing --data"
        )
        raise StoreUnusable(f"of the store's {known} payload directories, number {names} is missing; {hint}")
    added = tuple(range(known, known + len(blank)))
    outdated = tuple(
        marker.number for marker in markers if marker is not None and marker.directories < len(numbered) + len(blank)
    )
    numbered.update(zip(added, blank, strict=True))
    return Numbering(numbered, added, outdated)
