"""Reject chats that ask for pictures or sounds if the model of the server answers only in text.

vLLM ignores ``modalities`` and answers with text. A chat that asks for pictures or sounds is refused, unless an
extension package answers it. All other chats run through vLLM's own routes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastapi import Depends
from fastapi.routing import APIRoute
from starlette.requests import Request

from vllm_mmout.engine.hooks.client_errors import InvalidOptionError
from vllm_mmout.messages import shown
from vllm_mmout.serving.service import Service

if TYPE_CHECKING:
    from fastapi import FastAPI

CHAT: Final = "/v1/chat/completions"
PATHS: Final = (CHAT, f"{CHAT}/batch")
TEXT: Final = "text"
"""Value of the field ``modalities`` that asks for text. vLLM itself answers chats only in text."""


def attach(app: FastAPI) -> None:
    """Add a check of the field ``modalities`` to vLLM's chat routes."""
    for route in list(app.routes):
        if isinstance(route, APIRoute) and route.path in PATHS and "POST" in route.methods:
            app.router.routes.remove(route)  # vLLM 0.31 would keep a replaced route in front
            app.add_api_route(
                route.path,
                route.endpoint,
                methods=["POST"],
                dependencies=[*route.dependencies, Depends(check_media if route.path == CHAT else refuse_media)],
                responses=route.responses,
                response_model=route.response_model,
                openapi_extra=route.openapi_extra,
                name=route.name,
                tags=route.tags,
                include_in_schema=route.include_in_schema,
            )


def asks_for_media(modalities: Any) -> bool:
    """Return whether the field ``modalities`` of a chat asks for output other than text.

    Any value counts, even an unknown one, except an empty value and a list that only contains "text".
    """
    return bool(modalities) and not (isinstance(modalities, list) and all(modality == TEXT for modality in modalities))


async def check_media(request: Request) -> None:
    """Refuse a chat that asks for pictures or sounds, unless the server's model can answer with them."""
    service = getattr(request.app.state, "mmout", None)
    if not (isinstance(service, Service) and service.chats):
        await refuse_media(request)


async def refuse_media(request: Request) -> None:
    """Raise InvalidOptionError if a chat's ``modalities`` ask for more than text. vLLM would ignore that field."""
    body = await request.json()  # FastAPI has parsed and cached it
    modalities = body.get("modalities") if isinstance(body, dict) else None
    if asks_for_media(modalities):
        raise InvalidOptionError(
            f"modalities is {shown(modalities)}, and a chat is answered with text alone here; ask"
            " /v1/images/generations for a picture, /v1/audio/speech for a sound, where the model writes them, or leave"
            " modalities out",
            param="modalities",
        )
