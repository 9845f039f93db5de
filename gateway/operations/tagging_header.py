"""The x-amz-tagging header: URL query parameters that become an object's tags.

Limits as in the Amazon S3 User Guide, "Categorizing your objects using tags".
"""

from urllib.parse import unquote_to_bytes

from s3verbs.gateway.errors import S3Error
from s3verbs.gateway.operations.guard import invalid_argument

MAX_TAGS = 10
MAX_TAG_KEY = 128
MAX_TAG_VALUE = 256

_PUNCTUATION = frozenset("+-=._:/@")


def parse_tagging(value: str) -> dict[str, str]:
    """The tags, in the order given. Raises S3Error: InvalidArgument (not query parameters, or a key twice),
    BadRequest (more than 10), InvalidTag (a key or value that is too long or holds other characters)."""
    tags: dict[str, str] = {}
    for pair in value.split("&"):
        if not pair:
            continue
        raw_key, _, raw_value = pair.partition("=")
        try:
            key, tag = _decode(raw_key), _decode(raw_value)
        except UnicodeDecodeError:
            raise _malformed(value) from None
        if key in tags:
            raise _malformed(value)
        tags[key] = tag
    check_tags(tags)
    return tags


def check_tags(tags: dict[str, str]) -> None:
    """Raises S3Error BadRequest or InvalidTag."""
    if len(tags) > MAX_TAGS:
        raise S3Error("BadRequest", f"Object tags cannot be greater than {MAX_TAGS}")
    for key, value in tags.items():
        if not 0 < len(key) <= MAX_TAG_KEY or not _allowed(key):
            raise S3Error("InvalidTag", "The TagKey you have provided is invalid", details={"TagKey": key})
        if key.startswith("aws:"):
            raise S3Error("InvalidTag", "System tags cannot be added/updated by requester", details={"TagKey": key})
        if len(value) > MAX_TAG_VALUE or not _allowed(value):
            raise S3Error(
                "InvalidTag", "The TagValue you have provided is invalid", details={"TagKey": key, "TagValue": value}
            )


def _decode(text: str) -> str:
    return unquote_to_bytes(text.replace("+", " ").encode("utf-8", "surrogateescape")).decode("utf-8")


def _allowed(text: str) -> bool:
    return all(character in _PUNCTUATION or character.isalnum() or character.isspace() for character in text)


def _malformed(value: str) -> S3Error:
    return invalid_argument(
        "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters without tag name "
        "duplicates.",
        "x-amz-tagging",
        value,
    )
