"""The hand-written model with an output processor of this package."""

from __future__ import annotations

from handwritten_model import ByHand, Dummy, Info, Processor
from vllm.multimodal import MULTIMODAL_REGISTRY

from vllm_mmout import OutputProcessor, RasterOutput, register_output_processor


class Sums(OutputProcessor):
    """The sums as a raster of one band."""

    def decode(self, raw, params, state=None):
        return RasterOutput(raw.numpy().copy(), band_names=("sums",))


@register_output_processor(Sums)
@MULTIMODAL_REGISTRY.register_processor(Processor, info=Info, dummy_inputs=Dummy)
class HandWrittenDecoded(ByHand):
    """Registered with vLLM; decoded by us."""
