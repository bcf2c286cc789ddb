"""An IO Processor plugin of vLLM's, as somebody else's package brings it: it takes ``data`` of its own."""

from __future__ import annotations

from pathlib import Path

NAME = "doubling"
CODE = '''
import numpy as np
import torch
from vllm.plugins.io_processors.interface import IOProcessor


class Doubling(IOProcessor):
    """Makes an input of a number, and an answer of what the model gives for it, as it is."""

    def parse_data(self, data):
        if not isinstance(data, dict) or "number" not in data:
            raise ValueError("data has no number")
        return data["number"]

    def pre_process(self, prompt, request_id=None, **kwargs):
        pixels = np.full((6, 4, 4), prompt, np.uint8)
        return {"prompt_token_ids": [1], "multi_modal_data": {"image": pixels}}

    def post_process(self, model_output, request_id=None, **kwargs):
        data = model_output[0].outputs.data
        return {"plugins": True, "shape": list(data.shape), "tensor": isinstance(data, torch.Tensor)}


def register():
    return "doubling_code.Doubling"
'''


def install(folder: Path) -> Path:
    """Put it into a folder for ``PYTHONPATH``."""
    info = folder / "doubling-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "doubling_code.py").write_text(CODE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: doubling\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[vllm.io_processor_plugins]\n{NAME} = doubling_code:register\n")
    return folder
