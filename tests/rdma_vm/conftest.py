"""The suite that runs in the virtual machine; anywhere else its tests are deselected. `make test-rdma-vm` runs it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from s3verbs.rdma.client.verbs import RcTransport
    from tests.rdma_vm.gateway import Gateway

HERE = Path(__file__).resolve().parent
IN_GUEST = os.environ.get("S3VERBS_RDMA_VM") == "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mine = [item for item in items if HERE in item.path.parents]
    for item in mine:
        item.add_marker(pytest.mark.rdma_vm)
    if mine and not IN_GUEST:
        items[:] = [item for item in items if item not in mine]
        config.hook.pytest_deselected(items=mine)


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Gateway"]:
    """One server for all tests that leave it as it was."""
    from tests.rdma_vm.gateway import Gateway

    with Gateway(tmp_path_factory.mktemp("gateway") / "data") as running:
        yield running
        assert running.stop() == 0, running.errors


@pytest.fixture(scope="session")
def transport() -> Iterator["RcTransport"]:
    """The client's end of the wire in this process."""
    from s3verbs.rdma.client.verbs import RcTransport

    opened = RcTransport(["rxe1"])
    yield opened
    opened.close()
