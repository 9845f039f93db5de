"""vLLM on a CPU with a tiny Llama of random weights, and a tokenizer whose tokens are the 256 bytes."""

import time
from typing import Any

import cases
from cases import case, emit


@case
def model(_: Any, folder: str) -> dict[str, Any]:
    """Make the model; the same on every machine for the same torch. Weights are wide, so that outputs differ."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = ["<s>", "</s>", "<pad>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: n for n, token in enumerate(special + letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    bos, eos, pad = special
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token=eos, pad_token=pad).save_pretrained(
        folder
    )
    torch.manual_seed(20)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return {"parameters": sum(p.numel() for p in LlamaForCausalLM(config).parameters())}


@case
def generate(endpoint: Any, bucket: str, folder: str, transfer: dict[str, Any] | None, tokens: int) -> dict[str, Any]:
    """One prompt of `tokens` tokens, greedily 16 more. Returns once the bucket has not changed for three seconds."""
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    began = time.monotonic()
    options = {"kv_transfer_config": KVTransferConfig(**transfer)} if transfer else {}
    llm = LLM(
        model=folder,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=2048,
        max_num_seqs=4,
        max_num_batched_tokens=2048,
        block_size=64,
        **options,
    )
    emit({"event": "ready", "seconds": round(time.monotonic() - began, 1)})
    prompt = "".join(chr(97 + (n * n + n // 7) % 26) for n in range(tokens))
    greedy = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    done = llm.generate([prompt], greedy)[0]
    if transfer:
        settle(endpoint, bucket)
    return {
        "prompt": len(done.prompt_token_ids),
        "cached": done.num_cached_tokens,
        "ids": list(done.outputs[0].token_ids),
    }


def settle(endpoint: Any, bucket: str) -> None:
    import boto3

    s3 = boto3.client("s3", endpoint_url=endpoint.url)
    held, since, deadline = -1, time.monotonic(), time.monotonic() + 60
    while time.monotonic() - since < 3 and time.monotonic() < deadline:
        now = s3.list_objects_v2(Bucket=bucket)["KeyCount"]
        if now != held:
            held, since = now, time.monotonic()
        time.sleep(0.25)


if __name__ == "__main__":
    cases.main(leave_at_once=True)
