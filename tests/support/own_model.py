"""A model of one's own with two output processors, and engines of it, all in one process; answers in JSON.

``python own_model.py FOLDER`` writes model folders there and prints what each engine gave.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from vllm_mmout import (
    MULTIMODAL_INPUT_REGISTRY,
    MULTIMODAL_OUTPUT_REGISTRY,
    OutputParams,
    OutputProcessor,
    RasterOutput,
    register_output_processor,
)
from vllm_mmout.models.inputs.mapper import RasterMapper

PIXELS = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
"""Becomes depths 0, 0.5, 1, ... in the model."""


class FloodMask(OutputProcessor):
    """Where the water is deeper than a threshold."""

    modality = "raster"

    def __init__(self, *, threshold=1.0):
        self.threshold = threshold

    def reduce(self, output, params):
        return (output[:, 0] > self.threshold).to(torch.uint8)

    def decode(self, raw, params, state=None):
        return RasterOutput(raw.numpy()[None].copy(), nodata=255, class_names=("dry", "wet"))


class Report:
    """An object that no library knows."""

    def __init__(self, deepest):
        self.deepest = deepest


class FloodReport(OutputProcessor):
    """Says how deep the water is, as an object of the author's own."""

    def reduce(self, output, params):
        return {"deepest": output.amax(dim=(1, 2, 3)), "shape": torch.tensor([output.shape[2:]] * len(output))}

    def decode(self, raw, params, state=None):
        report = Report(float(raw["deepest"]))
        report.shape = raw["shape"].tolist()
        return report


@MULTIMODAL_OUTPUT_REGISTRY.register_processor(FloodReport, name="report")
@register_output_processor(FloodMask)
@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(lambda config: RasterMapper("flood-net", ("depth",), 64))
class FloodNet(nn.Module):
    """Depth is the pixel times a weight."""

    def __init__(self, config):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, pixel_values):
        return pixel_values * self.scale


def write_model(folder, **entries):
    """A model folder whose ``config.json`` has further entries."""
    from safetensors.torch import save_file

    folder.mkdir()
    config = {"architectures": ["FloodNet"], "model_type": "mmout", "dtype": "float32", **entries}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"scale": torch.tensor([0.5])}, folder / "model.safetensors")
    return str(folder)


def told(value):
    """A result as JSON can say it."""
    if isinstance(value, dict):
        return {name: told(one) for name, one in value.items()}
    if isinstance(value, Report):
        return {"kind": type(value).__name__, "deepest": value.deepest, "shape": value.shape}
    return {"kind": type(value).__name__, "array": value.array.tolist()}


def engine(model, table=None):
    """A small engine in this process."""
    from vllm import LLM

    config = {} if table is None else {"additional_config": {"mmout": table}}
    return LLM(model, gpu_memory_utilization=0.3, **config)


def bound(model, table=None):
    """What an engine says of itself, and what it gives for no pick, for each and for both."""
    llm = engine(model, table)
    binding = llm.llm_engine.output_processor.binding
    names = list(binding.processors)
    params = [OutputParams(), *(OutputParams(processor=name) for name in names), OutputParams(processor=names[::-1])]
    results = llm.generate([PIXELS] * len(params), params, use_tqdm=False)
    return {
        "names": names,
        "classes": [type(one).__name__ for one in binding.processors.values()],
        "chosen_by": binding.choice.chosen_by,
        "given": [told(result.outputs) for result in results],
    }


def switched_off(model, table):
    """What is left of an engine without output processor: vLLM's own."""
    from vllm import LLM
    from vllm.v1.engine.output_processor import OutputProcessor as VllmOutputProcessor

    llm = engine(model, table)
    try:
        llm.generate("a prompt", use_tqdm=False)
    except ValueError as error:
        refusal = str(error)
    prompt = {"prompt_token_ids": [1], "multi_modal_data": {"image": PIXELS}}
    (raw,) = llm.encode(prompt, pooling_task="plugin", use_tqdm=False)
    return {
        "own_class": type(llm) is LLM and type(llm.llm_engine.output_processor) is VllmOutputProcessor,
        "generate": refusal,
        "raw": raw.outputs.data.tolist(),
    }


def main(folder):
    """Run all engines, one after the other."""
    plain = write_model(folder / "plain")
    named = write_model(folder / "named", mmout={"output_processor": "report"})
    off = write_model(folder / "off", output_processor="none")
    return {
        "decorator": bound(plain),
        "config": bound(named),
        "argument": bound(named, {"output_processor": "FloodMask", "threshold": 3}),
        "option": bound(plain, {"threshold": 5}),
        "alias": bound(plain, {"output_processor": {"mask": "FloodMask", "raw": "tensor"}}),
        "off by argument": switched_off(plain, {"output_processor": "none"}),
        "off by config": switched_off(off, None),
    }


if __name__ == "__main__":
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    print("answer:", json.dumps(main(Path(sys.argv[1]))))  # noqa: T201
