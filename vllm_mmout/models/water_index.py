"""WaterIndex: the embedded model on vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from vllm_mmout.models.mapper import RasterMapper
from vllm_mmout.models.single_pass import SinglePassDummyInputs, SinglePassInfo, SinglePassModel, SinglePassProcessor
from vllm_mmout.models.water_index_net import WaterIndexNet
from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY, MULTIMODAL_OUTPUT_REGISTRY

ARCHITECTURE = "WaterIndex"


def _mapper(config: Mapping[str, Any]) -> RasterMapper:
    return RasterMapper("water-index", tuple(config["bands"]), config["max_size"])


@MULTIMODAL_OUTPUT_REGISTRY.register_output_processor("vllm_mmout.processors.segmentation:SegmentationProcessor")
@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(_mapper)
@MULTIMODAL_INPUT_REGISTRY.register_processor(
    SinglePassProcessor, info=SinglePassInfo, dummy_inputs=SinglePassDummyInputs
)
class WaterIndex(SinglePassModel):
    """Water by MNDWI (Xu 2006): takes six bands [6, height, width], gives logits of land and water."""

    def build(self, config: Mapping[str, Any]) -> nn.Module:
        """The network; its weights come from the folder."""
        return WaterIndexNet(config)
