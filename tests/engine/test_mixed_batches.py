"""The last of vLLM's faults: a batch whose tiles differ. Shown on vLLM's own batching, and harmless with our inputs.

Tiles that differ in shape reach the model as a list; shared fields that differ overwrite each other; tiles that differ
in dtype cannot be stacked, which ends the engine core.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vllm_mmout import OutputParams

pytestmark = pytest.mark.engine

RNG = np.random.default_rng(11)
TENSOR = OutputParams(processor="tensor")


def image(height, width, dtype):
    """A picture [6, height, width]; floats are reflectances, integers ten thousand times as much."""
    numbers = RNG.integers(1, 200, (6, height, width))
    return (numbers / 10_000).astype(dtype) if np.dtype(dtype).kind == "f" else numbers.astype(dtype)


def arrays(results):
    return [result.outputs.array for result in results]


def batched(*items):
    """What vLLM's worker gives a raw-input model for these requests of one step."""
    from types import SimpleNamespace

    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    runner = SimpleNamespace(is_multimodal_raw_input_only_model=True, device="cpu")
    requests = [
        SimpleNamespace(mm_features=[SimpleNamespace(modality="image", data=item) for item in items["image"]])
        for items in items
    ]
    return GPUModelRunner._extract_mm_kwargs(runner, SimpleNamespace(scheduled_new_reqs=requests))


def items_of(field, **tensors):
    from vllm.multimodal.inputs import MultiModalKwargsItems

    return MultiModalKwargsItems.from_hf_inputs(tensors, dict.fromkeys(tensors, field))


def test_batches_of_different_shapes_in_vllm():
    """Tensors that are alike reach the model stacked, those that differ in shape as a plain list."""
    from vllm.multimodal.inputs import MultiModalFieldConfig

    field = MultiModalFieldConfig.batched("image")
    alike = batched(items_of(field, x=torch.ones(1, 2, 3)), items_of(field, x=torch.ones(1, 2, 3)))
    assert alike["x"].shape == (2, 2, 3)
    different = batched(items_of(field, x=torch.ones(1, 2, 3)), items_of(field, x=torch.ones(1, 3, 2)))
    assert isinstance(different["x"], list)


def test_shared_fields_overwrite_each_other_in_vllm():
    """Of requests whose shared fields differ, vLLM keeps the tensors of the last alone."""
    from vllm.multimodal.inputs import MultiModalFieldConfig

    field = MultiModalFieldConfig.shared("image", 1)
    kept = batched(items_of(field, x=torch.zeros(2)), items_of(field, x=torch.ones(2)))
    assert kept["x"].tolist() == [1, 1]


@pytest.mark.parametrize("first", ["int16", "uint16"])
def test_batches_of_different_dtypes_in_vllm(first):
    """Tensors of one shape and several dtypes vLLM cannot stack: the exception is the engine core's."""
    from vllm.multimodal.inputs import MultiModalFieldConfig

    field = MultiModalFieldConfig.batched("image")
    tensors = [torch.ones(1, 2, dtype=getattr(torch, first)), torch.ones(1, 2)]
    with pytest.raises((RuntimeError, TypeError), match=r"cast|Promotion"):
        batched(*(items_of(field, x=tensor) for tensor in tensors))


def test_what_we_send_is_left_alone_by_vllm():
    """Our inputs have no shared field and reach the model one by one, whatever their shapes and dtypes."""
    from vllm.multimodal.inputs import MultiModalSharedField

    from vllm_mmout.models.inputs.engine_input import as_mm_input

    sent = [image(8, 8, np.uint16), image(8, 8, np.float32), image(8, 9, np.uint16), image(8, 8, np.uint16)]
    items = [as_mm_input({"pixel_values": data}, ("pixel_values",))["mm_kwargs"] for data in sent]
    fields = [elem.field for item in items for elem in item["image"][0].values()]
    assert not any(isinstance(field, MultiModalSharedField) for field in fields)
    (received,) = batched(*items).values()
    for data, (tensor,) in zip(sent, received, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), data, strict=True)


MIXED = [
    *((16, 16, dtype) for dtype in (np.uint16, np.float32, np.int16, np.uint8)),
    *((height, width, np.uint16) for height, width in ((16, 16), (16, 17), (17, 16), (16, 16))),
]


def test_a_batch_of_different_shapes_and_dtypes(llm):
    """On a bound engine each of a batch gets the result that it gets alone, bit for bit."""
    inputs = [image(*how) for how in MIXED]
    together = arrays(llm.generate(inputs, TENSOR, use_tqdm=False))
    alone = [llm.generate(data, TENSOR, use_tqdm=False)[0].outputs.array for data in inputs]
    for array, expected in zip(together, alone, strict=True):
        np.testing.assert_array_equal(array, expected, strict=True)


def test_a_batch_of_different_shapes_through_processes(mp_llm):
    """The same behind process boundaries, for all that are reduced too."""
    inputs = [image(*how) for how in MIXED] * 2
    params = [TENSOR] * len(MIXED) + [OutputParams(processor="segmentation")] * len(MIXED)
    together = arrays(mp_llm.generate(inputs, params, use_tqdm=False))
    alone = [
        mp_llm.generate(data, param, use_tqdm=False)[0].outputs.array
        for data, param in zip(inputs, params, strict=True)
    ]
    for array, expected in zip(together, alone, strict=True):
        np.testing.assert_array_equal(array, expected, strict=True)


def test_raw_tensors_of_different_shapes(mp_llm):
    """``LLM.encode``, whose requests are not marked, gives each its own raw tensor too."""
    inputs = [image(*how) for how in MIXED]
    together = mp_llm.encode(
        [{"prompt_token_ids": [1], "multi_modal_data": {"image": data}} for data in inputs],
        pooling_task="plugin",
        use_tqdm=False,
    )
    decoded = mp_llm.generate(inputs, TENSOR, use_tqdm=False)
    for result, expected in zip(together, arrays(decoded), strict=True):
        np.testing.assert_array_equal(result.outputs.data.numpy(), expected, strict=True)
