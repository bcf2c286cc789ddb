"""Errors as OpenAI's clients get them."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import pickle
from types import SimpleNamespace

import openai
import pytest
from sent_requests import answered_with, client
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.exceptions import VLLMNotFoundError, VLLMUnprocessableEntityError, VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

import vllm_mmout.errors
from vllm_mmout.engine.hooks.client_errors import InvalidInputError, InvalidOptionError, as_client_error
from vllm_mmout.engine.observer import SILENT
from vllm_mmout.errors import (
    AbortedError,
    DecodeError,
    ForwardError,
    InputError,
    MMOutError,
    OptionError,
    RegistrationError,
    SaveError,
)
from vllm_mmout.params import OutputParams
from vllm_mmout.serving.errors import ApiError, api_error, error_body, error_response
from vllm_mmout.serving.image_routes import Slots, answered
from vllm_mmout.serving.service import Service

pytestmark = pytest.mark.engine

WRITING = SaveError("cannot write /srv/secret/a.tif: no space")
WRITING.__cause__ = OSError(28, "no space")
GENERATE = EngineGenerateError()
GENERATE.__cause__ = OptionError("tile is odd", param="tile")


@pytest.mark.parametrize(
    ("error", "status", "kind", "param"),
    [
        (InputError("no bands"), 400, "BadRequestError", "image"),
        (InputError("no bands", param="bands"), 400, "BadRequestError", "bands"),
        (OptionError("tile is odd", param="tile"), 400, "BadRequestError", "tile"),
        (OptionError("something"), 400, "BadRequestError", None),
        (InvalidOptionError("tile is odd", param="tile"), 400, "BadRequestError", "tile"),
        (SaveError("JPEG has no transparency"), 400, "BadRequestError", "output_format"),
        (VLLMValidationError("wrong", parameter="priority"), 400, "BadRequestError", "priority"),
        (VLLMUnprocessableEntityError("not there", parameter="x"), 422, "UnprocessableEntityError", "x"),
        (VLLMNotFoundError("no model"), 404, "NotFoundError", None),
        (HTTPException(409, "conflict"), 409, "ConflictError", None),
        (HTTPException(423, "locked"), 423, "Locked", None),
        (ClientDisconnect(), 400, "BadRequestError", None),
        (GENERATE, 400, "BadRequestError", "tile"),
        (AbortedError("gone"), 503, "ServiceUnavailableError", None),
        (EngineDeadError(), 503, "ServiceUnavailableError", None),
        (EngineGenerateError(), 500, "InternalServerError", None),
        (DecodeError("/srv/secret failed"), 500, "InternalServerError", None),
        (ForwardError("/srv/secret failed"), 500, "InternalServerError", None),
        (RegistrationError("/srv/secret failed"), 500, "InternalServerError", None),
        (WRITING, 507, "InsufficientStorageError", None),
        (FileNotFoundError(2, "no such file", "/srv/secret"), 500, "InternalServerError", None),
        (ValueError("/srv/secret"), 500, "InternalServerError", None),
        (MemoryError(), 500, "InternalServerError", None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_every_exception_has_an_answer(error, status, kind, param) -> None:
    """Status, type and param; what is not the client's fault is named by its kind and the request alone."""
    response = error_response(error, "edit-1")
    assert response.status_code == status
    said = json.loads(response.body)["error"]
    assert (said["type"], said["param"], said["code"]) == (kind, param, status)
    assert "secret" not in said["message"]
    assert said["message"]
    if status >= 500:
        assert "/srv" not in api_error(error).message
    if status == 500:
        assert "edit-1" in said["message"]
    if isinstance(error, MMOutError) and status == 400:
        assert said["message"] == str(error)


def test_every_error_of_the_package_has_an_answer() -> None:
    """None is left to the server's own handler."""
    kinds = [kind for kind in vars(vllm_mmout.errors).values() if isinstance(kind, type)]
    assert len(kinds) > 10
    for kind in kinds:
        assert api_error(kind("text")).status in {400, 500, 502, 503}


@pytest.mark.parametrize(
    "error",
    [VLLMValidationError("x"), VLLMUnprocessableEntityError("x"), VLLMNotFoundError("x"), InvalidInputError("x")],
    ids=lambda error: type(error).__name__,
)
def test_types_are_vllms(error) -> None:
    """The same exception gets the same type and code from vLLM's own routes."""
    theirs = create_error_response(error).error
    ours = error_body(api_error(error))["error"]
    assert (ours["type"], ours["code"], ours["message"]) == (theirs.type, theirs.code, theirs.message)


