"""The operators in PyTorch, by which the tests run a release that has only a wheel for GPUs."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from vllm import _custom_ops as compiled

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        not hasattr(torch.ops._C, "create_onednn_mm_handler"), reason="this vLLM has no compiled operators"
    ),
]

FILE = Path(__file__).parents[1] / "support/gpu_wheel/_C.py"
HEADS, GROUPS, SIZE, BLOCK = 4, 2, 32, 32
LENGTHS, NEW = [3, 70, 40], [3, 65, 1]
"""Tokens of three requests, and how many of them are new."""


@pytest.fixture
def ours(monkeypatch):
    """The operators in PyTorch as plain functions, since vLLM's have the same names."""
    spec = spec_from_file_location("operators_in_pytorch", FILE)
    module = module_from_spec(spec)
    with monkeypatch.context() as patch:
        patch.setattr("torch.library.custom_op", lambda *_, **__: lambda function: function)
        spec.loader.exec_module(module)
    return module


def attended(operators, metadata, isa, *, causal):
    """Write all tokens of the requests to a cache, and return the attention of the new ones."""
    torch.manual_seed(1)
    cache = torch.zeros(8, GROUPS, 2 * BLOCK, SIZE)
    keys, values = cache.chunk(2, dim=2)
    table = torch.tensor([[5, 0, 0], [1, 7, 2], [6, 3, 0]], dtype=torch.int32)
    starts = torch.tensor([0, *LENGTHS], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    slots = torch.full((len(positions) + 2,), -1)
    torch.ops._C.compute_slot_mapping_kernel_impl(starts, positions, table, slots, BLOCK)
    key, value = torch.randn(2, len(slots), GROUPS, SIZE)
    operators.cpu_attn_reshape_and_cache(key, value, keys, values, slots, isa)
    query = torch.randn(sum(NEW), HEADS, SIZE)
    output = torch.zeros_like(query)
    starts = torch.tensor([0, *NEW], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    plan = metadata(len(NEW), HEADS, GROUPS, SIZE, lengths, torch.float32, starts, causal, -1, isa, False, None, "auto")
    operators.cpu_attention_with_kv_cache(
        query, keys, values, output, starts, lengths, 0.2, causal, None, -1, table, 0.0, plan, None, None
    )
    return output


@pytest.mark.parametrize("causal", [True, False])
def test_attention_is_that_of_the_compiled_operators(ours, causal):
    """Requests of several blocks, with tokens in the cache and without, get the attention of vLLM's own operators."""
    mine = attended(ours, ours.get_scheduler_metadata, "vec", causal=causal)
    theirs = attended(compiled, compiled.cpu_attn_get_scheduler_metadata, "vec", causal=causal)
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_slots_are_those_of_the_compiled_operator(ours):
    """Each token gets the slot of its position in its request's blocks, and what follows stays as it is."""
    table = torch.tensor([[4, 1], [2, 3]], dtype=torch.int32)
    starts, positions = torch.tensor([0, 3, 5], dtype=torch.int32), torch.tensor([30, 31, 32, 0, 1])
    mine, theirs = torch.zeros(2, 8, dtype=torch.int64)
    ours.compute_slot_mapping_kernel_impl(starts, positions, table, mine, BLOCK)
    torch.ops._C.compute_slot_mapping_kernel_impl(starts, positions, table, theirs, BLOCK)
    assert mine.tolist() == theirs.tolist() == [158, 159, 32, 64, 65, 0, 0, 0]


@pytest.mark.parametrize("is_neox", [True, False])
def test_rotation_is_that_of_the_compiled_operator(ours, is_neox):
    """Queries and keys are rotated in place, as by vLLM's own operator."""
    torch.manual_seed(2)
    positions, angles = torch.tensor([0, 5, 2]), torch.randn(6, SIZE // 2)
    cache = torch.cat([angles.cos(), angles.sin()], dim=-1)
    query, key = torch.randn(3, HEADS * SIZE), torch.randn(3, GROUPS * SIZE)
    theirs = query.clone(), key.clone()
    compiled.rotary_embedding(positions, *theirs, SIZE, cache, is_neox)
    ours.rotary_embedding(positions, query, key, SIZE, cache, is_neox)
    torch.testing.assert_close((query, key), theirs)


def test_tokens_are_drawn_as_often_as_they_are_likely(ours):
    """Greedy decoding takes the likeliest token, and drawing follows the probabilities and repeats with its seed."""
    chances = torch.tensor([0.6, 0.3, 0.1])
    logits, seeds = chances.log().repeat(4000, 1), torch.arange(4000)
    assert set(ours.greedy_argmax(logits).tolist()) == {0}
    drawn = ours.fused_gumbel_argmax(logits, seeds)
    torch.testing.assert_close(drawn.bincount() / 4000, chances, rtol=0, atol=0.03)
    assert torch.equal(drawn, ours.fused_gumbel_argmax(logits, seeds))


def test_an_argument_that_is_not_covered_is_refused(ours):
    """An option of attention that only the compiled operators have is an error that names it."""
    with pytest.raises(NotImplementedError, match=r"softcap = 2\.0 is left to vLLM's compiled operators"):
        ours.refuse(sliding_window_size=-1, softcap=2.0)
