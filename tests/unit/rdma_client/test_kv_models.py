"""The sizes of KV caches: the published figures, and what holds for any shape."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3verbs.rdma.client.kv_models import PRESETS, KvModel, parse


def test_the_published_figures_of_llama_8b() -> None:
    model = PRESETS["Llama-3.1-8B"]
    assert model.bytes_per_token() == 131_072
    assert model.object_bytes(256) == 32 << 20
    assert 64_000 // 256 * model.object_bytes(256) == 250 * (32 << 20)


def test_the_published_size_of_llama_405b_at_128k_tokens() -> None:
    assert int(128_000 * PRESETS["Llama-3.1-405B"].bytes_per_token() / (1 << 30)) == 61


@given(st.sampled_from(sorted(PRESETS)), st.sampled_from([1, 2, 4]), st.integers(1, 1024))
def test_workers_share_the_cache(name: str, tp: int, chunk: int) -> None:
    model = PRESETS[name]
    assert tp * model.object_bytes(chunk, tp) == chunk * model.bytes_per_token()


def test_more_workers_than_heads_hold_copies() -> None:
    model = PRESETS["Qwen3-Coder-30B-A3B"]
    assert model.bytes_per_token(4) == model.bytes_per_token(8) == model.bytes_per_token(16) == 48 * 2 * 128 * 2


@pytest.mark.parametrize("tp", [0, -1, 3, 12])
def test_a_split_that_no_engine_runs_is_refused(tp: int) -> None:
    with pytest.raises(ValueError, match=f"tp {tp}: does not divide 8 KV heads"):
        PRESETS["Llama-3.1-8B"].bytes_per_token(tp)


@pytest.mark.parametrize(
    "text", ["Llama-3.1-8B", "llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", "RedHatAI/Llama-3.1-8B-Instruct-FP8"]
)
def test_a_preset_is_found_by_the_names_people_type(text: str) -> None:
    assert parse(text) is PRESETS["Llama-3.1-8B"]


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 512), st.sampled_from([("fp16", 2), ("fp8", 1)]))
def test_numbers_make_a_model(layers: int, heads: int, dim: int, dtype: tuple[str, int]) -> None:
    text = f"layers={layers},kv_heads={heads}, head-dim={dim},dtype={dtype[0]}"
    assert parse(text) == KvModel(text, layers, heads, dim, dtype[1])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Llama-3.1-80B", "is no model known here: Llama-3.1-8B, "),
        ("", "is no model known here"),
        ("layers=32", "head-dim, kv-heads is missing"),
        ("layers=32,kv-heads=8,head-dim=x", "are whole numbers"),
        ("layers=32,kv-heads=8,head-dim=128,dtype=int3", "dtype 'int3': must be one of fp16"),
        ("layers=0,kv-heads=8,head-dim=128", "layers 0: must be at least 1"),
        ("layers=1,layers=2,kv-heads=8,head-dim=128", "'layers' is given twice or unknown"),
        ("heads=1", "'heads' is given twice or unknown"),
    ],
)
def test_what_is_no_model_is_refused_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text)


def test_a_chunk_has_at_least_a_token() -> None:
    with pytest.raises(ValueError, match="chunk-size 0"):
        PRESETS["Llama-3.1-8B"].object_bytes(0)
