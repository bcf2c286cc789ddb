"""Register HTTP routes for models that generate tokens, and let vLLM's chats return pictures and sounds."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from starlette.datastructures import State
from vllm.entrypoints.openai.models.serving import OpenAIServingModels

from vllm_mmout.serving.extension import ServerExtension
from vllm_mmout.serving.openapi import BODY, body_of, responses_of
from vllm_mmout.serving.options import ServingOptions
from vllm_mmout.serving.response.result_files import SOUND_TYPES
from vllm_mmout.serving.response.store import ResultStore
from vllm_mmout.serving.service import Service
from vllm_mmout.wings.tokens.engine.async_llm import BoundTokenAsyncLLM
from vllm_mmout.wings.tokens.serving.chat.handler import answer_chats
from vllm_mmout.wings.tokens.serving.fields import IMAGES_SCHEMA, SPEECH_SCHEMA
from vllm_mmout.wings.tokens.serving.service import TokenService
from vllm_mmout.wings.tokens.serving.speech_route import speech
from vllm_mmout.wings.tokens.serving.token_image_service import TokenImageService

_SOUND: Final = {"schema": {"type": "string", "format": "binary"}}
_EVENTS: Final[dict[str, Any]] = {"text/event-stream": {}}
_SPEECH: Final = {
    "requestBody": body_of(json=SPEECH_SCHEMA),
    "responses": responses_of(
        {
            "description": "The sound as a file. The header X-MMOut-Partial is set if the model did not finish it.",
            "content": {media_type.partition(";")[0]: _SOUND for media_type in SOUND_TYPES.values()} | _EVENTS,
        },
        *BODY,
        422,
    ),
}


class TokenRoutes(ServerExtension):
    """Server extension for models that generate pictures or sounds as tokens.

    It serves routes for pictures and speech, and lets chats return pictures and sounds.
    """

    generations = IMAGES_SCHEMA

    def attach(self, app: FastAPI) -> None:
        """Register the route ``/v1/audio/speech``."""
        app.add_api_route("/v1/audio/speech", speech, methods=["POST"], tags=["audio"], openapi_extra=_SPEECH)

    def service(
        self, engine: Any, models: OpenAIServingModels, options: ServingOptions, store: ResultStore
    ) -> TokenService | None:
        """Return the service for an engine whose model generates tokens, or None for other engines."""
        return TokenImageService.of(engine, models, options, store) if isinstance(engine, BoundTokenAsyncLLM) else None

    async def start(self, service: Service, state: State) -> None:
        """Start to serve chats that ask for pictures or sounds, through vLLM's chat handler."""
        if isinstance(service, TokenService):
            answer_chats(state, service)
