"""Base class of output processors that use the transformers processors in the model's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.processors.option_values import Labels, ModelClass
from vllm_mmout.wings.transformers.heads import folder_of
from vllm_mmout.wings.transformers.loading import image_processor_of, processor_of


class OfFolder(OutputProcessor):
    """Output processor that uses the transformers processors and the class names in the model's folder."""

    _folder = ""
    _labels = Labels()

    @property
    def model_classes(self) -> Sequence[ModelClass]:
        """The classes that the model's ``config.json`` names."""
        return self._labels.classes

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Create the processor for the model whose ``config.json`` is ``config``."""
        processor = cast("Self", super().from_config(config, options))
        processor._folder, processor._labels = folder_of(config), Labels().or_those_of(config)  # noqa: SLF001 - own class
        return processor

    @property
    def image_processor(self) -> Any:
        """The transformers image processor in the model's folder."""
        return image_processor_of(self._folder)

    @property
    def processor(self) -> Any:
        """The transformers processor in the model's folder, which prepares pictures together with prompts."""
        return processor_of(self._folder)
