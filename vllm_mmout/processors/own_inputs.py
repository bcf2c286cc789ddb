"""OwnInputsProcessor: an output processor that makes the model's inputs of a request itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from vllm_mmout.processors.base import OutputProcessor

if TYPE_CHECKING:
    from vllm_mmout.params import OutputParams


class OwnInputsProcessor(OutputProcessor):
    """Makes the inputs of a request and, of the raw tensors that the model gives for them, its result."""

    honours: ClassVar[frozenset[str]] = frozenset({"processor"})
    """Fields of `OutputParams` that its requests may set."""

    def load(self) -> None:
        """Import what it needs; called before a process of the engine is started."""

    def started(self, vllm_config: Any, renderer: Any) -> Self:
        """The same for an engine that is there, with vLLM's renderer, which makes the model's inputs of prompts."""
        return self

    def request(self, pick: str, data: Any, params: OutputParams, limit_s: float) -> Any:
        """One request, a `vllm_mmout.engine.parts.parts_request.PartedRequest`, of which nothing is run yet.

        ``pick`` is the name of this processor on the engine, ``limit_s`` what one call of another author's code may
        take.
        """
        raise NotImplementedError(f"{type(self).__name__} must define request(pick, data, params, limit_s)")
