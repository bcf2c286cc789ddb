"""Hold the output processors and limits of an engine whose model generates pictures or sounds as tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import msgspec
from vllm.config import VllmConfig

from vllm_mmout.engine.binding import EngineBinding
from vllm_mmout.engine.settings import EngineSettings
from vllm_mmout.errors import OptionError
from vllm_mmout.params import OutputParams
from vllm_mmout.registry.choice import Choice
from vllm_mmout.wings.tokens.engine.batcher import MediaBatcher
from vllm_mmout.wings.tokens.engine.growing_pictures import GrowingPictures
from vllm_mmout.wings.tokens.engine.growing_sounds import GrowingSounds
from vllm_mmout.wings.tokens.guided.admission import GUIDED, check_output_and_grid
from vllm_mmout.wings.tokens.guided.configure import is_guiding, why_not
from vllm_mmout.wings.tokens.processors.base import TokenProcessor
from vllm_mmout.wings.tokens.processors.codec_audio import CodecAudioProcessor

FOLDER = "_name_or_path"
"""Config key for the path of the model's folder. Relative decoder paths are resolved against this folder."""
NONE = "none"
"""Value of ``OutputParams.output`` for requests whose picture and sound tokens stay in the text and are not decoded."""
_NOT_CONFIGURED = "the engine's config was not made by EngineArgs, which adds the logits processor"
_KNOWN = frozenset({"processor", "output", "sampling", "grid"})
"""Request options that every token-generating model accepts. An output processor may accept more."""


@dataclass(frozen=True)
class TokenBinding(EngineBinding):
    """Output processors and limits of one engine whose model generates pictures or sounds as tokens."""

    processors: Mapping[str, TokenProcessor]
    """Output processors by name. The first is the default."""
    max_model_len: int
    """Maximum length of a prompt plus its answer, in tokens."""
    unguided: str | None
    """Reason why this engine cannot force answers to contain only complete pictures or sounds. None if it can."""

    generates: ClassVar[bool] = True
    async_llm: ClassVar[str] = "vllm_mmout.wings.tokens.engine.async_llm:BoundTokenAsyncLLM"
    llm_engine: ClassVar[str] = "vllm_mmout.wings.tokens.engine.llm:BoundTokenEngine"
    llm: ClassVar[str] = "vllm_mmout.wings.tokens.engine.llm:BoundTokenLLM"
    output_processor: ClassVar[str] = "vllm_mmout.wings.tokens.engine.routed:TokenOutputProcessor"

    @classmethod
    def make(
        cls, vllm_config: VllmConfig, choice: Choice, config: Mapping[str, Any], model: str, *, in_process: bool
    ) -> Self:
        """Create the object that holds an engine's output processors, and load their decoders."""
        processors: Any = choice.create({**config, FOLDER: vllm_config.model_config.model})
        for processor in processors.values():
            processor.load()
        settings = EngineSettings.from_mapping(choice.settings)
        unguided = None if is_guiding(vllm_config) else why_not(vllm_config) or _NOT_CONFIGURED
        return cls(model, processors, settings, choice, vllm_config.model_config.max_model_len, unguided)

    def pick(self, params: OutputParams) -> str:
        """Return the name of the output processor that a request selects."""
        return self.choice.pick(params.processor)[0]

    def prepare(self, params: OutputParams) -> None:
        """Prepare to decode sounds in chunks if the request asks for chunks. The first call blocks to test the decoder.

        Raises:
            OptionError: the decoder cannot decode in chunks.

        """
        processor = self.processors[self.pick(params)]
        if params.chunk_seconds is not None and isinstance(processor, CodecAudioProcessor):
            processor.chunking()

    def growing(
        self, params: OutputParams, batcher: MediaBatcher, settled: Callable[[], None]
    ) -> GrowingSounds | GrowingPictures | None:
        """Return a decoder of previews or sound chunks for an unfinished answer.

        Return None if ``params`` ask for neither previews nor chunks. ``settled`` is called in any thread whenever a
        picture or sound has been decoded.
        """
        processor = self.processors[self.pick(params)]
        if params.chunk_seconds is not None and isinstance(processor, CodecAudioProcessor):
            return GrowingSounds(processor, params, batcher, settled)
        rows = _rows(params, processor)
        return GrowingPictures(rows, params, batcher, settled) if params.partial_images and rows else None

    def check_params(self, params: OutputParams) -> None:
        """Raise an OptionError if this model does not support an option of a request."""
        picks = self.choice.pick(params.processor)
        if len(picks) > 1:
            raise OptionError(
                f"{self.model} generates tokens, which only one processor can decode; name one, not {list(picks)}",
                param="processor",
            )
        processor = self.processors[picks[0]]
        choices = (*processor.outputs, *GUIDED, NONE)
        if params.output is not None and params.output not in choices:
            raise OptionError(
                f"output processor {picks[0]!r} has no output {params.output!r} (known: {', '.join(choices)})",
                param="output",
            )
        check_output_and_grid(params, processor.layout, self.unguided)
        if params.partial_images and "partial_images" in processor.honours and not _rows(params, processor):
            raise OptionError(
                f"partial_images needs the number of rows in advance, but {self.model} may write any number; set grid"
                " in its layout or in the request, or leave partial_images out",
                param="partial_images",
            )
        supported, defaults = _KNOWN | processor.honours, OutputParams()
        for option in msgspec.structs.fields(OutputParams):
            name = option.name
            if name not in supported and getattr(params, name) != getattr(defaults, name):
                raise OptionError(
                    f"{name} is not for {self.model}, which generates tokens; leave it out (known here:"
                    f" {', '.join(sorted(supported))})",
                    param=name,
                )


def _rows(params: OutputParams, processor: TokenProcessor) -> int | None:
    """Return how many rows of codes a picture of the request will have, or None if that is unknown in advance."""
    grid = params.grid or processor.layout.grid
    return None if grid is None else grid[0]
