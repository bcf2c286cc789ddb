"""Extension package for models that generate pictures and sounds as tokens: layouts, decoders, server routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_mmout.lazy import lazy_names
from vllm_mmout.wing import Wing

if TYPE_CHECKING:
    from vllm_mmout.wings.tokens.layouts import Medium, TokenLayout
    from vllm_mmout.wings.tokens.processors.base import TokenProcessor
    from vllm_mmout.wings.tokens.processors.codec_audio import CodecAudioProcessor
    from vllm_mmout.wings.tokens.processors.vq_image import VQImageProcessor

__all__ = ["WING", "CodecAudioProcessor", "Medium", "TokenLayout", "TokenProcessor", "VQImageProcessor"]

WING = Wing(
    name="tokens",
    output_processors={
        "vq_image": "vllm_mmout.wings.tokens.processors.vq_image:VQImageProcessor",
        "codec_audio": "vllm_mmout.wings.tokens.processors.codec_audio:CodecAudioProcessor",
    },
    hooks="vllm_mmout.wings.tokens.engine.hooks:TOKEN_HOOKS",
    configure="vllm_mmout.wings.tokens.guided.configure:configure",
    routes="vllm_mmout.wings.tokens.serving.extension:TokenRoutes",
)

_HOMES = {
    "vllm_mmout.wings.tokens.layouts": "Medium TokenLayout",
    "vllm_mmout.wings.tokens.processors.base": "TokenProcessor",
    "vllm_mmout.wings.tokens.processors.codec_audio": "CodecAudioProcessor",
    "vllm_mmout.wings.tokens.processors.vq_image": "VQImageProcessor",
}
"""Dict from a module's import path to the public names that the module defines, separated by spaces.

A module is imported when a name that it defines is first used.
"""

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
