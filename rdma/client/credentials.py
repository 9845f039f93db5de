"""Where access keys come from: given ones, or botocore's default chain (environment, files, SSO, container,
instance)."""

import threading
from typing import Any, Protocol

from s3verbs.rdma.client.signing import Keys


class KeySource(Protocol):
    """Any thread."""

    def keys(self) -> Keys | None:
        """Those to sign with now; None for anonymous requests."""

    def reload(self, refused: Keys) -> bool:
        """The server says that these have expired. True when there may be others now."""


class GivenKeys:
    """Keys that never change."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def keys(self) -> Keys:
        return self._keys

    def reload(self, refused: Keys) -> bool:
        return False


class ChainKeys:
    """botocore's default chain, looked up at the first request. Temporary credentials are refreshed before they expire,
    as botocore does; `reload` starts the chain again, for those that were replaced in a file or revoked early."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found = False
        self._credentials: Any = None
        self._last: tuple[Any, Keys] | None = None

    def keys(self) -> Keys | None:
        if not self._found:
            with self._lock:
                if not self._found:
                    self._credentials = _from_chain()
                    self._found = True
        if self._credentials is None:
            return None
        frozen = self._credentials.get_frozen_credentials()
        last = self._last
        if last is None or last[0] != frozen:
            last = (frozen, Keys(frozen.access_key, frozen.secret_key, frozen.token))
            self._last = last
        return last[1]

    def reload(self, refused: Keys) -> bool:
        if self.keys() != refused:
            return True
        with self._lock:
            self._credentials = _from_chain()
        return self.keys() not in (None, refused)


def _from_chain() -> Any:
    import botocore.session  # type: ignore[import-untyped, unused-ignore]

    return botocore.session.Session().get_credentials()
