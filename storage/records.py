"""Values of the metadata tables. Every record starts with a byte that names its format; this module writes format 1.

A Version record, little-endian:

    offset  size
    0       1     format, 1
    1       1     flags: 1 multipart, 2 plain, 4 the attributes name a storage class
    2       1     checksum: 0 none, else 1 + 2 * algorithm + kind
    3       1     bytes of the ETag
    4       1     bytes of the version id, 0 for "null"
    5       1     bytes of the checksum's value
    6       2     bytes of the key
    8       4     bytes of the attributes
    12      8     epoch
    20      8     modified, ns
    28      8     size
    36            ETag, version id, checksum value (ASCII), key (UTF-8), attributes (JSON: headers, metadata, tags),
                  then what `plain` says:
      plain       one payload (35 bytes): the object is its one part number 1, with the same ETag, time, checksum and
                  epoch
      else        parts: count 4, count fixed entries of 66 bytes, then their texts in one run (ASCII)

What a listing shows comes before the parts, so `decode_listed` stops there.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct, error
from types import MappingProxyType

from s3verbs.storage.errors import StoreUnusable
from s3verbs.storage.metadata import Table
from s3verbs.storage.model import (
    NULL_VERSION,
    Attributes,
    Bucket,
    Checksum,
    Durability,
    FilePayload,
    InlinePayload,
    Part,
    Payload,
    Upload,
    Version,
)

FORMAT = 1

_MULTIPART, _PLAIN, _STORAGE_CLASS = 1, 2, 4
_FILE, _ETAG_TEXT = 1, 2

_VERSION = Struct("<BBBBBBHIQQQ")
_PAYLOAD = Struct("<B16sHQQ")  # file or inline, id, directory, length, crc64nvme
_PART = Struct("<HBBBBI16sHQQQ16s")  # number, flags, checksum, bytes of ETag and checksum, epoch, payload, time, MD5
_COUNT = Struct("<I")
_BUCKET = Struct("<BB8sQ")  # format, durability, id, created
_UPLOAD = Struct("<BQ")  # format, initiated
_FILE_PAYLOAD = Struct("<16sHQQ")

_DURABILITIES = (Durability.STRICT, Durability.RELAXED)
_CHECKSUM_NAMES = tuple(
    (algorithm, kind)
    for algorithm in ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256")
    for kind in ("FULL_OBJECT", "COMPOSITE")
)
_CHECKSUM_CODES = {names: code for code, names in enumerate(_CHECKSUM_NAMES, 1)}
_TABLES = tuple(Table)
_NO_ATTRIBUTES = Attributes()
_NO_MD5 = bytes(16)
_HEX = frozenset("0123456789abcdef")
_MALFORMED = (error, IndexError, ValueError, TypeError)  # what decoding a damaged record can come to


@dataclass(frozen=True, slots=True)
class PayloadOwner:
    """The record that refers to a payload file: the entry `key` of OBJECTS, PARTS or any other table."""

    table: Table
    key: bytes


# -- versions --


def encode_version(version: Version) -> bytes:
    """The record of a version. Bytes of an inline payload are not in it. Raises ValueError for what has no encoding:
    an unknown checksum algorithm, a key, ETag or version id that is too long."""
    etag, checksum, parts, attributes = version.etag, version.checksum, version.parts, version.attributes
    version_id = "" if version.version_id == NULL_VERSION else version.version_id
    flags = _MULTIPART if version.multipart else 0
    code, checksum_value = _checksum_code(checksum)
    if attributes.headers or attributes.metadata or attributes.tags:
        tail = _json([dict(attributes.headers), dict(attributes.metadata), dict(attributes.tags)])
        if "x-amz-storage-class" in attributes.headers:
            flags |= _STORAGE_CLASS
    else:
        tail = b""
    if len(parts) == 1 and _same_as_part(version, parts[0]):
        flags |= _PLAIN
        body = _encode_payload(parts[0].payload)
    else:
        body = _encode_parts(parts)
    key = version.key.encode()
    ascii_texts = (etag + version_id + checksum_value).encode("ascii")
    try:
        header = _VERSION.pack(
            FORMAT, flags, code, len(etag), len(version_id), len(checksum_value), len(key), len(tail),
            version.epoch, version.modified_ns, version.size,
        )  # fmt: skip
    except error as failure:
        raise ValueError(f"a version that has no record: {failure}") from failure
    return b"".join((header, ascii_texts, key, tail, body))


def decode_version(record: bytes) -> Version:
    """The version of a record, whole but for the bytes of inline payloads.

    Attributes of equal bytes are one shared, immutable object. Raises StoreUnusable.
    """
    return _decode_version(record, whole=True)


def decode_listed(record: bytes) -> Version:
    """What a listing shows of a version: `parts` is empty, and `attributes` too unless they name a storage class.

    For listings only: such a version can be neither opened nor written back. Raises StoreUnusable.
    """
    return _decode_version(record, whole=False)


def _decode_version(record: bytes, *, whole: bool) -> Version:
    try:
        (fmt, flags, code, etag_size, version_size, checksum_size, key_size, tail_size, epoch, modified_ns, size) = (
            _VERSION.unpack_from(record)
        )
        if fmt != FORMAT:
            raise _unknown("version", record)
        version_start = _VERSION.size + etag_size
        checksum_start = version_start + version_size
        key_start = checksum_start + checksum_size
        tail_start = key_start + key_size
        body_start = tail_start + tail_size
        etag = record[_VERSION.size : version_start].decode("ascii")
        checksum = _checksum(code, record[checksum_start:key_start].decode("ascii")) if code else None
        parts: tuple[Part, ...] = ()
        if whole:
            if flags & _PLAIN:
                parts = (Part(1, _decode_payload(record, body_start), etag, modified_ns, checksum, epoch),)
            else:
                parts = _decode_parts(record, body_start)
        attributes = _NO_ATTRIBUTES
        if tail_size and (whole or flags & _STORAGE_CLASS):
            attributes = _decode_attributes(record[tail_start:body_start])
        return Version(
            record[key_start:tail_start].decode(),
            modified_ns,
            size,
            etag,
            parts,
            flags & _MULTIPART != 0,
            record[version_start:checksum_start].decode("ascii") if version_size else NULL_VERSION,
            attributes,
            checksum,
            epoch,
        )
    except _MALFORMED as failure:
        raise _damaged("version", record) from failure


# -- parts --


def encode_part(part: Part) -> bytes:
    """The record of a part: the format byte, then parts as in a version, one of them. Raises ValueError."""
    return bytes((FORMAT,)) + _encode_parts((part,))


def decode_part(record: bytes) -> Part:
    """Raises StoreUnusable."""
    _expect("part", record)
    try:
        return _decode_parts(record, 1)[0]
    except _MALFORMED as failure:
        raise _damaged("part", record) from failure


def decode_part_run(records: Sequence[bytes]) -> list[Part]:
    """The parts of many part records, at a fraction of the cost of one by one. Raises StoreUnusable."""
    start, end = 1 + _COUNT.size, 1 + _COUNT.size + _PART.size
    head = bytes((FORMAT,)) + _COUNT.pack(1)
    # The bytes behind flags and checksum are the sizes of the texts.
    if not all(len(r) >= end and r[:start] == head and len(r) == end + r[start + 4] + r[start + 5] for r in records):
        return [decode_part(record) for record in records]  # says which is damaged
    run = [_COUNT.pack(len(records)), *[record[start:end] for record in records], *[record[end:] for record in records]]
    return list(_decode_parts(b"".join(run), 0))


# -- buckets and uploads --


def encode_bucket(bucket: Bucket) -> bytes:
    """The format byte, durability, id 8, created 8, then JSON: name, owner, region, tags."""
    header = _BUCKET.pack(FORMAT, _DURABILITIES.index(bucket.durability), bucket.id, bucket.created_ns)
    return header + _json([bucket.name, bucket.owner, bucket.region, dict(bucket.tags)])


@lru_cache(maxsize=1024)
def decode_bucket(record: bytes) -> Bucket:
    """Equal records give the same object, remembered. Raises StoreUnusable."""
    _expect("bucket", record)
    try:
        _, durability, bucket_id, created_ns = _BUCKET.unpack_from(record)
        name, owner, region, tags = json.loads(record[_BUCKET.size :])
        return Bucket(name, bucket_id, created_ns, owner, _DURABILITIES[durability], region, MappingProxyType(tags))
    except _MALFORMED as failure:
        raise _damaged("bucket", record) from failure


def encode_upload(upload: Upload) -> bytes:
    """The format byte, initiated 8, then JSON: key, id, initiator, checksum algorithm and kind, attributes."""
    attributes = upload.attributes
    return _UPLOAD.pack(FORMAT, upload.initiated_ns) + _json(
        [
            upload.key,
            upload.id,
            upload.initiator,
            upload.checksum_algorithm,
            upload.checksum_kind,
            [dict(attributes.headers), dict(attributes.metadata), dict(attributes.tags)],
        ]
    )


def decode_upload(record: bytes) -> Upload:
    """Raises StoreUnusable."""
    _expect("upload", record)
    try:
        _, initiated_ns = _UPLOAD.unpack_from(record)
        key, upload_id, initiator, algorithm, kind, maps = json.loads(record[_UPLOAD.size :])
        attributes = Attributes(*map(MappingProxyType, maps))
        return Upload(key, upload_id, initiated_ns, initiator, attributes, algorithm, kind)
    except _MALFORMED as failure:
        raise _damaged("upload", record) from failure


# -- references to payload files --


def encode_payloads(payloads: Iterable[FilePayload]) -> bytes:
    """Payload files in their order (RECLAIM): the format byte, then 34 bytes for each."""
    return bytes((FORMAT,)) + b"".join([_FILE_PAYLOAD.pack(p.id, p.directory, p.length, p.crc64nvme) for p in payloads])


def decode_payloads(record: bytes) -> list[FilePayload]:
    """Raises StoreUnusable."""
    _expect("payload list", record)
    try:
        return [FilePayload(*fields) for fields in _FILE_PAYLOAD.iter_unpack(record[1:])]
    except _MALFORMED as failure:
        raise _damaged("payload list", record) from failure


def encode_owner(owner: PayloadOwner) -> bytes:
    """Who refers to a payload file (PAYLOADS): the format byte, the table's number, its key."""
    return bytes((FORMAT, _TABLES.index(owner.table))) + owner.key


