"""The verdict on an answer is total: every combination is one of the table's rows or BadAnswer."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from s3verbs.rdma.client.answer import Verdict, content_range, get_verdict, put_verdict
from s3verbs.rdma.client.errors import BadAnswer

LOADED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is no failure."""

REPLY, BYTES = "x-amz-rdma-reply", "x-amz-rdma-bytes-transferred"
statuses = st.sampled_from([200, 201, 204, 206, 304, 400, 403, 404, 412, 500, 501, 503])
replies = st.sampled_from([None, "200", "204", "206", "501", "500", "", "2000", "\uff12\uff10\uff10", "200 "])
counts = st.sampled_from([None, "0", "1", "99", "100", "101", "", "-1", "+1", "1_0", "\u0663"])
ranges = st.sampled_from([None, "bytes 0-99/100", "bytes 5-5/6", "bytes 0-0/*", "bytes 5-4/9", "bytes */9", ""])


def headers_of(reply: str | None, count: str | None, selected: str | None = None) -> dict[str, str]:
    found = {REPLY: reply, BYTES: count, "content-range": selected}
    return {name: value for name, value in found.items() if value is not None}


@LOADED
@given(statuses, replies, counts)
def test_put(status: int, reply: str | None, count: str | None) -> None:
    try:
        verdict = put_verdict(status, headers_of(reply, count), 100)
    except BadAnswer:
        assert status < 300
        assert reply is not None
        return
    if verdict is Verdict.MOVED:
        assert (status < 300, reply in ("200", "204", "206"), count) == (True, True, "100")
    elif verdict is Verdict.DECLINED:
        assert (status, reply) == (501, "501")
    elif verdict is Verdict.IGNORED:
        assert (status < 300, reply) == (True, None)
    else:
        assert verdict is Verdict.ERROR
        assert status >= 300


@LOADED
@given(statuses, replies, counts, ranges, st.sampled_from([None, 0, 1, 100]))
def test_get(status: int, reply: str | None, count: str | None, selected: str | None, length: int | None) -> None:
    try:
        verdict = get_verdict(status, headers_of(reply, count, selected), length, 100)
    except BadAnswer:
        assert status < 300
        assert reply not in (None, "501")
        return
    if verdict is Verdict.MOVED:
        assert status < 300
        assert reply in ("200", "204", "206")
        assert length == 0 or status == 204
        moved = int(count or "x")
        assert moved <= 100
        assert moved == {None: moved, "bytes 0-99/100": 100}.get(selected, 1)
    elif verdict is Verdict.DECLINED:
        assert (status, reply) == (501, "501")
    elif verdict is Verdict.DECLINED_BODY:
        assert (status < 300, reply) == (True, "501")
    elif verdict is Verdict.IGNORED_BODY:
        assert (status < 300, reply) == (True, None)
    else:
        assert verdict is Verdict.ERROR
        assert status >= 300


@LOADED
@given(st.integers(0, 1 << 60), st.integers(1, 1 << 60), st.integers(0, 1 << 60))
def test_content_range_is_half_open(start: int, size: int, more: int) -> None:
    stop = start + size
    text = f"bytes {start}-{stop - 1}/{stop + more}"
    assert content_range({"content-range": text}) == (start, stop, stop + more)
