"""The decoder that benchmarks/event_loop.py measures: two float maps become a picture file."""

from __future__ import annotations

import io
from typing import Any

import torch
from PIL import Image

from vllm_mmout import OutputParams, OutputProcessor


class LogitsToPNG(OutputProcessor):
    """Softmax of [2, height, width] logits, as a grey PNG; all of the logits travel, as nothing is reduced."""

    modality = "image"

    def decode(self, raw: Any, params: OutputParams, state: Any = None) -> bytes:
        """The file's bytes."""
        grey = (torch.softmax(raw, 0)[1] * 255).round().to(torch.uint8).numpy()
        file = io.BytesIO()
        Image.fromarray(grey).save(file, "PNG")
        return file.getvalue()
