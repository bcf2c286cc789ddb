"""Detokenizers that keep media tokens out of the text; vLLM's own do all the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from vllm.v1.engine.detokenizer import IncrementalDetokenizer

_CLASSES: dict[Any, Any] = {}
"""Of vLLM's detokenizers: class -> ours."""


class Sieve(Protocol):
    """Who says which tokens are text."""

    def feed(self, token_ids: list[int], *, stopped: bool) -> list[bool]:
        """For each new token of the stream whether it is text; ``stopped``: the last one has ended the stream."""


class RoutedDetokenizer(IncrementalDetokenizer):
    """Mixed into the class of a request's own detokenizer: what is no text adds none, and counts as a token as ever."""

    mmout_sieve: Sieve
    mmout_is_text: Iterator[bool]

    def update(self, new_token_ids: list[int], stop_terminated: bool) -> str | None:  # noqa: FBT001 - as vLLM's
        """As vLLM's."""
        self.mmout_is_text = iter(self.mmout_sieve.feed(new_token_ids, stopped=stop_terminated))
        stop: str | None = super().update(new_token_ids, stop_terminated)
        return stop

    def decode_next(self, next_token_id: int) -> str:
        """As vLLM's, and nothing of a token that is no text. The detokenizer without a tokenizer never asks."""
        if not next(self.mmout_is_text):
            return ""
        vllms: Any = super()
        text: str = vllms.decode_next(next_token_id)
        return text


def route(detokenizer: IncrementalDetokenizer, sieve: Sieve) -> None:
    """Let a request's detokenizer leave out what the sieve says is no text."""
    routed: Any = detokenizer
    routed.mmout_sieve = sieve
    routed.__class__ = _routed(type(routed))


def _routed(kind: Any) -> Any:
    if kind not in _CLASSES:
        _CLASSES[kind] = type(kind)(f"Routed{kind.__name__}", (RoutedDetokenizer, kind), {})
    return _CLASSES[kind]
