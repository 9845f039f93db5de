"""Writers that keep a ledger: what they sent, what was acknowledged, and so what a server may hold after it was killed.

A writer owns its keys and sends one request at a time, so a key holds what was last acknowledged, or what was asked for
and never answered. The keys of `race` are written by all of them, with If-None-Match: *.
"""

import hashlib
import random
import threading
from base64 import b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from urllib.parse import quote

from tests.integration.endpoint import BUCKET, Response, Wire

POOL = random.Random(20).randbytes(8 << 20)
INLINE = 16 << 10
MIN_PART = 5 << 20


@dataclass(frozen=True)
class Value:
    """An object's content: `parts` are sizes, several for a multipart upload. Two values share no stretch of bytes."""

    seed: int
    parts: tuple[int, ...]
    multipart: bool = False

    def part(self, index: int) -> bytes:
        size = self.parts[index]
        start = (self.seed * 7919 + index * 104_729) % (len(POOL) - size)
        return (b"%08x-%02x " % (self.seed, index) + POOL[start : start + size])[:size]

    @cached_property
    def body(self) -> bytes:
        return b"".join(self.part(index) for index in range(len(self.parts)))

    @cached_property
    def etag(self) -> str:
        if not self.multipart:
            return hashlib.md5(self.body).hexdigest()
        digests = b"".join(hashlib.md5(self.part(index)).digest() for index in range(len(self.parts)))
        return f"{hashlib.md5(digests).hexdigest()}-{len(self.parts)}"


@dataclass
class Entry:
    """One key. `asked` are the outcomes of requests that were never answered."""

    acknowledged: Value | None = None
    asked: list[Value | None] = field(default_factory=list)

    @property
    def possible(self) -> list[Value | None]:
        return [self.acknowledged, *self.asked]

    def settle(self, value: Value | None) -> None:
        self.acknowledged = value
        self.asked.clear()


@dataclass
class OpenUpload:
    """A multipart upload whose end was not acknowledged. `completing` once the client asked for it."""

    key: str
    id: str
    value: Value
    etags: list[str] = field(default_factory=list)
    completing: bool = False


