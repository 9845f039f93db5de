"""The session of a token while the server's parent process writes the table."""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from s3verbs.rdma.errors import Decline, Declined
from s3verbs.rdma.samehost import fabric
from s3verbs.rdma.samehost.fabric import SameHostFabric
from s3verbs.rdma.samehost.process_memory import identify
from s3verbs.rdma.samehost.table import SessionTable
from s3verbs.rdma.token import Token, Transport


class Writing:
    """A session of this process, with a region whose table the parent is about to change."""

    def __init__(self) -> None:
        self.table = SessionTable(1, sessions=1, regions=1, slots=1)
        self.fabric = SameHostFabric(self.table, 0)
        begun = self.table.begin(identify(os.getpid()), os.getuid())
        assert begun is not None
        slot, id = begun
        self.table.add(slot, 4096, 4096)
        self.token = Token(4096, 4096, transport=Transport.SAMEHOST, secret=id)
        self._session = self.table._session(slot)

    def begin(self) -> None:
        self.table._open_write(self._session)

    def end(self) -> None:
        self.table._close_write(self._session)


@pytest.fixture
async def writing() -> AsyncIterator[Writing]:
    made = Writing()
    made.begin()
    yield made
    await made.fabric.close()
    made.table.close()


async def test_a_request_waits_for_the_end_of_a_change(writing: Writing) -> None:
    opening = asyncio.ensure_future(writing.fabric.open(writing.token))
    await asyncio.sleep(0.05)
    assert not opening.done()
    writing.end()
    region = await opening
    assert region.size == 4096
    await region.close()


async def test_a_change_without_an_end_is_declined(writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric, "PATIENCE", 0.05)
    with pytest.raises(Declined) as declined:
        await writing.fabric.open(writing.token)
    assert declined.value.reason is Decline.NO_SESSION
