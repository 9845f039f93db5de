"""vLLM's TieringOffloadingSpec for a machine without a GPU.

Everything is vLLM's own (scheduler side, CPU tier, secondary tiers) except the copy between the KV cache and the CPU
tier, for which vLLM has CUDA code only; here it is a plain tensor copy. Named by `spec_name` and `spec_module_path`.
"""

import time
from typing import Any

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CopyingWorker(OffloadingWorker):
    """Copies blocks at once, in the caller's thread. One block of the KV cache is one chunk of the CPU tier."""

    def __init__(self, kv_caches: Any, region: SharedOffloadRegion) -> None:
        self.region = region
        self.groups = kv_caches.group_data_refs
        self.cache = [held.tensor.view(torch.int8).view(-1, held.page_size_bytes) for held in kv_caches.tensors]
        self.host = [region.create_next_worker_view(held.page_size_bytes) for held in kv_caches.tensors]
        self.finished: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, src_spec, dst_spec, store=True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, dst_spec, src_spec, store=False)

    def _copy(self, job_id: int, blocks: Any, chunks: Any, *, store: bool) -> bool:
        began, moved, first = time.monotonic(), 0, 0
        for size, references in zip(blocks.group_sizes, self.groups, strict=True):
            pairs = zip(blocks.block_ids[first : first + size], chunks.block_ids[first : first + size], strict=True)
            for block, chunk in pairs:
                for reference in references:
                    here = self.cache[reference.tensor_idx][int(block), : reference.page_size_bytes]
                    there = self.host[reference.tensor_idx][int(chunk), : reference.page_size_bytes]
                    (there if store else here).copy_(here if store else there)
                    moved += reference.page_size_bytes
            first += size
        took = max(time.monotonic() - began, 1e-9)
        self.finished.append(TransferResult(job_id=job_id, success=True, transfer_size=moved, transfer_time=took))
        return True

    def get_finished(self) -> list[TransferResult]:
        finished, self.finished = self.finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is ever under way."""

    def shutdown(self) -> None:
        self.cache.clear()
        self.host.clear()
        self.region.cleanup()


class CpuTieringSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        if self._worker is None:
            if self.blocks_per_chunk != 1:
                raise ValueError("this copy needs chunks of one block: set block_size to the cache's own")
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = CopyingWorker(kv_caches, region)
        return self._worker
