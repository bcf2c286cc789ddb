"""``POST /v1/chat/completions`` with ``modalities`` other than text, which vLLM would answer with text alone.

It is refused where no wing answers such chats; all else is vLLM's route, as it was.
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
"""The modality that vLLM itself answers with."""


def attach(app: FastAPI) -> None:
    """Have vLLM's routes of chats look at ``modalities`` first."""
    for route in list(app.routes):
        if isinstance(route, APIRoute) and route.path in PATHS and "POST" in route.methods:
            app.router.routes.remove(route)  # 0.31 keeps a replaced route, in front
            app.add_api_route(
                route.path,
                route.endpoint,
                methods=["POST"],
                dependencies=[*route.dependencies, Depends(check_media if route.path == CHAT else refuse_media)],
                responses=route.responses,
                name=route.name,
                tags=route.tags,
                include_in_schema=route.include_in_schema,
            )


def asks_for_media(modalities: Any) -> bool:
    """Whether a chat with these ``modalities`` is to be answered with more than text, or with what nobody knows."""
    return bool(modalities) and not (isinstance(modalities, list) and all(one == TEXT for one in modalities))


async def check_media(request: Request) -> None:
    """As `refuse_media`, on a server whose model has no media for chats."""
    service = getattr(request.app.state, "mmout", None)
    if not (isinstance(service, Service) and service.chats):
        await refuse_media(request)


async def refuse_media(request: Request) -> None:
    """Refuse a chat whose answer is to hold more than text, which vLLM would pass over and answer with text."""
    given = await request.json()  # parsed by FastAPI before; kept on the request
    modalities = given.get("modalities") if isinstance(given, dict) else None
    if asks_for_media(modalities):
        raise InvalidOptionError(
            f"modalities is {shown(modalities)}, and a chat is answered with text alone here; ask"
            " /v1/images/generations for a picture, /v1/audio/speech for a sound, where the model writes them, or leave"
            " modalities out",
            param="modalities",
        )
