"""Keys of the metadata tables: byte strings whose order is the order that S3 lists in.

LMDB compares keys as unsigned bytes and takes at most 511 of them; an S3 key has up to 1,024. An object key of up to
`PREFIX_BYTES` bytes is kept whole. Of a longer one the first `PREFIX_BYTES` bytes are kept, followed by the SHA-256
digest of the whole. So short keys are in the order of their bytes, a long key is in its right place among the short
ones, and only long keys that share their first `PREFIX_BYTES` bytes, a *group*, are in no order: they are contiguous,
and whoever lists reads the group, sorts it by the key in each record and filters it by its own bounds.

The bounds given here never leave out an entry that belongs to the answer. Where a bound falls inside a group they
cover the whole group.

Layouts (lengths in bytes, integers big-endian):

    bucket      name
    object      bucket id 8 | key up to 450
                bucket id 8 | first 450 of key | digest 32
    upload      bucket id 8 | escaped key up to 450 | 00 00 | upload id 16
                bucket id 8 | first 450 of escaped key | 01 | digest 32 | upload id 16
    part        upload id 16 | part number 2
    payload     payload id 16

An escaped key has 00 01 for each 00, so that 00 00 ends it and a key sorts before those that it is a prefix of.
Ids of uploads and payloads start with the time they were made (`time_ordered_id`): uploads of one key are in the
order of their initiation, and payloads are appended to their table.
"""

from hashlib import sha256

BUCKET_ID_BYTES = 8
ID_BYTES = 16
PREFIX_BYTES = 450
DIGEST_BYTES = 32
MAX_ENCODED_BYTES = 511
"""LMDB's limit."""

_SHORT_OBJECT = BUCKET_ID_BYTES + PREFIX_BYTES
_LONG_UPLOAD = BUCKET_ID_BYTES + PREFIX_BYTES + 1 + DIGEST_BYTES + ID_BYTES
_END = b"\x00\x00"
_PAST_END = b"\x00\x01"
_LONG = b"\x01"

Range = tuple[bytes, bytes | None]
"""start <= encoded key < stop; None is the end of the table."""


def upper_bound(prefix: bytes) -> bytes | None:
    """The lowest byte string above everything that starts with `prefix`; None when there is none."""
    kept = prefix.rstrip(b"\xff")
    if not kept:
        return None
    return kept[:-1] + bytes((kept[-1] + 1,))


def time_ordered_id(now_ns: int, entropy: bytes) -> bytes:
    """An id of 16 bytes: `now_ns` in the first 8, then 8 bytes of `entropy`."""
    if len(entropy) != 8:
        raise ValueError(f"an id takes 8 bytes of entropy, not {len(entropy)}")
    return now_ns.to_bytes(8) + entropy


def bucket_key(name: str) -> bytes:
    return name.encode()


# -- objects --


def object_key(bucket_id: bytes, key: str) -> bytes:
    """Where the object `key` of a bucket is."""
    raw = key.encode()
    if len(raw) <= PREFIX_BYTES:
        return bucket_id + raw
    return bucket_id + raw[:PREFIX_BYTES] + sha256(raw).digest()


def is_long_object_key(key: str) -> bool:
    """Whether an object key is in a group when it is an object's."""
    return len(key) > PREFIX_BYTES or len(key.encode()) > PREFIX_BYTES


def is_long_object(encoded: bytes) -> bool:
    """Whether an encoded key is that of a long object key, one that is in a group."""
    return len(encoded) > _SHORT_OBJECT


def object_group(encoded: bytes) -> Range:
    """All entries of the group of an encoded long object key."""
    prefix = encoded[:_SHORT_OBJECT]
    return prefix + b"\x00", upper_bound(prefix)


def object_name(encoded: bytes) -> str:
    """The object key in an encoded short one."""
    return encoded[BUCKET_ID_BYTES:].decode()


def objects_after(bucket_id: bytes, key: str) -> bytes:
    """The first place for a key greater than `key`; the start of its group when `key` is long."""
    return bucket_id + key.encode()[:PREFIX_BYTES] + b"\x00"


def objects_past(bucket_id: bytes, prefix: str) -> bytes | None:
    """The first place for a key greater than all that start with `prefix`; the start of its group when it is long.

    The bound may lie in the next bucket: keep to the stop of `object_range`.
    """
    raw = prefix.encode()
    if len(raw) > PREFIX_BYTES:
        return bucket_id + raw[:PREFIX_BYTES] + b"\x00"
    return upper_bound(bucket_id + raw)


