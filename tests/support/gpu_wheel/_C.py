# ruff: noqa: FBT001, FBT002 - the signatures are vLLM's
"""Operators of vLLM's compiled module for CPUs, in PyTorch, for the tests on a release that has only a wheel for GPUs.

The wheel for GPUs has all of vLLM's Python, but `vllm._C` of its CPU platform is missing. ``scripts/setup.sh`` links
this file to the places from which vLLM imports that module. Only operators that the tests' models need are here.
An argument that no such model sets is refused.
"""

from itertools import pairwise

import torch
from torch.library import custom_op
from torch.nn.functional import scaled_dot_product_attention


def refuse(**arguments: object) -> None:
    """Raise an error that names the first argument that is set."""
    for name, value in arguments.items():
        if not (value is None or (isinstance(value, int | float | str) and value in {0, -1, "auto"})):
            raise NotImplementedError(
                f"{name} = {value!r} is left to vLLM's compiled operators; this one is in PyTorch"
            )


@custom_op("_C::init_cpu_memory_env", mutates_args=())
def init_cpu_memory_env(node_ids: list[int]) -> None:
    """Leave the memory where the system puts it. The compiled operator binds it to nodes of NUMA."""


@custom_op("_C::compute_slot_mapping_kernel_impl", mutates_args={"slot_mapping"})
def compute_slot_mapping_kernel_impl(
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    slot_mapping: torch.Tensor,
    block_size: int,
) -> None:
    """Write the slot of each token in the cache."""
    starts = query_start_loc.tolist()
    for request, (start, stop) in enumerate(pairwise(starts)):
        position = positions[start:stop].long()
        slot_mapping[start:stop] = block_table[request, position // block_size] * block_size + position % block_size


@custom_op("_C::get_scheduler_metadata", mutates_args=())
def get_scheduler_metadata(
    num_req: int,
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    seq_lens: torch.Tensor,
    dtype: torch.dtype,
    query_start_loc: torch.Tensor,
    casual: bool,
    window_size: int,
    isa_hint: str,
    enable_kv_split: bool,
    dynamic_causal: torch.Tensor | None,
    kv_cache_dtype: str = "auto",
) -> torch.Tensor:
    """Return nothing, since `cpu_attention_with_kv_cache` needs no plan of threads."""
    return torch.empty(0)


@custom_op("_C::cpu_attn_reshape_and_cache", mutates_args={"key_cache", "value_cache"})
def cpu_attn_reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    isa: str,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    kv_cache_dtype: str = "auto",
) -> None:
    """Write keys and values [token, head, channel] to their slots of the caches [block, head, slot, channel]."""
    refuse(kv_cache_dtype=kv_cache_dtype)
    (tokens,) = torch.nonzero(slot_mapping >= 0, as_tuple=True)
    slots, size = slot_mapping[tokens], key_cache.shape[2]
    for cache, new in ((key_cache, key), (value_cache, value)):
        cache[slots // size, :, slots % size] = new[tokens].to(cache.dtype)


@custom_op("_C::cpu_attention_with_kv_cache", mutates_args={"output"})
def cpu_attention_with_kv_cache(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    output: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    causal: bool,
    alibi_slopes: torch.Tensor | None,
    sliding_window_size: int,
    block_table: torch.Tensor,
    softcap: float,
    scheduler_metadata: torch.Tensor,
    s_aux: torch.Tensor | None,
    dynamic_causal: torch.Tensor | None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    kv_cache_dtype: str = "auto",
) -> None:
    """Write the attention of each request's new tokens [token, head, channel] to the request's cached tokens."""
    refuse(alibi_slopes=alibi_slopes, sliding_window_size=sliding_window_size, softcap=softcap, s_aux=s_aux)
    refuse(dynamic_causal=dynamic_causal, kv_cache_dtype=kv_cache_dtype)
    starts, size = query_start_loc.tolist(), key_cache.shape[2]
    for request, (start, stop) in enumerate(pairwise(starts)):
        length = int(seq_lens[request])
        blocks = block_table[request, : -(-length // size)].long()
        # [block, head, slot, channel] to [head, token, channel]
        keys, values = (
            cache[blocks].transpose(0, 1).flatten(1, 2)[:, :length].to(query.dtype)
            for cache in (key_cache, value_cache)
        )
        position = torch.arange(length)
        mask = position <= position[length - (stop - start) :, None] if causal else None
        output[start:stop] = (
            scaled_dot_product_attention(
                query[start:stop].transpose(0, 1), keys, values, attn_mask=mask, scale=scale, enable_gqa=True
            )
            .transpose(0, 1)
            .reshape(output[start:stop].shape)
        )


@custom_op("_C::rotary_embedding", mutates_args={"query", "key"})
def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> None:
    """Rotate the first channels of each head by angles of the tokens' positions."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    refuse(rope_dim_offset=rope_dim_offset, inverse=inverse)
    rotated = RotaryEmbedding.forward_static(
        positions, query, key, head_size, cos_sin_cache.shape[-1], cos_sin_cache, is_neox
    )
    for old, new in zip((query, key), rotated, strict=True):
        if old is not None:
            old.copy_(new)


@custom_op("_C::greedy_argmax", mutates_args=())
def greedy_argmax(logits: torch.Tensor) -> torch.Tensor:
    """Return the token with the largest logit of each request."""
    return logits.argmax(dim=-1)


@custom_op("_C::fused_gumbel_argmax", mutates_args=())
def fused_gumbel_argmax(logits: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    """Return a token for each request, drawn by Gumbel's trick with the request's seed."""
    noise = torch.empty_like(logits)
    for row, seed in zip(noise, seeds.tolist(), strict=True):
        row.exponential_(generator=torch.Generator().manual_seed(seed))
    return (logits - noise.log()).argmax(dim=-1)
