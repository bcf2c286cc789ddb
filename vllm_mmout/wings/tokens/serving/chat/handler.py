"""MediaChat: vLLM's chat handler, extended to answer chats that ask for media."""

from __future__ import annotations

import asyncio
import weakref
from contextlib import ExitStack
from copy import copy
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine.binding import rebase
from vllm_mmout.engine.threads import in_thread
from vllm_mmout.serving.errors import ApiError, api_error, log_failure
from vllm_mmout.serving.metrics import count_refusal
from vllm_mmout.serving.request.names import request_id
from vllm_mmout.wings.tokens.serving.chat.asked import asked_media
from vllm_mmout.wings.tokens.serving.chat.events import MediaEvents
from vllm_mmout.wings.tokens.serving.chat.parts import images, whole_audio
from vllm_mmout.wings.tokens.serving.chat.texts import check_texts
from vllm_mmout.wings.tokens.serving.chat.watched import WatchedEngine
from vllm_mmout.wings.tokens.serving.speech_stream import chunk_seconds

if TYPE_CHECKING:
    from starlette.datastructures import State

    from vllm_mmout.wings.tokens.serving.chat.asked import AskedMedia
    from vllm_mmout.wings.tokens.serving.service import TokenService


def answer_chats(state: State, service: TokenService) -> None:
    """Make the chat handler of vLLM's server answer chats that ask for media."""
    handler = getattr(state, "openai_serving_chat", None)
    if handler is not None:
        rebase(handler, MediaChat)
        handler.mmout = service


class MediaChat:
    """A mix-in for the class of vLLM's own chat handler.

    Chats without media are left to vLLM. For other chats, vLLM makes the prompt, text, usage and events as usual, on an
    engine that sets the media aside. The media are then added to the text.
    """

    mmout: TokenService

    async def create_chat_completion(self, request: Any, raw_request: Any = None) -> Any:
        """Return an answer, its events, or an error, as vLLM's handler does.

        Raises:
            ApiError: the request is refused with headers; see `vllm_mmout.serving.routes`.

        """
        vllms: Any = super()
        try:
            asked = asked_media(request, self.mmout)
            if asked is None:
                return await vllms.create_chat_completion(request, raw_request)
            await asyncio.to_thread(asked.check)
            await asyncio.to_thread(check_texts, request, self.mmout.makers.values())
            return await self._with_media(request, raw_request, asked)
        except ApiError as error:
            count_refusal(self.mmout.observer, error)
            if error.headers is not None:  # vLLM's error response cannot carry headers
                raise
            log_failure(_name(raw_request), error.status, error.message)
            return vllms.create_error_response(error.message, error.type, HTTPStatus(error.status), error.param)

    async def _with_media(self, request: Any, raw_request: Any, asked: AskedMedia) -> Any:
        if asked.voice is not None:
            request.chat_template_kwargs = {"voice": asked.voice, **(request.chat_template_kwargs or {})}
        with ExitStack() as place:
            slots = getattr(getattr(getattr(raw_request, "app", None), "state", None), "mmout_slots", None)
            if slots is not None:
                place.enter_context(slots)
            handler: Any = copy(self)
            is_sound_stream = request.stream and asked.form is not None
            seconds = await asyncio.to_thread(chunk_seconds, asked.maker, None) if is_sound_stream else None
            handler.engine_client = engine = WatchedEngine(self.mmout.engine, asked.maker.name, seconds, asked.output)
            answer = await super(MediaChat, handler).create_chat_completion(request, raw_request)  # type: ignore[misc]
            if not request.stream:
                return await _filled(answer, engine, asked)
            if not hasattr(answer, "aclose"):  # an error
                return answer
            events = MediaEvents(answer, engine, asked, self.mmout.observer).run()
            # If the client leaves before the first event, no code of the generator runs.
            weakref.finalize(events, place.pop_all().close)
            return events


def _name(request: Any) -> str:
    """Return vLLM's id of a chat request, or a new id if vLLM has not set it yet."""
    metadata = getattr(getattr(request, "state", None), "request_metadata", None)
    return metadata.request_id if metadata is not None else request_id(request, "chatcmpl")


async def _filled(answer: Any, engine: WatchedEngine, asked: AskedMedia) -> Any:
    """Add the media of each choice to its message in vLLM's whole answer, and return the answer."""

    def fill() -> None:
        for choice in answer.choices:
            _fill(choice.message, engine.take(choice.index), asked)

    try:
        if hasattr(answer, "choices"):  # else it is an error
            await in_thread(fill)
    except Exception as error:
        raise api_error(error, answer.id) from error
    return answer


def _fill(message: Any, media: list[Any], asked: AskedMedia) -> None:
    text = message.content or ""
    if not asked.text:
        message.content = None
    if media and asked.form is None:
        message.images = images(asked, media, 0)
    elif media:
        message.audio = whole_audio(asked, media, text)