def decode_owner(record: bytes) -> PayloadOwner:
    """Raises StoreUnusable."""
    _expect("payload owner", record)
    try:
        return PayloadOwner(_TABLES[record[1]], record[2:])
    except _MALFORMED as failure:
        raise _damaged("payload owner", record) from failure


# -- pieces --


def _same_as_part(version: Version, part: Part) -> bool:
    of_version = 1, version.etag, version.modified_ns, version.checksum, version.epoch
    return (part.number, part.etag, part.modified_ns, part.checksum, part.epoch) == of_version


def _encode_payload(payload: Payload) -> bytes:
    if isinstance(payload, FilePayload):
        return _PAYLOAD.pack(_FILE, payload.id, payload.directory, payload.length, payload.crc64nvme)
    return _PAYLOAD.pack(0, payload.id, 0, payload.length, 0)


def _decode_payload(record: bytes, offset: int) -> Payload:
    kind, payload_id, directory, length, crc64nvme = _PAYLOAD.unpack_from(record, offset)
    if kind == _FILE:
        return FilePayload(payload_id, directory, length, crc64nvme)
    return InlinePayload(payload_id, length)


def _encode_parts(parts: Sequence[Part]) -> bytes:
    entries, texts = [_COUNT.pack(len(parts))], []
    for part in parts:
        payload, etag = part.payload, part.etag
        code, checksum_value = _checksum_code(part.checksum)
        if len(etag) == 32 and _HEX.issuperset(etag):
            flags, etag_size, md5 = 0, 0, bytes.fromhex(etag)
        else:
            flags, etag_size, md5 = _ETAG_TEXT, len(etag), _NO_MD5
            texts.append(etag)
        texts.append(checksum_value)
        directory = crc64nvme = 0
        if isinstance(payload, FilePayload):
            flags |= _FILE
            directory, crc64nvme = payload.directory, payload.crc64nvme
        try:
            entry = _PART.pack(
                part.number, flags, code, etag_size, len(checksum_value), part.epoch,
                payload.id, directory, payload.length, crc64nvme, part.modified_ns, md5,
            )  # fmt: skip
        except error as failure:
            raise ValueError(f"a part that has no record: {failure}") from failure
        entries.append(entry)
    entries.append("".join(texts).encode("ascii"))
    return b"".join(entries)


