"""What an installed wing can have the server do beside the core's routes."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import pytest

pytest.importorskip("vllm", reason="the server is vLLM's")

from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from vllm_mmout.errors import MMOutError
from vllm_mmout.serving import launch, routes
from vllm_mmout.serving.extension import ServerExtension
from vllm_mmout.serving.service import Service

pytestmark = pytest.mark.engine


@dataclass(frozen=True, slots=True)
class Painting(Service):
    """The service of a kind of engine that only this wing binds."""

    @property
    def gives(self):
        return "the model paints by the hour; ask /v1/hours"

    async def generated_images(self, request):
        return PlainTextResponse(f"painted by {self.engine.name}")


class Hours(ServerExtension):
    """A wing's part of the server."""

    generations: ClassVar = {"type": "object", "required": ["hours"]}

    def attach(self, app):
        app.add_api_route("/v1/hours", lambda: "twelve", methods=["GET"])

    def service(self, engine, models, options, store):
        known = getattr(engine, "name", None) == "hourly"
        return Painting(engine, models, options, store, SimpleNamespace(failed=lambda *_: None)) if known else None

    async def start(self, service, state):
        state.hours = service.engine.name

    def needed_plugins(self, args):
        return [f"{args.model}_hours"]


@pytest.fixture
def app(monkeypatch):
    """A server on which this wing alone is installed."""
    from fastapi import FastAPI

    monkeypatch.setattr(routes, "describe_models", lambda *_: None)  # these engines have no model
    monkeypatch.setattr(routes, "extensions", lambda point: iter([Hours]) if point == "routes" else iter(()))
    return FastAPI()


def bound(name):
    """An engine that was bound in a way which the core does not know."""
    return SimpleNamespace(name=name, output_processor=SimpleNamespace(binding="its own"), model_config=None)


def serve(app, engine):
    """Make the routes and what they share."""
    attached = routes.ServingPlugin()
    attached.attach_router(app)
    app.state.openai_serving_models = SimpleNamespace()
    asyncio.run(attached.init_state(engine, app.state, Namespace()))
    return TestClient(app)


def test_its_routes_and_its_service_answer(app):
    """Of an engine of its kind, on its own route and on the core's."""
    client = serve(app, bound("hourly"))
    assert client.get("/v1/hours").json() == "twelve"
    assert app.state.hours == "hourly"
    assert client.post("/v1/images/generations", json={}).text == "painted by hourly"


def test_a_route_for_another_kind_of_model_says_what_this_one_gives(app):
    """Nothing of the wing's is known to the core but its service."""
    answer = serve(app, bound("hourly")).post("/v1/images/edits", data={"image": "x"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "the model paints by the hour; ask /v1/hours"


def test_what_it_takes_is_described(app):
    """Beside what the core's models take at the same route."""
    description = serve(app, bound("hourly")).get("/openapi.json").json()
    body = description["paths"]["/v1/images/generations"]["post"]["requestBody"]["content"]["application/json"]
    assert Hours.generations in body["schema"]["anyOf"]


def test_without_wings_the_core_has_its_own_routes(app, monkeypatch):
    """A folder that was deleted takes its routes with it."""
    monkeypatch.setattr(routes, "describe_models", lambda *_: None)  # these engines have no model
    monkeypatch.setattr(routes, "extensions", lambda point: iter(()))
    routes.ServingPlugin().attach_router(app)
    paths = {route.path for route in app.routes}
    assert {"/v1/images/edits", "/v1/images/generations"} <= paths
    assert not {path for path in paths if "scenes" in path or "speech" in path}


def test_an_engine_that_no_wing_serves_is_an_error(app):
    """The server does not start, and says why."""
    with pytest.raises(MMOutError, match="no wing serves an engine that is bound as SimpleNamespace"):
        serve(app, bound("daily"))


def test_a_list_of_plugins_holds_what_it_needs(monkeypatch):
    """Only where the user keeps such a list."""
    monkeypatch.setattr(launch, "extensions", lambda point: iter([Hours]))
    monkeypatch.setenv("VLLM_PLUGINS", "vllm_mmout")
    launch._add_plugins(Namespace(model="clock"))
    assert launch.os.environ["VLLM_PLUGINS"] == "vllm_mmout,clock_hours"
    monkeypatch.delenv("VLLM_PLUGINS")
    launch._add_plugins(Namespace(model="clock"))
    assert "VLLM_PLUGINS" not in launch.os.environ
