"""Add pictures and sounds to the event stream of a chat."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.engine.threads import in_thread
from vllm_mmout.serving.errors import api_error, error_body
from vllm_mmout.serving.metrics import count_refusal
from vllm_mmout.wings.tokens.serving.chat.parts import AudioDeltas, images

if TYPE_CHECKING:
    from vllm_mmout.engine.observer import Observer
    from vllm_mmout.wings.tokens.serving.chat.requested_media import RequestedMedia
    from vllm_mmout.wings.tokens.serving.chat.watched_engine import WatchedEngine

_DATA: Final = "data: "
_DONE: Final = f"{_DATA}[DONE]\n\n"
_HEAD: Final = ("id", "object", "created", "model")


@dataclass(slots=True)
class _ChoiceProgress:
    """Record of the text, pictures and sound that were already sent for one choice of a chat's answer."""

    text: str = ""
    images: int = 0
    audio: AudioDeltas = field(default_factory=AudioDeltas)


class MediaEvents:
    """Event stream of one chat: vLLM's text events, with events for pictures and sounds between them."""

    def __init__(
        self,
        events: AsyncGenerator[str, None],
        engine: WatchedEngine,
        media_options: RequestedMedia,
        observer: Observer,
    ) -> None:
        self._events = events
        self._engine = engine
        self._asked = media_options
        self._observer = observer
        self._choices: defaultdict[int, _ChoiceProgress] = defaultdict(_ChoiceProgress)

    async def run(self) -> AsyncGenerator[str, None]:
        """Yield the events of the chat. An error is sent as the last event before ``[DONE]``, as in vLLM."""
        async with aclosing(self._events) as events:
            try:
                async for event in events:
                    for media_event in await self._with_media(event):
                        yield media_event
            except Exception as error:  # noqa: BLE001 - the answer has begun, so the error is sent as an event
                yield self._error(error)
                yield _DONE

    async def _with_media(self, event: str) -> list[str]:
        """Return a vLLM event, together with events for the pictures and sounds decoded since the last event."""
        chunk = json.loads(event.removeprefix(_DATA)) if event.startswith(_DATA) and event != _DONE else {}
        if "error" in chunk and self._engine.failure is not None:
            return [self._error(self._engine.failure)]
        if not chunk.get("choices"):
            return [event]
        (choice,) = chunk["choices"]
        index, ends = choice["index"], choice.get("finish_reason") is not None
        self._choices[index].text += choice["delta"].get("content") or ""
        text_events = [event] if self._asked.text else _without_text(chunk)
        media = self._engine.take(index)
        deltas = await in_thread(lambda: list(self._deltas(index, media, ends=ends))) if media or ends else []
        head = {name: chunk[name] for name in _HEAD}
        media_events = [_event({**head, "choices": [_choice(index, delta)]}) for delta in deltas]
        # Media come before the event that ends their choice, and after any other event.
        return [*media_events, *text_events] if ends else [*text_events, *media_events]

    def _deltas(self, index: int, media: list[Any], *, ends: bool) -> Iterator[dict[str, Any]]:
        """Yield the chat stream's ``delta`` objects for ``media``, the new pictures or sounds of the choice ``index``.

        If ``ends`` is True, the end of the sound follows. The iterator blocks while pictures or sounds are encoded.
        """
        sent = self._choices[index]
        if self._asked.form is None:
            for entry in images(self._asked, media, sent.images):
                sent.images += 1
                yield {"images": [entry]}
            return
        if media:
            yield from ({"audio": delta} for delta in sent.audio.add(self._asked, media))
        if ends:
            yield from ({"audio": delta} for delta in sent.audio.end(sent.text, partial=index in self._engine.partial))

    def _error(self, error: Exception) -> str:
        client_error = api_error(error)
        count_refusal(self._observer, client_error)
        return _event(error_body(client_error))


def _without_text(chunk: dict[str, Any]) -> list[str]:
    """Return vLLM's event without its text, or an empty list if the event holds nothing else."""
    (choice,) = chunk["choices"]
    delta = choice["delta"]
    if "role" not in delta:
        delta.pop("content", None)
    has_content = delta or any(choice.get(name) is not None for name in ("finish_reason", "logprobs", "token_ids"))
    return [_event(chunk)] if has_content or "usage" in chunk else []


def _choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _event(content: dict[str, Any]) -> str:
    return f"{_DATA}{json.dumps(content, separators=(',', ':'))}\n\n"
