"""LMCache's configuration: the published sizes, and a document that YAML reads back as what was meant."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3verbs.rdma.client.kv_models import PRESETS, KvModel
from s3verbs.rdma.nixl.lmcache import GIB, Buffer, Storage, accelerated, buffer_for, endpoint_of, over_http

STORAGE = Storage(endpoint="http://storage:9000", bucket="kvcache", access_key="12345", secret_key='a: "b" #c')


def values(document: str) -> dict[str, str]:
    """name: text, comments left out; names are unique in the whole document."""
    found = re.findall(r"^ *(\w+): ((?:\"(?:[^\"\\]|\\.)*\"|[^#\n])+?) *(?:#.*)?$", document, re.MULTILINE)
    assert len(dict(found)) == len(found)
    return dict(found)


def test_the_published_example() -> None:
    """Llama-3.1-8B, TP 1, 256-token chunks, fp16: 32 MiB an object, 250 of them for 64,000 tokens, 8 GiB."""
    buffer = buffer_for(PRESETS["Llama-3.1-8B"], 64_000)
    assert (buffer.object_bytes, buffer.chunks, buffer.bytes) == (32 << 20, 250, 8_589_934_592)
    said = values(accelerated(STORAGE, buffer))
    assert said["nixl_buffer_size"] == "8589934592"
    assert said["nixl_buffer_device"] == "cuda"
    assert (said["accelerated"], said["type"]) == ('"true"', "dell")
    assert said["chunk_size"] == "256"


@given(
    st.sampled_from(sorted(PRESETS)),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 300_000),
    st.sampled_from([16, 256, 512]),
)
def test_a_buffer_holds_the_context_in_whole_objects(name: str, tp: int, context: int, chunk: int) -> None:
    model = PRESETS[name]
    buffer = buffer_for(model, context, tp=tp, chunk_size=chunk)
    assert buffer.bytes % model.object_bytes(chunk, tp) == 0
    assert 0 <= buffer.bytes - context * model.bytes_per_token(tp) < GIB + 2 * buffer.object_bytes
    assert buffer.gibibytes * GIB >= buffer.chunks * buffer.object_bytes > (buffer.gibibytes - 1) * GIB


def test_host_memory_has_no_nixl_buffer_size() -> None:
    """LMCache refuses the two together; the buffer is its own then."""
    said = values(accelerated(STORAGE, buffer_for(PRESETS["Llama-3.1-8B"], 64_000), device="cpu"))
    assert "nixl_buffer_size" not in said
    assert (said["nixl_buffer_device"], said["max_local_cpu_size"]) == ("cpu", "8")


def test_over_http_nothing_is_accelerated() -> None:
    said = values(over_http(STORAGE))
    assert not {"accelerated", "type", "nixl_buffer_size"} & said.keys()
    assert said["save_unfull_chunk"] == "false", "dynamic mode wants that"


def test_keys_are_quoted_and_left_out_when_there_are_none() -> None:
    said = values(accelerated(STORAGE, Buffer(1, 1)))
    assert json.loads(said["access_key"]) == "12345"
    assert json.loads(said["secret_key"]) == 'a: "b" #c'
    without = accelerated(Storage(endpoint="http://a", bucket="b"), Buffer(1, 1))
    assert not {"access_key", "secret_key"} & values(without).keys()
    assert "AWS_SECRET_ACCESS_KEY" in without


@pytest.mark.parametrize("context", [0, -5])
def test_no_context_is_refused(context: int) -> None:
    with pytest.raises(ValueError, match=f"context {context}: must be at least 1 token"):
        buffer_for(PRESETS["Llama-3.1-8B"], context)


def test_an_object_that_no_registration_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="a chunk of 65536 tokens is 8589934592 bytes, and 4294901760 can be"):
        buffer_for(KvModel("m", 32, 8, 128), 100, chunk_size=65536)


@pytest.mark.parametrize(
    ("given_url", "wanted"),
    [
        ("http://storage:9000", "http://storage:9000"),
        ("http://storage:9000/", "http://storage:9000"),
        ("https://s3.example.com", "https://s3.example.com"),
        ("http://[::1]:9000", "http://[::1]:9000"),
    ],
)
def test_endpoints(given_url: str, wanted: str) -> None:
    assert endpoint_of(given_url) == wanted


@pytest.mark.parametrize(
    "url",
    ["storage:9000", "ftp://a", "http://", "http://a:port", "http://a:99999", "http://a/b", "http://a?b", "http://[x"],
)
def test_what_is_no_endpoint_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is no http://HOST:PORT"):
        endpoint_of(url)


@pytest.mark.parametrize("url", ["http://key:secret@a", "http://a b", "http://a\n:1"])
def test_an_endpoint_that_would_break_the_document_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"is no http://|do not belong"):
        endpoint_of(url)
