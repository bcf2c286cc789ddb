"""TokenBinding: what an engine whose model generates media tokens knows beyond vLLM's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from vllm_mmout.engine.settings import EngineSettings
from vllm_mmout.errors import OptionError
from vllm_mmout.params import OutputParams
from vllm_mmout.processors.tokens import TokenProcessor

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from vllm_mmout.registry.choice import Choice

FOLDER = "_name_or_path"
"""Key of the config that processors get: the model's folder, which decoders' folders may be relative to."""
NONE = "none"
"""``OutputParams.output`` of requests whose tokens are left alone."""
_KNOWN = frozenset({"processor", "output", "sampling"})
"""Options of requests for tokens."""


@dataclass(frozen=True)
class TokenBinding:
    """The processors and settings of one bound engine."""

    model: str
    """Served name, for messages."""
    processors: Mapping[str, TokenProcessor]
    """By name, the default first."""
    settings: EngineSettings
    choice: Choice

    def pick(self, params: OutputParams) -> str:
        """Name of the processor that a request asks for."""
        return self.choice.pick(params.processor)[0]

    def check_params(self, params: OutputParams) -> None:
        """Check what a request asks of this model.

        Raises:
            OptionError: a processor does not exist here, there are several, an output is unknown, or an option is not
                for models that generate tokens.

        """
        picks = self.choice.pick(params.processor)
        if len(picks) > 1:
            raise OptionError(
                f"{self.model} generates tokens, of which one processor makes objects; name one, not {list(picks)}",
                param="processor",
            )
        choices = (*self.processors[picks[0]].outputs, NONE)
        if params.output is not None and params.output not in choices:
            raise OptionError(
                f"output processor {picks[0]!r} has no output {params.output!r} (known: {', '.join(choices)})",
                param="output",
            )
        plain = OutputParams()
        for option in msgspec.structs.fields(OutputParams):
            name = option.name
            if name not in _KNOWN and getattr(params, name) != getattr(plain, name):
                raise OptionError(
                    f"{name} is not for {self.model}, which generates tokens; leave it out (known here:"
                    f" {', '.join(sorted(_KNOWN))})",
                    param=name,
                )


def make_token_binding(vllm_config: VllmConfig, choice: Choice, config: Mapping[str, Any], model: str) -> TokenBinding:
    """Make the processors of a model that generates tokens, and load their decoders; before any process is started.

    Raises:
        OptionError: a processor takes tensors, or a decoder does not fit the layout.

    """
    made = choice.create({**config, FOLDER: vllm_config.model_config.model})
    processors = {name: one for name, one in made.items() if isinstance(one, TokenProcessor)}
    others = [name for name in made if name not in processors]
    if others:
        raise OptionError(
            f"model {vllm_config.model_config.model} generates tokens, and output processor {others[0]!r}"
            f" ({choice.chosen_by}) takes the tensors of models that answer in one forward: start it with"
            ' runner="pooling", name a processor of tokens ("vq_image", "codec_audio"), or set'
            ' additional_config={"mmout": {"output_processor": "none"}}'
        )
    for processor in processors.values():
        processor.load()
    return TokenBinding(model, processors, EngineSettings.from_mapping(choice.settings), choice)