class Writer(threading.Thread):
    """Writes until `stop` is set or its connection dies. `faults` are answers that no server should give."""

    def __init__(self, connect: Callable[[], Wire], number: int, *, keys: int = 12, races: Iterable[int] = ()) -> None:
        super().__init__(name=f"writer-{number}")
        self.ledger = {f"w{number}/{index:02d}": Entry() for index in range(keys)}
        self.races: dict[str, tuple[Value, int]] = {}
        """The status of each attempt at a key that all writers want; 0 when it was not answered."""
        self.upload: OpenUpload | None = None
        self.faults: list[str] = []
        self.answered = 0
        self.refused = 0
        """PUTs that were answered 412. Their payload files are unlinked in the background, after the answer."""
        self.stop = threading.Event()
        self._connect = connect
        self._random = random.Random(number)
        self._seeds = count(number << 20)
        self._to_race = iter(races)

    def run(self) -> None:
        try:
            with self._connect() as wire:
                while not self.stop.is_set():
                    self._step(wire)
        except (OSError, EOFError):
            return

    def again(self, number: int) -> "Writer":
        """A writer of the same keys for the next life of the server; the ledger is settled."""
        writer = Writer(self._connect, number)
        writer.ledger = self.ledger
        writer.races = self.races
        writer._to_race = self._to_race
        return writer

    # -- the work --

    def _step(self, wire: Wire) -> None:
        key = self._random.choice(list(self.ledger))
        action = self._random.choices(
            (self._put_inline, self._put_file, self._remove, self._replace, self._refused, self._race),
            weights=(4, 4, 2, 2, 1, 3),
        )[0]
        if self._random.random() < 0.03:
            action = self._multipart
        elif self._random.random() < 0.05:
            action = self._remove_many
        action(wire, key)

    def _put_inline(self, wire: Wire, key: str) -> None:
        self._put(wire, key, self._value(0, INLINE))

    def _put_file(self, wire: Wire, key: str) -> None:
        self._put(wire, key, self._value(INLINE + 1, 1 << 20))

    def _put(self, wire: Wire, key: str, value: Value, **headers: str) -> None:
        entry = self.ledger[key]
        entry.asked.append(value)
        if self._random.random() < 0.5:
            headers["x_amz_content_sha256"] = "UNSIGNED-PAYLOAD"
        response = wire.request("PUT", f"/{BUCKET}/{key}", value.body, **headers)
        if self._expect(response, 200) and self._same(response.headers["etag"], value):
            entry.settle(value)

    def _replace(self, wire: Wire, key: str) -> None:
        current = self.ledger[key].acknowledged
        if current is not None:
            self._put(wire, key, self._value(0, 200_000), if_match=f'"{current.etag}"')

    def _refused(self, wire: Wire, key: str) -> None:
        """Conditions that do not hold change nothing."""
        current = self.ledger[key].acknowledged
        if current is not None:
            unwanted = self._value(0, 100_000).body
            for condition in ({"if_none_match": "*"}, {"if_match": '"0"'}):
                self.refused += self._expect(wire.request("PUT", f"/{BUCKET}/{key}", unwanted, **condition), 412)

    def _race(self, wire: Wire, _: str) -> None:
        number = next(self._to_race, None)
        if number is None:
            return
        key = f"race/{number:05d}"
        value = self._value(0, 40_000)
        self.races[key] = (value, 0)
        response = wire.request("PUT", f"/{BUCKET}/{key}", value.body, if_none_match="*")
        if self._expect(response, 200, 412):
            self.races[key] = (value, response.status)
            self.refused += response.status == 412

    def _remove(self, wire: Wire, key: str) -> None:
        entry = self.ledger[key]
        entry.asked.append(None)
        if self._expect(wire.request("DELETE", f"/{BUCKET}/{key}"), 204):
            entry.settle(None)

    def _remove_many(self, wire: Wire, _: str) -> None:
        keys = self._random.sample(list(self.ledger), 3)
        for key in keys:
            self.ledger[key].asked.append(None)
        body = "".join(f"<Object><Key>{key}</Key></Object>" for key in keys)
        document = f"<Delete><Quiet>true</Quiet>{body}</Delete>".encode()
        digest = hashlib.md5(document).digest()
        response = wire.request("POST", f"/{BUCKET}?delete=", document, content_md5=b64encode(digest).decode())
        if self._expect(response, 200) and b"<Error>" not in response.body:
            for key in keys:
                self.ledger[key].settle(None)

    def _multipart(self, wire: Wire, key: str) -> None:
        sizes = (MIN_PART, self._random.randint(1, 100_000)) if self._random.random() < 0.5 else (30_000,)
        value = Value(next(self._seeds), sizes, multipart=True)
        upload = begin_upload(wire, key, value)
        if upload is None:
            return
        self.upload = upload
        continue_upload(wire, upload)
        self.ledger[key].asked.append(value)
        response = complete_upload(wire, upload)
        if self._expect(response, 200) and self._same(found(response.body, "ETag"), value):
            self.ledger[key].settle(value)
            self.upload = None

    # -- judging answers --

    def _value(self, low: int, high: int) -> Value:
        return Value(next(self._seeds), (self._random.randint(low, high),))

    def _same(self, etag: str, value: Value) -> bool:
        if etag.replace("&quot;", '"').strip('"') == value.etag:
            return True
        self.faults.append(f"ETag {etag}, not {value.etag}")
        return False

    def _expect(self, response: Response, *wanted: int) -> bool:
        self.answered += 1
        if response.status in wanted:
            return True
        self.faults.append(f"{response.status} {response.code}, not {wanted}")
        return False


# -- multipart, step by step --


def found(document: bytes, element: str) -> str:
    return document.partition(f"<{element}>".encode())[2].partition(f"</{element}>".encode())[0].decode()


def begin_upload(wire: Wire, key: str, value: Value) -> OpenUpload | None:
    response = wire.request("POST", f"/{BUCKET}/{key}?uploads=")
    return OpenUpload(key, found(response.body, "UploadId"), value) if response.status == 200 else None


