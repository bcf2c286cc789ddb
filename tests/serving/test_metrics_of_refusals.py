"""Metrics of what a route refuses, which no engine has seen."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from metrics_page import page, read

from vllm_mmout.engine.hooks.client_errors import InvalidOptionError
from vllm_mmout.engine.observer import counted
from vllm_mmout.errors import DecodeError, InputError
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.metrics import Metrics, count_refusal

pytestmark = pytest.mark.engine
REFUSALS = {
    "a field": (lambda: ApiError(400, "x", param="n"), "InputError"),
    "too large": (lambda: ApiError(413, "x"), "InputError"),
    "too many": (lambda: ApiError(429, "x"), "RateLimitError"),
    "of an option": (lambda: caused(ApiError(400, "x"), InvalidOptionError("y")), "OptionError"),
    "of an input": (lambda: InputError("x"), "InputError"),
    "a fault of ours": (lambda: ApiError(500, "x"), "other"),
    "another": (lambda: KeyError("x"), "other"),
}


def caused(error: Exception, cause: BaseException) -> Exception:
    """An error that was raised from another."""
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(("make", "kind"), REFUSALS.values(), ids=REFUSALS)
def test_what_a_route_refuses_is_counted_by_kind(make, kind, request):
    """With no processor to blame."""
    name = request.node.name
    count_refusal(Metrics(name, ["mask"]), make())
    assert read(page(), model_name=name) == {f"mmout:failures_total {kind} ": 1}


@pytest.mark.asyncio(loop_scope="function")
async def test_what_the_engine_has_counted_is_not_counted_again(request):
    """However often what was made of it is handed on; an error of the same text that it has not is."""
    name = request.node.name
    metrics = Metrics(name, ["mask"])

    class Engine:
        output_processor = SimpleNamespace(
            observer=metrics, binding=SimpleNamespace(choice=SimpleNamespace(pick=lambda _: ("mask",)))
        )

        @counted
        async def generate(self, prompt, sampling_params=None):
            raise DecodeError(prompt)
            yield

    with pytest.raises(DecodeError) as raised:
        await anext(Engine().generate("x"))
    count_refusal(metrics, raised.value)
    count_refusal(metrics, caused(ApiError(500, "x"), raised.value))
    assert read(page(), model_name=name) == {"mmout:failures_total DecodeError mask": 1}
    count_refusal(metrics, caused(ApiError(500, "x"), DecodeError("x")))
    assert read(page(), model_name=name)["mmout:failures_total DecodeError "] == 1