def object_range(bucket_id: bytes, prefix: str = "") -> Range:
    """Where keys that start with `prefix` are; a whole group when the prefix is long."""
    raw = prefix.encode()
    start = bucket_id + raw[:PREFIX_BYTES]
    if len(raw) > PREFIX_BYTES:
        return start + b"\x00", upper_bound(start)
    return start, upper_bound(start)


# -- uploads and their parts --


def upload_id_text(raw: bytes) -> str:
    """An upload id as clients see it: 32 lower-case hex digits."""
    return raw.hex()


def upload_id_bytes(text: str) -> bytes | None:
    """The 16 bytes of an upload id, None when `text` cannot be one (clients may send anything)."""
    if len(text) != 2 * ID_BYTES:
        return None
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        return None
    return raw if raw.hex() == text else None


def upload_key(bucket_id: bytes, key: str, upload_id: bytes) -> bytes:
    """Where the upload `upload_id` (16 bytes) of an object key is."""
    if len(upload_id) != ID_BYTES:
        raise ValueError(f"an upload id has {ID_BYTES} bytes, not {len(upload_id)}")
    escaped = _escape(key)
    if len(escaped) <= PREFIX_BYTES:
        return bucket_id + escaped + _END + upload_id
    return bucket_id + escaped[:PREFIX_BYTES] + _LONG + sha256(key.encode()).digest() + upload_id


def is_long_upload_key(key: str) -> bool:
    """Whether an object key is in a group when it is an upload's: NULs count twice."""
    return len(key) > PREFIX_BYTES or len(_escape(key)) > PREFIX_BYTES


def is_long_upload(encoded: bytes) -> bool:
    """Whether an encoded key is that of an upload of a long object key, one that is in a group."""
    return len(encoded) == _LONG_UPLOAD


def upload_group(encoded: bytes) -> Range:
    """All entries of the group of an encoded long upload key: order them by (key, upload id)."""
    prefix = encoded[: _SHORT_OBJECT + 1]
    return prefix, upper_bound(prefix)


def uploads_after(bucket_id: bytes, key: str, upload_id: bytes | None = None) -> bytes:
    """The first place for an upload after (`key`, `upload_id`), or, without an id, of a greater key.

    The start of its group when `key` is long.
    """
    escaped = _escape(key)
    if len(escaped) > PREFIX_BYTES:
        return bucket_id + escaped[:PREFIX_BYTES] + _LONG
    if upload_id is None:
        return bucket_id + escaped + _PAST_END
    return bucket_id + escaped + _END + upload_id + b"\x00"


def uploads_past(bucket_id: bytes, prefix: str) -> bytes | None:
    """The first place for an upload of a key greater than all that start with `prefix`; see `objects_past`."""
    escaped = _escape(prefix)
    if len(escaped) > PREFIX_BYTES:
        return bucket_id + escaped[:PREFIX_BYTES] + _LONG
    return upper_bound(bucket_id + escaped)


def upload_range(bucket_id: bytes, prefix: str = "") -> Range:
    """Where uploads of keys that start with `prefix` are; a whole group when the prefix is long."""
    escaped = _escape(prefix)
    start = bucket_id + escaped[:PREFIX_BYTES]
    if len(escaped) > PREFIX_BYTES:
        start += _LONG
    return start, upper_bound(start)


def part_key(upload_id: bytes, number: int) -> bytes:
    """Where part `number` of an upload is."""
    return upload_id + number.to_bytes(2)


def part_number(encoded: bytes) -> int:
    return int.from_bytes(encoded[ID_BYTES:])


def part_range(upload_id: bytes, after: int = 0) -> Range:
    """Where parts with a number above `after` are."""
    return upload_id + min(max(after, 0), 0xFFFF).to_bytes(2) + b"\x00", upper_bound(upload_id)


def payload_key(payload_id: bytes) -> bytes:
    """Where what is known of a payload is, in INLINE, PAYLOADS and RECLAIM."""
    if len(payload_id) != ID_BYTES:
        raise ValueError(f"a payload id has {ID_BYTES} bytes, not {len(payload_id)}")
    return payload_id


def _escape(key: str) -> bytes:
    raw = key.encode()
    return raw.replace(b"\x00", b"\x00\x01") if b"\x00" in raw else raw