def continue_upload(wire: Wire, upload: OpenUpload) -> Response | None:
    """Upload the parts that are missing; the answer that was no 200."""
    for index in range(len(upload.etags), len(upload.value.parts)):
        target = f"/{BUCKET}/{upload.key}?partNumber={index + 1}&uploadId={upload.id}"
        response = wire.request("PUT", target, upload.value.part(index), x_amz_content_sha256="UNSIGNED-PAYLOAD")
        if response.status != 200:
            return response
        upload.etags.append(response.headers["etag"])
    return None


def complete_upload(wire: Wire, upload: OpenUpload, **headers: str) -> Response:
    parts = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
        for number, etag in enumerate(upload.etags, 1)
    )
    document = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
    upload.completing = True
    return wire.request("POST", f"/{BUCKET}/{upload.key}?uploadId={upload.id}", document, **headers)


# -- after the kill --


def look(wire: Wire, key: str, possible: Iterable[Value | None]) -> Value | None:
    """What the server holds under a key, which must be one of `possible`, whole and with its ETag."""
    response = wire.request("GET", f"/{BUCKET}/{key}")
    if response.status == 404:
        assert None in possible, f"{key} was acknowledged and is gone"
        return None
    assert response.status == 200, f"{key}: {response.status} {response.code}"
    for value in possible:
        if value is not None and value.body == response.body:
            assert response.headers["etag"] == f'"{value.etag}"', key
            return value
    raise AssertionError(f"{key} holds {len(response.body)} bytes, {response.body[:12]!r}, that nobody may find there")


def settle_ledger(wire: Wire, writers: Iterable[Writer]) -> dict[str, Value]:
    """Compare everything with the ledgers and settle these. What is there now, by key."""
    present: dict[str, Value] = {}
    for writer in writers:
        for key, entry in writer.ledger.items():
            entry.settle(look(wire, key, entry.possible))
        if writer.upload is not None:
            _settle_upload(wire, writer.upload, writer.ledger[writer.upload.key])
            writer.upload = None
        present.update((key, entry.acknowledged) for key, entry in writer.ledger.items() if entry.acknowledged)
    present.update(settle_races(wire, writers))
    return present


def settle_races(wire: Wire, writers: Iterable[Writer]) -> dict[str, Value]:
    """One winner per key: the acknowledged one if there is one; an object for certain when anyone was told 412."""
    attempts: dict[str, list[tuple[Value, int]]] = {}
    for writer in writers:
        for key, attempt in writer.races.items():
            attempts.setdefault(key, []).append(attempt)
    present = {}
    for key, made in attempts.items():
        won = [value for value, status in made if status == 200]
        unknown = [value for value, status in made if status == 0]
        assert len(won) <= 1, f"{key}: {len(won)} writers were told that they made it"
        absent = [] if won or any(status == 412 for _, status in made) else [None]
        value = look(wire, key, won or [*unknown, *absent])
        if value is not None:
            present[key] = value
        for writer in writers:
            if key in writer.races and writer.races[key][1] == 0:
                if value is None:
                    del writer.races[key]
                else:
                    writer.races[key] = (writer.races[key][0], 200 if writer.races[key][0] == value else 412)
    return present


def _settle_upload(wire: Wire, upload: OpenUpload, entry: Entry) -> None:
    """An upload that was cut off goes on where it was, unless its completion was done without being acknowledged."""
    if entry.acknowledged == upload.value:
        assert wire.request("DELETE", f"/{BUCKET}/{upload.key}?uploadId={upload.id}").code == "NoSuchUpload"
    else:
        assert continue_upload(wire, upload) is None, "an upload of which parts were acknowledged is gone"
        assert complete_upload(wire, upload).status == 200
    entry.settle(look(wire, upload.key, [upload.value]))


def listed(wire: Wire, prefix: str = "") -> dict[str, str]:
    """Every key under a prefix with its ETag, page by page."""
    keys: dict[str, str] = {}
    token = ""
    while True:
        target = f"/{BUCKET}?list-type=2&max-keys=100&prefix={quote(prefix, safe='')}"
        if token:
            target += f"&continuation-token={quote(token, safe='')}"
        response = wire.request("GET", target)
        assert response.status == 200, response.code
        for item in response.body.split(b"<Contents>")[1:]:
            keys[found(item, "Key")] = found(item, "ETag").replace("&quot;", "").strip('"')
        token = found(response.body, "NextContinuationToken")
        if not token:
            return keys
