"""TokenProcessor: output of models that write pictures or sounds as tokens."""

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
    """Decodes the media that a token model writes; subclass it and define ``decode_batch``.

    Nothing runs in the worker: ``reduce`` is not called. ``layout`` finds the codes among the output tokens, and what
    is no code stays text.

    Args:
        layout: how the model writes media, a `TokenLayout` or a mapping of its fields; None: the class has one.
        threads: of torch while a decoder runs on the CPU; None: torch's own number.
        max_batch: media that are decoded at once, at most.
        batch_wait_ms: how long the first of them waits for others, milliseconds.
        prompt: the text that a server puts around what a client asks, see
            `vllm_mmout.wings.tokens.processors.prompt_template.PromptTemplate`; None: that alone.

    Raises:
        OptionError: an option is missing or malformed.

    """

    name: ClassVar[str]
    binding: ClassVar[str] = "vllm_mmout.wings.tokens.engine.binding:TokenBinding"
    modality: ClassVar[str] = "tensor"
    honours: ClassVar[frozenset[str]] = frozenset()
    """Fields of `OutputParams` that its requests may set beside those of all models that generate tokens."""
    layout: TokenLayout
    """How the model writes media as tokens."""
    max_batch: int = 8
    """Media that one call of `decode_batch` is given at most."""
    batch_wait_s: float = 0.005
    """How long the first medium of a batch waits for others, seconds."""
    threads: int | None = None
    """Threads of torch while the decoder runs; None: torch's own number."""
    prompt: PromptTemplate | None = None
    """What a server puts around a client's text; None: nothing."""

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
        """Load what decoding needs, once, before the engine's first request; nothing by default."""

    def decode(self, raw: Medium, params: OutputParams, state: Any = None) -> Any:
        """Make the output object of one medium: a batch of one."""
        return self.decode_batch([raw])[0]

    def decode_batch(self, media: Sequence[Medium]) -> list[Any]:
        """Make the output objects of several media, whose `batch_key` is equal, at once.

        Args:
            media: codes of media of several requests, up to ``max_batch``.

        Returns:
            One output a medium, in their order; its ``partial`` and ``span`` say what the medium does (`marked`).

        """
        raise NotImplementedError(f"{type(self).__name__} must define decode_batch(media)")

    def batch_key(self, medium: Medium) -> Hashable:
        """What media must have in common to be decoded at once: the shapes of their codes."""
        return tuple(ids.shape for ids in medium.codes)


def marked(output: Any, medium: Medium) -> Any:
    """An output that says whether the stream ended inside it, and which tokens it was made of."""
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
