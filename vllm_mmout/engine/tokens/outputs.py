"""What ``generate`` returns of a model that generates tokens: outputs of vLLM's, with pictures and sounds in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.outputs import CompletionOutput, RequestOutput
from vllm.v1.engine.output_processor import RequestOutputCollector


@dataclass(repr=False)
class MultimodalCompletionOutput(CompletionOutput):
    """One answer of a request.

    Attributes:
        text: the text alone, without what stands for media.
        token_ids: all tokens, those of media too.
        multimodal: the objects (`ImageOutput`, `AudioOutput`) in the order of their tokens. ``span`` of each says which
            tokens it was decoded from, ``token_ids[start:stop]``, and ``partial`` whether the stream ended inside it.
            Of an answer that is not finished it is empty.

    """

    multimodal: list[Any] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, multimodal={self.multimodal!r})"


class TokenRequestOutput(RequestOutput):
    """The outcome of a request that failed in a list of requests: reading ``outputs`` raises ``error``.

    Attributes:
        error: the exception that the request failed with.

    """

    error: Exception

    @property
    def outputs(self) -> list[CompletionOutput]:
        """Nothing.

        Raises:
            MMOutError: the same exception as ``error``.

        """
        raise self.error

    @outputs.setter
    def outputs(self, value: list[CompletionOutput]) -> None:
        pass

    def __repr__(self) -> str:
        return f"{type(self).__name__}(request_id={self.request_id!r}, error={self.error!r})"


class MediaCollector(RequestOutputCollector):
    """The queue of one request; where answers are merged that a slow reader has not fetched, media are kept."""

    def put(self, output: Any) -> None:
        """As vLLM's."""
        held = self.output
        super().put(output)
        if not isinstance(held, RequestOutput) or not isinstance(output, RequestOutput) or self.output is not held:
            return
        merged: list[Any] = held.outputs
        media = {completion.index: getattr(completion, "multimodal", None) for completion in output.outputs}
        for completion in merged:
            if media.get(completion.index):
                completion.multimodal = media[completion.index]
