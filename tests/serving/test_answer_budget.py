"""The budget of an answer: a request takes it from the server's flag, and gives it up when its client goes away."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from vllm_mmout.errors import AbortedError
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.options import ServingOptions
from vllm_mmout.serving.request.fields import ImageRequest
from vllm_mmout.serving.response.answer_budget import AnswerBudget
from vllm_mmout.serving.work import Work

pytestmark = pytest.mark.engine
LIMIT_S = 60
OUTPUT = SimpleNamespace(outputs="a text of 23 characters", progress=None, assumed=())


def work_of(to_response, **given):
    """A request to a server whose answers may have 10 bytes."""
    choice = SimpleNamespace(pick=lambda _: ("own",))
    binding = SimpleNamespace(choice=choice, processors={"own": SimpleNamespace(to_response=to_response)})
    store = SimpleNamespace(shared=SimpleNamespace(work=None))
    service = SimpleNamespace(binding=binding, store=store, options=ServingOptions(max_answer=10))
    return Work(service, ImageRequest(), "data", "request-1", **given)


def test_the_limit_is_that_of_the_server():
    """The client gets 400 with the size, the limit and the flag."""
    work = work_of(lambda output, _: (output.encode(), "text/plain"))
    with pytest.raises(ApiError, match=r"has 23 bytes, .* at most 10 bytes \(--mmout-max-answer\)") as refused:
        asyncio.run(work.encoded(OUTPUT))
    assert refused.value.status == 400


def test_a_client_that_goes_away_ends_the_encoding():
    """The budget is abandoned as soon as the request is cancelled."""
    begun, free, budget = threading.Event(), threading.Event(), AnswerBudget()

    def to_response(*_):
        begun.set()
        free.wait(LIMIT_S)
        return b"", "text/plain"

    async def leave():
        task = asyncio.create_task(work_of(to_response, budget=budget).encoded(OUTPUT))
        await asyncio.to_thread(begun.wait, LIMIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        free.set()

    asyncio.run(leave())
    with pytest.raises(AbortedError):
        budget.check(0, "the next result")
