"""Check the API keys of requests to routes that vLLM does not protect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm import envs
from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

if TYPE_CHECKING:
    from starlette.requests import Request


def has_key(request: Request) -> bool:
    """Return whether a request has a valid API key. vLLM itself checks keys only for paths below /v1."""
    keys = [key for key in (request.app.state.args.api_key or [envs.VLLM_API_KEY]) if key]
    return not keys or AuthenticationMiddleware(request.app, keys).verify_token(request.headers)
