"""Waiting for what may still use a buffer or a descriptor, cancelled or not."""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any


async def finished(futures: Iterable["asyncio.Future[Any]"]) -> None:
    """Wait until all are over, whatever comes of them; their errors count as seen. When cancelled meanwhile, the wait
    goes on, and CancelledError is raised at its end."""
    pending = {future for future in futures if not _over(future)}
    cancelled = False
    while pending:
        try:
            done, pending = await asyncio.wait(pending)
        except asyncio.CancelledError:
            cancelled = True
            done = {future for future in pending if future.done()}
            pending -= done
        for future in done:
            _over(future)
    if cancelled:
        raise asyncio.CancelledError


async def outlast(future: "asyncio.Future[Any]") -> None:
    """Wait until it is done, whatever comes of it, even when cancelled meanwhile; the cancellation is the caller's to
    raise again."""
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((future,))
    _over(future)


def _over(future: "asyncio.Future[Any]") -> bool:
    if not future.done():
        return False
    if not future.cancelled():
        future.exception()
    return True
