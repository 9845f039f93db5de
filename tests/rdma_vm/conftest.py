"""The suite that runs in the virtual machine; anywhere else its tests are deselected. `make test-rdma-vm` runs it."""

import os
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
IN_GUEST = os.environ.get("S3VERBS_RDMA_VM") == "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mine = [item for item in items if HERE in item.path.parents]
    for item in mine:
        item.add_marker(pytest.mark.rdma_vm)
    if mine and not IN_GUEST:
        items[:] = [item for item in items if item not in mine]
        config.hook.pytest_deselected(items=mine)
