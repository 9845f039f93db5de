from s3verbs.gateway.documents import Owner
from tests.unit.operations.endpoint import Endpoint


async def made(*names: str) -> Endpoint:
    endpoint = Endpoint()
    for name in names:
        await endpoint.run("CreateBucket", name)
    return endpoint


async def test_every_bucket_is_listed_in_name_order_without_a_token() -> None:
    endpoint = await made("zeta", "alpha", "mid")
    document = (await endpoint.run("ListBuckets")).document
    assert [bucket.name for bucket in document.buckets] == ["alpha", "mid", "zeta"]
    assert document.continuation_token == ""
    assert document.owner == Owner("owner-id", "owner")


async def test_pages_follow_each_other_without_loss() -> None:
    names = [f"bucket-{number}" for number in range(7)]
    endpoint = await made(*names)
    seen: list[str] = []
    token = ""
    while True:
        query = [("max-buckets", "3")] + ([("continuation-token", token)] if token else [])
        document = (await endpoint.run("ListBuckets", query=query)).document
        assert len(document.buckets) <= 3
        seen += [bucket.name for bucket in document.buckets]
        token = document.continuation_token
        if not token:
            break
    assert seen == names


async def test_a_full_last_page_has_no_token() -> None:
    endpoint = await made("one", "two")
    document = (await endpoint.run("ListBuckets", query=[("max-buckets", "2")])).document
    assert (len(document.buckets), document.continuation_token) == (2, "")


async def test_prefix_selects_and_is_echoed() -> None:
    endpoint = await made("logs-a", "data-a", "logs-b")
    document = (await endpoint.run("ListBuckets", query=[("prefix", "logs-")])).document
    assert [bucket.name for bucket in document.buckets] == ["logs-a", "logs-b"]
    assert document.prefix == "logs-"


async def test_bad_parameters_are_refused() -> None:
    endpoint = await made("one")
    for value in ("0", "-1", "many", "9999999999"):
        await endpoint.fails("InvalidArgument", "ListBuckets", query=[("max-buckets", value)])
    error = await endpoint.fails("InvalidArgument", "ListBuckets", query=[("continuation-token", "bogus")])
    assert error.message == "The continuation token provided is incorrect"