def test_what_fails_on_the_server_is_logged_with_its_traceback() -> None:
    """The log has what the client is not told; a client's mistakes are not logged."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("vllm.mmout")
    logger.addHandler(handler)
    try:
        api_error(OptionError("tile is odd"))
        assert not records
        api_error(RuntimeError("deep inside"), "edit-7")
    finally:
        logger.removeHandler(handler)
    (record,) = records
    assert "edit-7" in record.getMessage()
    assert str(record.exc_info[1]) == "deep inside"


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt()])
def test_a_cancellation_is_no_answer(error) -> None:
    """It goes on."""
    with pytest.raises(type(error)):
        api_error(error)


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit("left")])
def test_an_authors_exit_is_the_answer_to_its_request(error) -> None:
    """What an author's function raises on the event loop ends no server, but the route's own cancellation goes on."""

    async def leave(service, held):
        raise error

    service = Service(engine=None, models=None, options=None, store=None, observer=SILENT)
    state = SimpleNamespace(mmout=service, mmout_slots=Slots(1))
    request = Request({"type": "http", "headers": [], "app": SimpleNamespace(state=state)})
    if isinstance(error, GeneratorExit):
        with pytest.raises(GeneratorExit):
            asyncio.run(answered(request, Service, leave))
    else:
        assert asyncio.run(answered(request, Service, leave)).status_code == 500
    assert state.mmout_slots.taken == 0


def test_an_answer_can_always_be_sent() -> None:
    """Broken escapes and very long texts of a client do not fail the error that quotes them."""
    response = error_response(ApiError(400, "\ud800" + "x" * 100_000, param="\udfff"))
    said = json.loads(response.body)["error"]
    assert said["param"] == "?"
    assert said["message"].startswith("?xxx")
    assert len(said["message"]) < 5000


def test_an_error_on_purpose_stays_what_it_is() -> None:
    """Status, code, type and headers as they were given."""
    error = ApiError(429, "later", headers={"Retry-After": "5"})
    assert api_error(error) is error
    assert error_response(error).headers["retry-after"] == "5"
    assert error_body(ApiError(410, "expired", code="expired"))["error"]["code"] == "expired"
    assert error_body(ApiError(418, "tea", kind="Teapot"))["error"]["type"] == "Teapot"
    assert error_body(ApiError(599, "?"))["error"]["type"] == "Error"
    again = pickle.loads(pickle.dumps(ApiError(404, "no", param="model")))  # noqa: S301 - our own
    assert error_body(again) == error_body(ApiError(404, "no", param="model"))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ApiError(400, "tile is odd", param="tile"), openai.BadRequestError),
        (ApiError(404, "no such model", param="model"), openai.NotFoundError),
        (ApiError(413, "too large"), openai.APIStatusError),
        (ApiError(429, "later"), openai.RateLimitError),
        (ApiError(500, "failed"), openai.InternalServerError),
        (ApiError(503, "gone"), openai.InternalServerError),
    ],
    ids=lambda value: value.status if isinstance(value, ApiError) else None,
)
def test_openais_client_raises_them(error, kind) -> None:
    """Its own class for the status, with message, param, type and code."""
    with (
        client(answered_with(error.status, error_body(error))) as ours,
        pytest.raises(kind) as caught,
    ):
        ours.images.edit(image=b"x", prompt="")
    raised = caught.value
    assert (raised.param, raised.type, raised.code) == (error.param, error.type, str(error.status))
    assert error.message in raised.message


@pytest.mark.parametrize(
    "kind", [MMOutError, InputError, OptionError, DecodeError, InvalidInputError, InvalidOptionError]
)
def test_errors_of_the_package_keep_their_param(kind) -> None:
    """Copied, pickled; and one is made of a text alone."""
    error = kind("text", param="tile")
    error.__cause__ = ValueError()
    for same in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301 - our own
        assert (type(same), str(same), same.param) == (kind, "text", "tile")
    assert kind("text").param is None


@pytest.mark.parametrize("kind", [InputError, OptionError])
def test_vllms_server_is_told_the_param(kind) -> None:
    """What is raised inside vLLM is answered by vLLM with the same param, its message unchanged."""
    error = as_client_error(kind("tile is odd", param="tile"))
    assert isinstance(error, kind)
    assert as_client_error(error) is error
    theirs = create_error_response(error).error
    assert (theirs.message, theirs.param, theirs.code) == ("tile is odd", "tile", 400)
    failed = DecodeError("x")
    assert as_client_error(failed) is failed


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"bands": ()}, "bands"),
        ({"bands": (0,)}, "bands"),
        ({"bands": (1,), "indices": (0,)}, "bands"),
        ({"bands": "12"}, "bands"),
        ({"indices": (-1,)}, "indices"),
        ({"tile": 0}, "tile"),
        ({"tile": "64"}, "tile"),
        ({"overlap": -1}, "overlap"),
        ({"overlap": 40, "tile": 64}, "overlap"),
        ({"blend": "sharp"}, "blend"),
        ({"resampling": "cubic"}, "resampling"),
        ({"window": (0, 0, 0, 1)}, "window"),
        ({"window": "all"}, "window"),
        ({"scale": 0.0}, "scale"),
        ({"scale": (1.0, "x")}, "scale"),
        ({"offset": (float("nan"),)}, "offset"),
        ({"simplify": -1.0}, "simplify"),
        ({"bbox_crs": "EPSG:4326"}, "bbox"),
        ({"bbox": (0.0, 1.0, 1.0, 0.0)}, "bbox"),
        ({"bbox": (0.0, 0.0, 1.0, 1.0), "window": (0, 0, 1, 1)}, "bbox"),
        ({"processor": ()}, "processor"),
        ({"processor": ("a", "a")}, "processor"),
        ({"partial_images": 4}, "partial_images"),
        ({"nodata": "none"}, "nodata"),
        ({"tiles": 3}, "tiles"),
    ],
    ids=str,
)
def test_a_wrong_option_is_named(options, param) -> None:
    """Each error of the request's options says which one it is about."""
    with pytest.raises(OptionError) as caught:
        OutputParams.from_mapping(options)
    assert caught.value.param == param
