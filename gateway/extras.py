"""The packages of the extra `server`, without importing one: the command line says what is missing before it starts."""

import importlib.util

PACKAGES = ("aiohttp", "awscrt", "lmdb", "prometheus-client", "uvloop")
"""Names on the package index."""


def missing() -> list[str]:
    """Those that are not installed."""
    return [name for name in PACKAGES if importlib.util.find_spec(name.replace("-", "_")) is None]
