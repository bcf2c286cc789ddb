"""Subclasses of vLLM's detokenizer, output queue and result classes that handle pictures and sounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from vllm.outputs import CompletionOutput, RequestOutput
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.output_processor import RequestOutputCollector

from vllm_mmout.engine.binding import rebase


class TextFilter(Protocol):
    """Protocol of objects that tell which tokens of an answer are text."""

    def feed(self, token_ids: list[int], *, stopped: bool) -> list[bool]:
        """Return a flag for each new token of the answer: True if the token is text.

        If ``stopped`` is True, the last token ended the answer.
        """


@dataclass(slots=True)
class TextFilterState:
    """State of a request's detokenizer, which separates text tokens from picture and sound tokens."""

    text_filter: TextFilter
    is_text: Iterator[bool] = field(default_factory=lambda: iter(()))
    """Flags for the tokens that the detokenizer decodes next: True for text, False for picture or sound tokens."""


class RoutedDetokenizer(IncrementalDetokenizer):
    """Detokenizer that leaves picture and sound tokens out of the text, but counts them as tokens of the answer."""

    mmout: TextFilterState

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:  # noqa: FBT001 - vLLM's signature
        """Detokenize new tokens, but skip picture and sound tokens. Return the stop string in the text, or None."""
        self.mmout.is_text = iter(self.mmout.text_filter.feed(new_token_ids, stopped=stop_terminated))
        stop: str | None = super().update(new_token_ids, stop_terminated)
        return stop

    def decode_next(self, next_token_id: int) -> str:
        """Return the text of a token, or an empty string for a picture or sound token."""
        if not next(self.mmout.is_text):
            return ""
        vllms: Any = super()
        text: str = vllms.decode_next(next_token_id)
        return text


def route(detokenizer: IncrementalDetokenizer, text_filter: TextFilter) -> None:
    """Let a detokenizer skip the tokens that ``text_filter`` classifies as parts of pictures or sounds."""
    routed: Any = detokenizer
    routed.mmout = TextFilterState(text_filter)
    rebase(routed, RoutedDetokenizer)


@dataclass(repr=False)
class MultimodalCompletionOutput(CompletionOutput):
    """One answer of a request: its text, its tokens, and its decoded pictures and sounds.

    Attributes:
        text: the text alone, without media tokens.
        token_ids: all tokens, including media tokens.
        multimodal: the decoded objects (`ImageOutput`, `AudioOutput`) in the order of their tokens. ``span`` of an
            object is the range of its tokens, ``token_ids[start:stop]``. ``partial`` says whether the stream ended
            inside it. The list is empty until the answer is finished.
        updates: new parts of unfinished sounds or pictures since the last output, if the request asks for them: chunks
            of a sound (``chunk_seconds``), each an `AudioOutput`, or previews of a picture (``partial_images``), each
            an `ImageOutput`. The chunks of all outputs, joined, are the sounds of ``multimodal``. ``span[0]`` of a
            chunk or preview equals that of its sound or picture.

    """

    multimodal: list[Any] = field(default_factory=list)
    updates: list[Any] = field(default_factory=list)

    def __repr__(self) -> str:
        new = f", updates={self.updates!r}" if self.updates else ""
        return f"{super().__repr__()[:-1]}, multimodal={self.multimodal!r}{new})"


class TokenRequestOutput(RequestOutput):
    """vLLM's ``RequestOutput`` of a failed request. Reading ``outputs`` raises the exception in ``error``.

    A call with several prompts can thus return the results of the prompts that did not fail.
    """

    error: Exception

    @property
    def outputs(self) -> list[CompletionOutput]:
        """Raise the request's ``error``, because a failed request cannot have outputs."""
        raise self.error

    @outputs.setter
    def outputs(self, value: list[CompletionOutput]) -> None:
        pass

    def __repr__(self) -> str:
        return f"{type(self).__name__}(request_id={self.request_id!r}, error={self.error!r})"


def with_error_field(output: Any) -> Any:
    """Add the attribute ``error`` with the value None to a vLLM result that lacks ``error``. Return the result."""
    output.error = getattr(output, "error", None)
    return output


class MediaCollector(RequestOutputCollector):
    """Output queue of one request. No picture or sound is lost when vLLM merges unread outputs into one output."""

    def put(self, output: Any) -> None:
        """Queue an output. If vLLM merges it with a waiting output, keep the pictures and sounds of both."""
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
    """Return the new previews and sound chunks (``updates``) of each answer in vLLM's output, by the answer's index."""
    answers: Iterable[Any] = output.outputs if isinstance(output, RequestOutput) else ()
    return {answer.index: answer.updates for answer in answers if getattr(answer, "updates", None)}
