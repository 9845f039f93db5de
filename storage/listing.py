"""Pages of objects, uploads, parts and buckets, read in one snapshot.

An entry of a page is a key, or a common prefix: the part of a key up to and with the first delimiter after `prefix`.
Entries are in the order of their UTF-8 bytes, which is also the order of Python strings, and a page holds those that
are strictly greater than its marker. So a marker that is a common prefix, or that lies below one, passes all of it.

What lies below a common prefix is never read: the scan starts again past it. Long keys that share their first 450 bytes
(`storage.keys`) have no order in their table, so their group is read whole and sorted here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from s3verbs.storage import keys
from s3verbs.storage.metadata import ReadTransaction, Table
from s3verbs.storage.model import Bucket, Listing, Part, Upload, UploadListing, Version
from s3verbs.storage.records import decode_bucket, decode_listed, decode_part, decode_upload

_LOWEST_UPLOAD = bytes(keys.ID_BYTES)


@dataclass(frozen=True, slots=True)
class _Ordered:
    """A table whose encoded keys start with a bucket's id, and how its order is read."""

    table: Table
    name: Callable[[bytes, bytes], str]  # of a short encoded key and its record
    is_long: Callable[[bytes], bool]
    group: Callable[[bytes], keys.Range]
    group_order: Callable[[bytes], tuple[str, str]]  # of a record: object key, upload id
    past: Callable[[bytes, str], bytes | None]
    reaches_group: Callable[[str], bool]  # whether what starts with a prefix may be some of a group, and not all of it


def _upload_order(record: bytes) -> tuple[str, str]:
    upload = decode_upload(record)
    return upload.key, upload.id


_OBJECTS = _Ordered(
    Table.OBJECTS,
    lambda encoded, _record: encoded[keys.BUCKET_ID_BYTES :].decode(),
    keys.is_long_object,
    keys.object_group,
    lambda record: (decode_listed(record).key, ""),
    keys.objects_past,
    keys.is_long_object_key,
)
_UPLOADS = _Ordered(
    Table.UPLOADS,
    lambda _encoded, record: decode_upload(record).key,
    keys.is_long_upload,
    keys.upload_group,
    _upload_order,
    keys.uploads_past,
    keys.is_long_upload_key,
)


def list_objects(
    transaction: ReadTransaction, bucket_id: bytes, *, prefix: str, delimiter: str, start_after: str, limit: int
) -> Listing:
    """The first `limit` entries greater than `start_after`. Versions are as `records.decode_listed` gives them."""
    if limit <= 0:
        return Listing((), (), truncated=False)
    start, stop = keys.object_range(bucket_id, prefix)
    if start_after:
        start = max(start, keys.objects_after(bucket_id, start_after))
    versions: list[Version] = []
    prefixes: list[str] = []
    name = ""
    for name, record in _entries(transaction, _OBJECTS, bucket_id, start, stop, prefix, delimiter):
        if name <= start_after:
            continue
        if len(versions) + len(prefixes) == limit:
            last = max(versions[-1].key if versions else "", prefixes[-1] if prefixes else "")
            return Listing(tuple(versions), tuple(prefixes), truncated=True, next_marker=last)
        if record is None:
            prefixes.append(name)
        else:
            versions.append(decode_listed(record))
    return Listing(tuple(versions), tuple(prefixes), truncated=False)


