"""The dialects of S3 over RDMA: one row each, and a request speaks at most one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3verbs.rdma import headers
from s3verbs.rdma.errors import MalformedToken
from s3verbs.rdma.headers import CUOBJ, DIALECTS, INFO, NIXL, TOKEN, TOKEN_HEADERS, dialect_of

names = st.sampled_from([*TOKEN_HEADERS, headers.AGENT, headers.REPLY, headers.BYTES_TRANSFERRED, "host"]) | st.text()


def test_the_table() -> None:
    assert {"x-amz-rdma-token", "x-rdma-info"} == TOKEN_HEADERS
    assert (TOKEN, INFO) == ("x-amz-rdma-token", "x-rdma-info")
    assert CUOBJ.reads_bodies
    assert not NIXL.reads_bodies
    assert len(TOKEN_HEADERS) == len({dialect.name for dialect in DIALECTS}) == len(DIALECTS)
    for name in (*TOKEN_HEADERS, headers.AGENT, headers.REPLY, headers.BYTES_TRANSFERRED):
        assert name == name.lower().strip()
    assert "cuobj" in headers.AGENTS
    assert headers.DECLINED == "501"


@settings(deadline=None)
@given(st.dictionaries(names, st.text()))
def test_a_request_speaks_the_dialect_of_its_one_token_header(fields: dict[str, str]) -> None:
    spoken = TOKEN_HEADERS & fields.keys()
    if len(spoken) > 1:
        with pytest.raises(MalformedToken, match="only one"):
            dialect_of(fields)
        return
    dialect = dialect_of(fields)
    assert (dialect is None) == (not spoken)
    assert dialect is None or {dialect.token_header} == spoken


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_an_empty_token_is_a_token_too(dialect: headers.Dialect) -> None:
    assert dialect_of({dialect.token_header: ""}) is dialect
