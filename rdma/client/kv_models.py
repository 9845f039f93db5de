"""The KV cache of a model in bytes: per token, and per object of a chunk of tokens as LMCache stores it.

Pure arithmetic. The shapes of the presets are those of the models' own config.json (num_hidden_layers,
num_key_value_heads, head_dim); the formula is the one that LMCache's NIXL recipes publish.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

DTYPES: Mapping[str, int] = MappingProxyType(
    {
        "fp16": 2,
        "float16": 2,
        "half": 2,
        "bf16": 2,
        "bfloat16": 2,
        "fp8": 1,
        "fp8_e4m3": 1,
        "fp8_e5m2": 1,
        "int8": 1,
        "fp32": 4,
        "float32": 4,
        "float": 4,
    }
)
"""Bytes of one element of the cache, by the names that vLLM and torch use."""

CHUNK_SIZE = 256
"""Tokens in a chunk, LMCache's default: one object each."""


SHAPE = ("layers", "kv_heads", "head_dim")
"""The numbers of a model, as fields of KvModel."""


@dataclass(frozen=True, slots=True)
class KvModel:
    """What the size of a model's KV cache follows from. `kv_heads` is of the whole model, before it is split."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    dtype_bytes: int = 2

    def __post_init__(self) -> None:
        for field in (*SHAPE, "dtype_bytes"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field.replace('_', '-')} {getattr(self, field)}: must be at least 1")

    def bytes_per_token(self, tp: int = 1) -> int:
        """Bytes of keys and values that one of `tp` tensor-parallel workers holds for a token.

        With more workers than heads each has one head, a copy. Raises ValueError when neither number divides the
        other, which no engine runs.
        """
        if tp < 1 or (self.kv_heads % tp and tp % self.kv_heads):
            raise ValueError(f"tp {tp}: does not divide {self.kv_heads} KV heads, nor is it a multiple of them")
        return self.layers * 2 * max(1, self.kv_heads // tp) * self.head_dim * self.dtype_bytes

    def object_bytes(self, chunk_size: int = CHUNK_SIZE, tp: int = 1) -> int:
        """Bytes of the object that one worker stores for a full chunk of `chunk_size` tokens."""
        if chunk_size < 1:
            raise ValueError(f"chunk-size {chunk_size}: must be at least 1")
        return chunk_size * self.bytes_per_token(tp)


PRESETS: Mapping[str, KvModel] = MappingProxyType(
    {
        model.name: model
        for model in (
            KvModel("Llama-3.1-8B", layers=32, kv_heads=8, head_dim=128),
            KvModel("Llama-3.1-405B", layers=126, kv_heads=8, head_dim=128),
            KvModel("Qwen3-Coder-30B-A3B", layers=48, kv_heads=4, head_dim=128),
        )
    }
)
"""All with two bytes an element (fp16, bf16)."""


def parse(text: str) -> KvModel:
    """A preset by its name, in any case, with or without the organisation and a suffix such as -Instruct
    (`meta-llama/Llama-3.1-8B-Instruct`); or numbers: `layers=32,kv-heads=8,head-dim=128[,dtype=bf16]`.

    Raises ValueError, whose text says what is allowed.
    """
    if "=" in text:
        return _from_numbers(text)
    wanted = text.rpartition("/")[2].lower()
    for name, model in PRESETS.items():
        if wanted == name.lower() or wanted.startswith(name.lower() + "-"):
            return model
    raise ValueError(
        f"{text!r} is no model known here: {', '.join(PRESETS)}, or layers=N,kv-heads=N,head-dim=N,dtype=T"
    )


def dtype_bytes(name: str) -> int:
    """Raises ValueError for a type that is not in DTYPES."""
    if name.lower() not in DTYPES:
        raise ValueError(f"dtype {name!r}: must be one of {', '.join(DTYPES)}")
    return DTYPES[name.lower()]


def _from_numbers(text: str) -> KvModel:
    given: dict[str, str] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        name = name.strip().lower().replace("_", "-")
        if name not in ("layers", "kv-heads", "head-dim", "dtype") or name in given:
            raise ValueError(
                f"{text!r}: {name!r} is given twice or unknown; known are layers, kv-heads, head-dim, dtype"
            )
        given[name] = value.strip()
    width = dtype_bytes(given.pop("dtype", "bf16"))
    if missing := {"layers", "kv-heads", "head-dim"} - given.keys():
        raise ValueError(f"{text!r}: {', '.join(sorted(missing))} is missing")
    try:
        layers, kv_heads, head_dim = (int(given[name]) for name in ("layers", "kv-heads", "head-dim"))
    except ValueError:
        raise ValueError(f"{text!r}: layers, kv-heads and head-dim are whole numbers") from None
    return KvModel(text, layers, kv_heads, head_dim, width)
