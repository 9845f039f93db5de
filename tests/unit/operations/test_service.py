from s3verbs.gateway.auth.principal import ROOT_ACCOUNT, Principal
from s3verbs.gateway.documents import Owner
from tests.unit.operations.endpoint import OTHER, OWNER, Endpoint


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


async def test_an_account_sees_its_own_buckets_and_root_sees_all() -> None:
    endpoint = Endpoint()
    for number in range(6):
        await endpoint.run("CreateBucket", f"bucket-{number}", principal=OTHER if number % 3 else OWNER)
    root = Principal(ROOT_ACCOUNT, "root", "ROOTKEY")
    for principal, names in (
        (OWNER, ["bucket-0", "bucket-3"]),
        (OTHER, ["bucket-1", "bucket-2", "bucket-4", "bucket-5"]),
        (root, [f"bucket-{number}" for number in range(6)]),
    ):
        document = (await endpoint.run("ListBuckets", principal=principal)).document
        assert [bucket.name for bucket in document.buckets] == names
        assert document.owner == Owner(principal.id, principal.display_name)


async def test_the_last_page_of_an_account_has_no_token_although_others_have_more_buckets() -> None:
    endpoint = await made("a-bucket", "b-bucket", "c-bucket")
    await endpoint.run("CreateBucket", "z-bucket", principal=OTHER)
    document = (await endpoint.run("ListBuckets", query=[("max-buckets", "3")])).document
    assert (len(document.buckets), document.continuation_token) == (3, "")
    first = (await endpoint.run("ListBuckets", query=[("max-buckets", "2")])).document
    query = [("continuation-token", first.continuation_token)]
    second = (await endpoint.run("ListBuckets", query=query)).document
    assert [bucket.name for bucket in second.buckets] == ["c-bucket"]
