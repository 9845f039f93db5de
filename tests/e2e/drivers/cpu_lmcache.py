"""LMCache's connector of vLLM for a machine without a GPU.

Everything is vLLM's and LMCache's own except the copy between the KV cache of vLLM and the chunks of LMCache, for which
LMCache has GPU code only; here it is a plain tensor copy. Named by `kv_connector` and `kv_connector_module_path`.
"""

from collections.abc import Iterable
from typing import Any

import lmcache.v1.gpu_connector
import torch
from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface
from vllm.distributed.kv_transfer.kv_connector.v1.lmcache_connector import LMCacheConnectorV1


class PagedCopy(GPUConnectorInterface):
    """A chunk is [2, layers, tokens, heads x head size]; a layer of vLLM's KV cache is [blocks, heads, tokens of a
    block, 2 x head size], keys before values."""

    def __init__(self, kv_shape: tuple[int, ...]) -> None:
        self.layers, _, _, self.heads, self.head_size = kv_shape
        self.kvcaches = None

    def get_shape(self, num_tokens: int) -> torch.Size:
        return torch.Size((2, self.layers, num_tokens, self.heads * self.head_size))

    def to_gpu(self, memory_obj: Any, start: int, end: int, **arguments: Any) -> None:
        """Leaves alone what vLLM has itself: the first `vllm_cached_tokens` tokens of the prompt."""
        skip = min(end - start, max(0, arguments.get("vllm_cached_tokens", 0) - start))
        for kept, (layer, block, row) in self._places(memory_obj, start + skip, end, skip, arguments):
            layer[block, :, row] = torch.cat(tuple(kept), dim=-1)

    def from_gpu(self, memory_obj: Any, start: int, end: int, **arguments: Any) -> None:
        for kept, (layer, block, row) in self._places(memory_obj, start, end, 0, arguments):
            for here, there in zip(kept, layer[block, :, row].split(self.head_size, dim=-1), strict=True):
                here.copy_(there)

    def batched_to_gpu(self, memory_objs: Any = None, starts: Any = None, ends: Any = None, **arguments: Any) -> None:
        for chunk in zip(memory_objs, starts, ends, strict=True):
            self.to_gpu(*chunk, **arguments)

    def batched_from_gpu(self, memory_objs: Any, starts: Any, ends: Any, **arguments: Any) -> None:
        for chunk in zip(memory_objs, starts, ends, strict=True):
            self.from_gpu(*chunk, **arguments)

    def _places(
        self, memory_obj: Any, start: int, end: int, skip: int, arguments: dict[str, Any]
    ) -> Iterable[tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]:
        """For each layer: keys and values of the chunk's tokens from `skip` on, as [2, tokens, heads, head size], and
        the layer's cache with the block and the row in it of each of these tokens."""
        self.initialize_kvcaches_ptr(**arguments)
        slots = arguments["slot_mapping"][start:end].long()
        for number, layer in enumerate(self.kvcaches):
            kept = memory_obj.tensor[:, number, skip:].unflatten(-1, (self.heads, self.head_size))
            rows = layer.shape[2]
            yield kept, (layer, slots // rows, slots % rows)


def paged_copy(_: Any, metadata: Any, *__: Any, **___: Any) -> PagedCopy:
    return PagedCopy(metadata.kv_shape)


class LMCacheConnectorV1OnCpu(LMCacheConnectorV1):
    """vLLM makes one in each of its processes."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        lmcache.v1.gpu_connector.CreateGPUConnector = paged_copy
        super().__init__(*arguments, **named)