def list_uploads(
    transaction: ReadTransaction,
    bucket_id: bytes,
    *,
    prefix: str,
    delimiter: str,
    key_marker: str,
    upload_id_marker: str,
    limit: int,
) -> UploadListing:
    """The first `limit` entries after the markers. The upload id marker counts only beside a key marker, and admits
    the later uploads of that very key."""
    if limit <= 0:
        return UploadListing((), (), truncated=False)
    start, stop = keys.upload_range(bucket_id, prefix)
    if key_marker:
        upload_id = None
        if upload_id_marker:
            upload_id = keys.upload_id_bytes(upload_id_marker) or _LOWEST_UPLOAD
        start = max(start, keys.uploads_after(bucket_id, key_marker, upload_id))
    uploads: list[Upload] = []
    prefixes: list[str] = []
    last = ("", "")
    for name, record in _entries(transaction, _UPLOADS, bucket_id, start, stop, prefix, delimiter):
        upload = None if record is None else decode_upload(record)
        if name <= key_marker and not (
            upload and name == key_marker and upload_id_marker and upload.id > upload_id_marker
        ):
            continue
        if len(uploads) + len(prefixes) == limit:
            return UploadListing(tuple(uploads), tuple(prefixes), True, *last)
        if upload is None:
            prefixes.append(name)
            last = (name, "")
        else:
            uploads.append(upload)
            last = (name, upload.id)
    return UploadListing(tuple(uploads), tuple(prefixes), truncated=False)


def list_parts(transaction: ReadTransaction, upload_id: bytes, *, after: int, limit: int) -> tuple[list[Part], bool]:
    """The first `limit` parts with a number above `after`, and whether there are more."""
    parts: list[Part] = []
    if limit <= 0:
        return parts, False
    for _, record in transaction.scan(Table.PARTS, *keys.part_range(upload_id, after)):
        if len(parts) == limit:
            return parts, True
        parts.append(decode_part(record))
    return parts, False


def list_buckets(
    transaction: ReadTransaction, *, prefix: str, start_after: str, limit: int, owner: str = ""
) -> tuple[list[Bucket], bool]:
    """The first `limit` buckets with a name above `start_after`, and whether there are more. With `owner`, the buckets
    of others are read and passed over."""
    buckets: list[Bucket] = []
    if limit <= 0:
        return buckets, False
    start = prefix.encode()
    if start_after:
        start = max(start, start_after.encode() + b"\0")
    for _, record in transaction.scan(Table.BUCKETS, start, keys.upper_bound(prefix.encode())):
        bucket = decode_bucket(record)
        if owner and bucket.owner != owner:
            continue
        if len(buckets) == limit:
            return buckets, True
        buckets.append(bucket)
    return buckets, False


def _entries(
    transaction: ReadTransaction,
    ordered: _Ordered,
    bucket_id: bytes,
    start: bytes,
    stop: bytes | None,
    prefix: str,
    delimiter: str,
) -> Iterator[tuple[str, bytes | None]]:
    """Keys with their records, and common prefixes with None, from `start` on. Those of a group may lie below it."""
    skip = len(prefix)
    common = ""
    position: bytes | None = start
    while position is not None and (stop is None or position < stop):
        again: bytes | None = None
        for key, record in _in_order(transaction, ordered, position, stop):
            if not key.startswith(prefix):
                continue  # of the same group as the prefix
            if not delimiter or (cut := key.find(delimiter, skip)) < 0:
                yield key, record
                continue
            if common and key.startswith(common):
                continue  # in the middle of a group
            common = key[: cut + len(delimiter)]
            yield common, None
            if ordered.reaches_group(common):
                continue  # the group is in memory, and holds more than this
            again = ordered.past(bucket_id, common)
            break
        position = again


def _in_order(
    transaction: ReadTransaction, ordered: _Ordered, start: bytes, stop: bytes | None
) -> Iterator[tuple[str, bytes]]:
    table, is_long, name = ordered.table, ordered.is_long, ordered.name
    position: bytes | None = start
    while position is not None:
        again: bytes | None = None
        for encoded, record in transaction.scan(table, position, stop):
            if not is_long(encoded):
                yield name(encoded, record), record
                continue
            low, high = ordered.group(encoded)
            group = [(*ordered.group_order(entry), entry) for _, entry in transaction.scan(table, low, high)]
            group.sort()
            for key, _, entry in group:
                yield key, entry
            again = high
            break
        position = again if stop is None or (again is not None and again < stop) else None
