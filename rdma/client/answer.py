"""What an answer to a request with a token means: the tables of the wire contract, sections 4 and 5. Pure.

| PUT, UploadPart                                  | GET                                            | is            |
|--------------------------------------------------|------------------------------------------------|---------------|
| 2xx, reply 2xx, bytes-transferred = size         | 2xx, reply 2xx, no body, bytes = Content-Range | MOVED         |
| 501, reply 501                                   | 501, reply 501                                 | DECLINED      |
|                                                  | 2xx, reply 501: the object is the body         | DECLINED_BODY |
| 2xx, no reply: an empty object was stored        |                                                | IGNORED       |
|                                                  | 2xx, no reply: the object is the body          | IGNORED_BODY  |
| any other status, whatever the reply             | the same                                       | ERROR         |

Everything else raises BadAnswer.
"""

import re
from collections.abc import Mapping
from enum import Enum

from s3verbs.rdma.client.errors import BadAnswer, ShortTransfer
from s3verbs.rdma.headers import BYTES_TRANSFERRED, DECLINED, REPLY

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")


class Verdict(Enum):
    MOVED = "moved"
    DECLINED = "declined"
    DECLINED_BODY = "declined, with the object"
    IGNORED = "ignored"
    IGNORED_BODY = "ignored, with the object"
    ERROR = "error"


def put_verdict(status: int, headers: Mapping[str, str], size: int) -> Verdict:
    """`size` is the token's. Raises BadAnswer, ShortTransfer."""
    reply = headers.get(REPLY)
    if status == 501 and reply == DECLINED:
        return Verdict.DECLINED
    if not 200 <= status < 300:
        return Verdict.ERROR
    if reply is None:
        return Verdict.IGNORED
    _require_success(reply)
    moved = bytes_transferred(headers)
    if moved != size:
        raise ShortTransfer(moved, size)
    return Verdict.MOVED


def get_verdict(status: int, headers: Mapping[str, str], length: int | None, room: int) -> Verdict:
    """`length` is that of the body, `room` the token's size. Raises BadAnswer, ShortTransfer."""
    reply = headers.get(REPLY)
    if status == 501 and reply == DECLINED:
        return Verdict.DECLINED
    if not 200 <= status < 300:
        return Verdict.ERROR
    if reply is None:
        return Verdict.IGNORED_BODY
    if reply == DECLINED:
        return Verdict.DECLINED_BODY
    _require_success(reply)
    if length != 0 and status != 204:
        raise BadAnswer("the server says that it moved the object by RDMA, and sends a body too")
    moved = bytes_transferred(headers)
    if moved > room:
        raise ShortTransfer(moved, room)
    selected = content_range(headers)
    if selected is not None and moved != selected[1] - selected[0]:
        raise ShortTransfer(moved, selected[1] - selected[0])
    return Verdict.MOVED


def bytes_transferred(headers: Mapping[str, str]) -> int:
    """Raises BadAnswer."""
    text = headers.get(BYTES_TRANSFERRED, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise BadAnswer(f"{BYTES_TRANSFERRED} is {text[:40]!r}, not a count of bytes")
    return int(text)


def content_range(headers: Mapping[str, str]) -> tuple[int, int, int | None] | None:
    """(start, stop, size of the object or None), `stop` exclusive; None without Content-Range. Raises BadAnswer."""
    text = headers.get("content-range")
    if text is None:
        return None
    match = _CONTENT_RANGE.fullmatch(text)
    if match is None or int(match[2]) < int(match[1]):
        raise BadAnswer(f"Content-Range is {text[:80]!r}")
    return int(match[1]), int(match[2]) + 1, None if match[3] == "*" else int(match[3])


def is_servers_own(status: int, headers: Mapping[str, str], code: str) -> bool:
    """Whether an error is the S3 server's, and not a proxy's on the way: only then the server is done with the memory.
    A proxy that gives up with 502 or 504 leaves it at work."""
    return status < 500 or bool(code) or "x-amz-request-id" in headers


def _require_success(reply: str) -> None:
    if not (len(reply) == 3 and reply.isascii() and reply.isdecimal() and reply[0] == "2"):
        raise BadAnswer(f"{REPLY} is {reply[:40]!r} with a status of success")
