"""Chats that ask for pictures or sounds are refused; all others go to vLLM's route as they are."""

from __future__ import annotations

from types import SimpleNamespace

import httpx
import pytest

pytest.importorskip("vllm", reason="the routes are vLLM's")
pytestmark = pytest.mark.engine

from fastapi import FastAPI  # noqa: E402 - after the import that may skip
from vllm.entrypoints.openai.chat_completion import api_router  # noqa: E402 - as above
from vllm.entrypoints.serve.engine.protocol import ErrorInfo, ErrorResponse  # noqa: E402 - as above
from vllm.entrypoints.serve.exception_handling.register import init_exception_handler  # noqa: E402 - as above
from vllm.plugins.endpoint_plugins.interface import attach_endpoint_plugins  # noqa: E402 - as above

from vllm_mmout.serving.routes import ServingPlugin  # noqa: E402 - as above

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "draw a cat"}], "seed": 7}


class Chats:
    """Takes what vLLM's route makes of requests."""

    def __init__(self):
        self.taken = []

    async def create_chat_completion(self, request, raw_request):
        """An answer that no other part gives."""
        self.taken.append(request)
        return ErrorResponse(error=ErrorInfo(message="it came here", type="Teapot", code=418))

    create_batch_chat_completion = create_chat_completion


def app_of(chats, plugins, monkeypatch):
    """VLLM's routes of chats with endpoint plugins."""
    app = FastAPI()
    app.include_router(api_router.router)
    app.state.args = SimpleNamespace(log_error_stack=False)
    app.state.enable_server_load_tracking = False
    app.state.openai_serving_chat = app.state.openai_serving_chat_batch = chats
    monkeypatch.setattr("vllm.plugins.load_endpoint_plugins", lambda tasks: plugins)
    attach_endpoint_plugins(app, ("generate",))
    init_exception_handler(app)
    return app


@pytest.fixture
def chats():
    """What vLLM's route was given."""
    return Chats()


@pytest.fixture
def app(chats, monkeypatch):
    """Of a server with our routes."""
    return app_of(chats, [ServingPlugin()], monkeypatch)


async def post(app, path=CHAT, **content):
    """The answer of an app."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        return await client.post(path, **content)


@pytest.mark.parametrize("path", [CHAT, f"{CHAT}/batch"])
@pytest.mark.parametrize(
    "modalities", [["image"], ["audio"], ["text", "audio"], ["text", "image"], "audio", ["video"], {"image": 1}]
)
async def test_a_chat_that_asks_for_media_is_refused(app, chats, path, modalities):
    """It is told what is not there and what to use instead, in the form of OpenAI's errors."""
    answer = await post(app, path, json={**BODY, "modalities": modalities})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, 400, "modalities")
    for word in ("modalities is", "text alone", "/v1/images/generations", "/v1/audio/speech"):
        assert word in error["message"]
    assert chats.taken == []


@pytest.mark.parametrize("given", [{}, {"modalities": None}, {"modalities": []}, {"modalities": ["text"]}])
async def test_a_chat_in_text_is_vllms(app, chats, given):
    """It comes to vLLM's route with all that was sent, and its answer is vLLM's."""
    answer = await post(app, json={**BODY, **given})
    assert (answer.status_code, answer.json()["error"]["message"]) == (418, "it came here")
    (taken,) = chats.taken
    assert taken.seed == 7
    assert taken.model_extra == given


@pytest.mark.parametrize(
    "content",
    [
        {"json": [1]},
        {"json": {"model": "m"}},
        {"content": b"{", "headers": {"content-type": "application/json"}},
        {"content": b'{"modalities": ["image"]}', "headers": {"content-type": "text/plain"}},
        {"content": b""},
    ],
)
async def test_what_is_no_chat_is_refused_as_by_vllm(app, chats, monkeypatch, content):
    """A body that vLLM refuses gets the same answer as without our routes."""
    ours = await post(app, **content)
    vllms = await post(app_of(chats, [], monkeypatch), **content)
    assert (ours.status_code, ours.content) == (vllms.status_code, vllms.content)
    assert ours.status_code >= 400
    assert chats.taken == []


async def test_the_description_of_the_route_is_vllms(app, chats, monkeypatch):
    """What ``/openapi.json`` says of chats is the same with our routes."""
    vllms = app_of(chats, [], monkeypatch).openapi()
    for path in (CHAT, f"{CHAT}/batch"):
        assert app.openapi()["paths"][path] == vllms["paths"][path]
