"""Extend vLLM's chat handler to answer chats that ask for pictures or sounds."""

from __future__ import annotations

import asyncio
import weakref
from contextlib import ExitStack
from copy import copy
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine.binding import rebase
from vllm_mmout.engine.threads import in_thread
from vllm_mmout.serving.errors import ApiError, client_errors, log_failure
from vllm_mmout.serving.metrics import count_refusal
from vllm_mmout.serving.request.request_ids import request_id
from vllm_mmout.wings.tokens.serving.chat.events import MediaEvents
from vllm_mmout.wings.tokens.serving.chat.parts import images, whole_audio
from vllm_mmout.wings.tokens.serving.chat.requested_media import asked_media
from vllm_mmout.wings.tokens.serving.chat.texts import check_texts
from vllm_mmout.wings.tokens.serving.chat.watched_engine import WatchedEngine
from vllm_mmout.wings.tokens.serving.speech_stream import chunk_seconds

if TYPE_CHECKING:
    from starlette.datastructures import State

    from vllm_mmout.wings.tokens.serving.chat.requested_media import RequestedMedia
    from vllm_mmout.wings.tokens.serving.service import TokenService


def answer_chats(state: State, service: TokenService) -> None:
    """Make the chat handler of a vLLM server answer chats that ask for pictures or sounds."""
    handler = getattr(state, "openai_serving_chat", None)
    if handler is not None:
        rebase(handler, MediaChat)
        handler.mmout = service


class MediaChat:
    """Mixin for vLLM's chat handler that adds pictures and sounds to the answers of chats that ask for them.

    Chats without media are left to vLLM. For other chats, vLLM makes the prompt, text, usage and events as usual, on an
    engine that sets the media aside. The media are then added to the text.
    """

    mmout: TokenService

    async def create_chat_completion(self, request: Any, raw_request: Any = None) -> Any:
        """Answer a chat. Return vLLM's response object, an event stream, or an error response.

        Raises:
            ApiError: the request is refused with headers; see `vllm_mmout.serving.routes`.

        """
        vllms: Any = super()
        try:
            media_options = asked_media(request, self.mmout)
            if media_options is None:
                return await vllms.create_chat_completion(request, raw_request)
            await asyncio.to_thread(media_options.check)
            await asyncio.to_thread(check_texts, request, self.mmout.makers.values())
            return await self._with_media(request, raw_request, media_options)
        except ApiError as error:
            count_refusal(self.mmout.observer, error)
            if error.headers is not None:  # vLLM's error response cannot carry headers
                raise
            log_failure(_chat_id(raw_request), error.status, error.message)
            return vllms.create_error_response(error.message, error.type, HTTPStatus(error.status), error.param)

    async def _with_media(self, request: Any, raw_request: Any, media_options: RequestedMedia) -> Any:
        if media_options.voice is not None:
            request.chat_template_kwargs = {"voice": media_options.voice, **(request.chat_template_kwargs or {})}
        with ExitStack() as place:
            slots = getattr(getattr(getattr(raw_request, "app", None), "state", None), "mmout_slots", None)
            if slots is not None:
                place.enter_context(slots)
            handler: Any = copy(self)
            is_sound_stream = request.stream and media_options.form is not None
            seconds = await asyncio.to_thread(chunk_seconds, media_options.maker, None) if is_sound_stream else None
            handler.engine_client = engine = WatchedEngine(
                self.mmout.engine, media_options.maker.name, seconds, media_options.output
            )
            answer = await super(MediaChat, handler).create_chat_completion(request, raw_request)  # type: ignore[misc]
            if not request.stream:
                return await _with_media_added(answer, engine, media_options)
            if not hasattr(answer, "aclose"):  # an error
                return answer
            events = MediaEvents(answer, engine, media_options, self.mmout.observer).run()
            # If the client leaves before the first event, no code of the generator runs.
            weakref.finalize(events, place.pop_all().close)
            return events


def _chat_id(request: Any) -> str:
    """Return vLLM's id of a chat request, or a new id if vLLM has not set an id yet."""
    metadata = getattr(getattr(request, "state", None), "request_metadata", None)
    return metadata.request_id if metadata is not None else request_id(request, "chatcmpl")


async def _with_media_added(answer: Any, engine: WatchedEngine, media_options: RequestedMedia) -> Any:
    """Add the decoded pictures or sounds to the messages of vLLM's complete response, and return the response."""

    def fill() -> None:
        for choice in answer.choices:
            _fill(choice.message, engine.take(choice.index), media_options)

    if hasattr(answer, "choices"):  # else it is an error
        with client_errors(answer.id):
            await in_thread(fill)
    return answer


def _fill(message: Any, media: list[Any], media_options: RequestedMedia) -> None:
    text = message.content or ""
    if not media_options.text:
        message.content = None
    if media and media_options.form is None:
        message.images = images(media_options, media, 0)
    elif media:
        message.audio = whole_audio(media_options, media, text)
