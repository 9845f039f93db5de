"""ETags: hex MD5 for a plain PUT, `md5-N` over the parts' MD5s for a completed upload."""

from collections.abc import Sequence

from s3verbs.storage.model import Part


def multipart(parts: Sequence[Part]) -> str: ...
