import pytest

from tests.unit.operations.endpoint import Endpoint


@pytest.fixture
async def endpoint() -> Endpoint:
    """An endpoint with the empty bucket "bucket"."""
    made = Endpoint()
    await made.run("CreateBucket", "bucket")
    return made
