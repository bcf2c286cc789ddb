"""MediaChat: vLLM's handler of chats, which answers those that ask for media too."""

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
    """Have vLLM's handler of a server's chats answer those that ask for media."""
    handler = getattr(state, "openai_serving_chat", None)
    if handler is not None:
        rebase(handler, MediaChat)
        handler.mmout = service


class MediaChat:
    """Mixed into the class of vLLM's own handler.

    A chat without media is vLLM's. Of any other vLLM makes prompt, text, usage and events as ever, on an engine that
    keeps the media aside; these are put beside the text.
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
            if error.headers is not None:  # vLLM's form of an error has no place for them
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
            mine: Any = copy(self)
            pieces = request.stream and asked.form is not None
            seconds = await asyncio.to_thread(chunk_seconds, asked.maker, None) if pieces else None
            mine.engine_client = engine = WatchedEngine(self.mmout.engine, asked.maker.name, seconds, asked.output)
            answer = await super(MediaChat, mine).create_chat_completion(request, raw_request)  # type: ignore[misc]
            if not request.stream:
                return await _filled(answer, engine, asked)
            if not hasattr(answer, "aclose"):  # an error
                return answer
            events = MediaEvents(answer, engine, asked, self.mmout.observer).run()
            # Of a client that goes away before the first event nothing of a generator runs.
            weakref.finalize(events, place.pop_all().close)
            return events


def _name(request: Any) -> str:
    """Return what vLLM calls the request of a chat, or a name of ours where vLLM has not named it yet."""
    named = getattr(getattr(request, "state", None), "request_metadata", None)
    return named.request_id if named is not None else request_id(request, "chatcmpl")


async def _filled(answer: Any, engine: WatchedEngine, asked: AskedMedia) -> Any:
    """The whole answer as vLLM made it, with the media of each choice in its message."""

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
