"""`OfFolder`: base class for output processors that use the processor of the model's folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, cast

from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.processors.option_values import Labels
from vllm_mmout.wings.transformers.heads import folder_of
from vllm_mmout.wings.transformers.loading import image_processor_of, processor_of


class OfFolder(OutputProcessor):
    """Output processor that knows the model's folder, and the class names in its ``config.json``."""

    _folder = ""
    _labels = Labels()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Create the instance of a process."""
        processor = cast("Self", super().from_config(config, options))
        processor._folder, processor._labels = folder_of(config), Labels().or_those_of(config)  # noqa: SLF001 - own class
        return processor

    @property
    def image_processor(self) -> Any:
        """The folder's image processor."""
        return image_processor_of(self._folder)

    @property
    def processor(self) -> Any:
        """The folder's processor of pictures and prompts."""
        return processor_of(self._folder)
