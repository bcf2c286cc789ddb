"""Base class of output processors for models that generate pictures or sounds as tokens."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

from vllm_mmout.errors import OptionError
from vllm_mmout.params import OutputParams
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.processors.option_values import checked_count
from vllm_mmout.wings.tokens.layouts import Medium, TokenLayout
from vllm_mmout.wings.tokens.processors.prompt_template import PromptTemplate


class TokenProcessor(OutputProcessor):
    """Base class of output processors that decode pictures or sounds from tokens. Subclasses define ``decode_batch``.

    Nothing runs in the worker: ``reduce`` is not called. ``layout`` finds the codes among the output tokens. All other
    tokens stay text.

    Args:
        layout: layout of the media tokens, a `TokenLayout` or a mapping of its fields. None if the class has a layout.
        threads: number of torch threads while a decoder runs on the CPU. None keeps torch's own number.
        max_batch: maximum number of media that are decoded at once.
        batch_wait_ms: time that the first medium of a batch waits for others, in milliseconds.
        prompt: template of the text that a server puts around a client's text, see
            `vllm_mmout.wings.tokens.processors.prompt_template.PromptTemplate`. None adds no text.

    Raises:
        OptionError: an option is missing or malformed.

    """

    name: ClassVar[str]
    binding: ClassVar[str] = "vllm_mmout.wings.tokens.engine.binding:TokenBinding"
    modality: ClassVar[str] = "tensor"
    honours: ClassVar[frozenset[str]] = frozenset()
    """Fields of `OutputParams` that requests to this processor may set, besides the fields that all token-generating
    models accept."""
    layout: TokenLayout
    """Layout of the tokens that encode pictures or sounds."""
    max_batch: int = 8
    """Maximum number of pictures or sounds in one call of `decode_batch`."""
    batch_wait_s: float = 0.005
    """Time that the first picture or sound of a batch waits for others, in seconds."""
    threads: int | None = None
    """Number of CPU threads of torch while the decoder runs. None keeps torch's own number."""
    prompt: PromptTemplate | None = None
    """Template of prompts on a server, which adds text around the client's text. None adds no text."""

    def __init__(
        self,
        *,
        layout: TokenLayout | Mapping[str, Any] | None = None,
        threads: int | None = None,
        max_batch: int = 8,
        batch_wait_ms: float = 5.0,
        prompt: str | None = None,
    ) -> None:
        if layout is not None:
            self.layout = _checked_layout(layout)
        elif getattr(self, "layout", None) is None:
            name = getattr(self, "name", type(self).__name__)
            raise OptionError(
                f"output processor {name!r} needs the option layout, how the model writes media as tokens; set it in"
                ' additional_config["mmout"] or in the "mmout" table of config.json',
                param="layout",
            )
        self.threads = None if threads is None else checked_count("threads", threads)
        self.max_batch = checked_count("max_batch", max_batch)
        self.batch_wait_s = _checked_wait(batch_wait_ms) / 1000
        if prompt is not None:
            self.prompt = PromptTemplate.parse(prompt, self.layout.modality)

    def load(self) -> None:
        """Load the decoder. Called once, before the engine's first request. By default, this does nothing."""

    def decode(self, raw: Medium, params: OutputParams, state: Any = None) -> Any:
        """Decode the codes of one picture or sound, as a batch of one."""
        return self.decode_batch([raw])[0]

    def decode_batch(self, media: Sequence[Medium]) -> list[Any]:
        """Decode the codes of several pictures or sounds with equal batch keys (see `batch_key`) at once.

        Args:
            media: media of several requests, at most ``max_batch``.

        Returns:
            One output per medium, in order. ``partial`` and ``span`` of an output are set from its medium (`marked`).

        """
        raise NotImplementedError(f"{type(self).__name__} must define decode_batch(media)")

    def batch_key(self, medium: Medium) -> Hashable:
        """Return a key for ``medium``, a picture or sound. Only media with equal keys are decoded in one batch.

        The default key is the shapes of the codes of ``medium``.
        """
        return tuple(ids.shape for ids in medium.codes)


def marked(output: Any, medium: Medium) -> Any:
    """Mark ``output`` as complete or partial, and set its token range (``span``). Return ``output``.

    The attributes ``partial`` and ``span`` come from ``medium``, the codes that ``output`` was decoded from.
    """
    output.partial = not medium.complete
    output.span = (medium.start, medium.stop)
    return output


def _checked_layout(layout: object) -> TokenLayout:
    if isinstance(layout, TokenLayout):
        return layout
    if not isinstance(layout, Mapping):
        raise OptionError(f"layout must be a table of the fields of a TokenLayout, got {layout!r}", param="layout")
    return TokenLayout.from_mapping(layout)


def _checked_wait(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise OptionError(f"batch_wait_ms must be a number of 0 or more, got {value!r}", param="batch_wait_ms")
    return float(value)
