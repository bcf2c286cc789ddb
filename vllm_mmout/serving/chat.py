"""``POST /v1/chat/completions`` with ``modalities`` other than text is refused; all else is vLLM's route, as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastapi import Depends
from fastapi.routing import APIRoute
from starlette.requests import Request

from vllm_mmout.engine.hooks.validation import InvalidOptionError
from vllm_mmout.messages import shown

if TYPE_CHECKING:
    from fastapi import FastAPI

PATHS: Final = ("/v1/chat/completions", "/v1/chat/completions/batch")


def attach(app: FastAPI) -> None:
    """Have vLLM's routes of chats look at ``modalities`` first."""
    for route in list(app.routes):
        if isinstance(route, APIRoute) and route.path in PATHS and "POST" in route.methods:
            app.router.routes.remove(route)  # 0.31 keeps a replaced route, in front
            app.add_api_route(
                route.path,
                route.endpoint,
                methods=["POST"],
                dependencies=[*route.dependencies, Depends(refuse_media)],
                responses=route.responses,
                name=route.name,
                tags=route.tags,
                include_in_schema=route.include_in_schema,
            )


async def refuse_media(request: Request) -> None:
    """Refuse a chat whose answer is to hold more than text, which vLLM would pass over and answer with text."""
    given = await request.json()  # parsed by FastAPI before; kept on the request
    modalities = given.get("modalities") if isinstance(given, dict) else None
    if not modalities or (isinstance(modalities, list) and all(one == "text" for one in modalities)):
        return
    raise InvalidOptionError(
        f"modalities is {shown(modalities)}, and a chat is answered with text alone on this server; ask"
        " /v1/images/generations for a picture, /v1/audio/speech for a sound, where its model writes them, or leave"
        " modalities out",
        param="modalities",
    )