def _decode_parts(record: bytes, offset: int) -> tuple[Part, ...]:
    (count,) = _COUNT.unpack_from(record, offset)
    start = offset + _COUNT.size
    end = start + count * _PART.size
    entries = record[start:end]
    if len(entries) != end - start:
        raise IndexError("parts are cut off")
    texts, at = record[end:].decode("ascii"), 0
    parts = []
    for (
        number, flags, code, etag_size, checksum_size, epoch,
        payload_id, directory, length, crc64nvme, modified_ns, md5,
    ) in _PART.iter_unpack(entries):  # fmt: skip
        if flags & _ETAG_TEXT:
            etag, at = texts[at : at + etag_size], at + etag_size
        else:
            etag = md5.hex()
        checksum = None
        if code:
            checksum = _checksum(code, texts[at : at + checksum_size])
            at += checksum_size
        payload: Payload
        if flags & _FILE:
            payload = FilePayload(payload_id, directory, length, crc64nvme)
        else:
            payload = InlinePayload(payload_id, length)
        parts.append(Part(number, payload, etag, modified_ns, checksum, epoch))
    if at != len(texts):
        raise IndexError("texts of parts are cut off")
    return tuple(parts)


def _checksum_code(checksum: Checksum | None) -> tuple[int, str]:
    if checksum is None:
        return 0, ""
    code = _CHECKSUM_CODES.get((checksum.algorithm, checksum.kind))
    if code is None:
        raise ValueError(f"no record for a checksum {checksum.algorithm} of kind {checksum.kind}")
    return code, checksum.value


def _checksum(code: int, value: str) -> Checksum:
    algorithm, kind = _CHECKSUM_NAMES[code - 1]
    return Checksum(algorithm, kind, value)


@lru_cache(maxsize=2048)
def _decode_attributes(raw: bytes) -> Attributes:
    return Attributes(*map(MappingProxyType, json.loads(raw)))


def _json(value: object) -> bytes:
    # ASCII escapes keep surrogates that stand for header bytes which are not UTF-8.
    return _ENCODE_JSON(value).encode("ascii")


_ENCODE_JSON = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def _expect(what: str, record: bytes) -> None:
    if not record or record[0] != FORMAT:
        raise _unknown(what, record)


def _unknown(what: str, record: bytes) -> StoreUnusable:
    if not record:
        return _damaged(what, record)
    return StoreUnusable(f"a {what} record has format {record[0]}; this release reads format {FORMAT}: use a later one")


def _damaged(what: str, record: bytes) -> StoreUnusable:
    return StoreUnusable(f"a {what} record of {len(record)} bytes is damaged: run the store check")
