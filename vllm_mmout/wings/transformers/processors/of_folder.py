"""OfFolder: what output processors have in common that ask the processor of the model's folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, cast

from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.processors.option_values import Labels
from vllm_mmout.wings.transformers.heads import folder_of
from vllm_mmout.wings.transformers.loading import image_processor_of, processor_of


class OfFolder(OutputProcessor):
    """Knows the folder, and the names of its ``config.json``."""

    _folder = ""
    _labels = Labels()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Make the instance of a process."""
        made = cast("Self", super().from_config(config, options))
        made._folder, made._labels = folder_of(config), Labels().or_those_of(config)  # noqa: SLF001 - of our own class
        return made

    @property
    def image_processor(self) -> Any:
        """The folder's image processor."""
        return image_processor_of(self._folder)

    @property
    def processor(self) -> Any:
        """The folder's processor of pictures and what is said beside them."""
        return processor_of(self._folder)
