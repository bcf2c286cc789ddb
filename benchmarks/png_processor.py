"""The output processor that benchmarks/event_loop.py measures, which encodes two float maps as a PNG."""

from __future__ import annotations

import io
from typing import Any

import torch
from PIL import Image

from vllm_mmout import OutputParams, OutputProcessor


class LogitsToPNG(OutputProcessor):
    """A processor of logits [2, height, width]: all logits leave the model, and their softmax becomes a grey PNG."""

    modality = "image"

    def decode(self, raw: Any, params: OutputParams, state: Any = None) -> bytes:
        """Return the bytes of the PNG file."""
        grey = (torch.softmax(raw, 0)[1] * 255).round().to(torch.uint8).numpy()
        file = io.BytesIO()
        Image.fromarray(grey).save(file, "PNG")
        return file.getvalue()
