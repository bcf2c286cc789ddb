"""vLLM's objects of one request, with media in them: its detokenizer, its queue, and what ``generate`` returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from vllm.outputs import CompletionOutput, RequestOutput
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.output_processor import RequestOutputCollector

from vllm_mmout.engine.binding import rebase


class TextFilter(Protocol):
    """Who says which tokens are text."""

    def feed(self, token_ids: list[int], *, stopped: bool) -> list[bool]:
        """For each new token of the stream whether it is text; ``stopped``: the last one has ended the stream."""


@dataclass(slots=True)
class TextFilterState:
    """What a detokenizer keeps beside vLLM's own."""

    text_filter: TextFilter
    is_text: Iterator[bool] = field(default_factory=lambda: iter(()))
    """Of the tokens that it is about to take."""


class RoutedDetokenizer(IncrementalDetokenizer):
    """Mixed into the class of a request's own detokenizer: what is no text adds none, and counts as a token as ever."""

    mmout: TextFilterState

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:  # noqa: FBT001 - as vLLM's
        """As vLLM's."""
        self.mmout.is_text = iter(self.mmout.text_filter.feed(new_token_ids, stopped=stop_terminated))
        stop: str | None = super().update(new_token_ids, stop_terminated)
        return stop

    def decode_next(self, next_token_id: int) -> str:
        """As vLLM's, and nothing of a token that is no text. The detokenizer without a tokenizer never asks."""
        if not next(self.mmout.is_text):
            return ""
        vllms: Any = super()
        text: str = vllms.decode_next(next_token_id)
        return text


def route(detokenizer: IncrementalDetokenizer, text_filter: TextFilter) -> None:
    """Let a request's detokenizer leave out what the text_filter says is no text."""
    routed: Any = detokenizer
    routed.mmout = TextFilterState(text_filter)
    rebase(routed, RoutedDetokenizer)


@dataclass(repr=False)
class MultimodalCompletionOutput(CompletionOutput):
    """One answer of a request.

    Attributes:
        text: the text alone, without what stands for media.
        token_ids: all tokens, those of media too.
        multimodal: the objects (`ImageOutput`, `AudioOutput`) in the order of their tokens. ``span`` of each says which
            tokens it was decoded from, ``token_ids[start:stop]``, and ``partial`` whether the stream ended inside it.
            Of an answer that is not finished it is empty.
        updates: what is new since the output before of media that grow, where the request asks for it: chunks of a
            sound (``chunk_seconds``), each an `AudioOutput`, or previews of a picture (``partial_images``), each an
            `ImageOutput`. The chunks of all outputs, joined, are the sounds of ``multimodal``; ``span[0]`` of a chunk
            or preview is that of its sound or picture.

    """

    multimodal: list[Any] = field(default_factory=list)
    updates: list[Any] = field(default_factory=list)

    def __repr__(self) -> str:
        new = f", updates={self.updates!r}" if self.updates else ""
        return f"{super().__repr__()[:-1]}, multimodal={self.multimodal!r}{new})"


class TokenRequestOutput(RequestOutput):
    """The outcome of a request that failed in a list of requests: reading ``outputs`` raises ``error``."""

    error: Exception

    @property
    def outputs(self) -> list[CompletionOutput]:
        """Nothing: it raises ``error``."""
        raise self.error

    @outputs.setter
    def outputs(self, value: list[CompletionOutput]) -> None:
        pass

    def __repr__(self) -> str:
        return f"{type(self).__name__}(request_id={self.request_id!r}, error={self.error!r})"


def without_error(output: Any) -> Any:
    """Give the output of a request that did not fail the field ``error``, None, as all results of ours have it."""
    output.error = getattr(output, "error", None)
    return output


class MediaCollector(RequestOutputCollector):
    """The queue of one request; where answers are merged that a slow reader has not fetched, media are kept."""

    def put(self, output: Any) -> None:
        """As vLLM's."""
        held = self.output
        waiting, new = _updates(held), _updates(output)
        super().put(output)
        if not isinstance(held, RequestOutput) or not isinstance(output, RequestOutput) or self.output is not held:
            return
        merged: list[Any] = held.outputs
        media = {completion.index: getattr(completion, "multimodal", None) for completion in output.outputs}
        for completion in merged:
            if media.get(completion.index):
                completion.multimodal = media[completion.index]
            updates = [*waiting.get(completion.index, ()), *new.get(completion.index, ())]
            if updates:
                completion.updates = updates


def _updates(output: Any) -> dict[int, list[Any]]:
    """What is new of each answer."""
    answers: Iterable[Any] = output.outputs if isinstance(output, RequestOutput) else ()
    return {one.index: one.updates for one in answers if getattr(one, "updates", None)}
