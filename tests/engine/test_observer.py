"""What an engine says of its work: every decode, tile and failure once, and every pending decode's end."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace

import pytest
import torch
from observing import Records
from scene_ends import DEADLINE, wait_for
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError
from water_oracle import echo, scene

from vllm_mmout import OutputParams, errors
from vllm_mmout.engine.hooks.client_errors import InvalidInputError, InvalidOptionError
from vllm_mmout.engine.observer import KINDS, OTHER, SILENT, counted, kind_of, mark_counted, was_counted
from vllm_mmout.engine.request.async_llm import BoundAsyncLLM
from vllm_mmout.engine.request.request import Request
from vllm_mmout.engine.request_output import MultimodalRequestOutput
from vllm_mmout.errors import DecodeError, MMOutError

pytestmark = pytest.mark.engine
ECHO = OutputParams(processor="Echo")
BUFFER = 24 * 20 * 2 * 4
"""Bytes of the embedded model's answer to a single input of `scene`: float32 [2, 24, 20]."""


class TestKinds:
    """The bounded set of kinds."""

    def test_each_error_has_a_kind(self):
        """An error of a request is its own kind, one of vLLM's for a client our own, all else is "other"."""
        requests = [errors.InputError, errors.OptionError, errors.SaveError, errors.RequestError]
        requests += errors.RequestError.__subclasses__()
        for kind in requests:
            assert kind_of(kind("x")) == kind.__name__
        assert kind_of(InvalidInputError("x")) == "InputError"
        assert kind_of(InvalidOptionError("x")) == "OptionError"
        assert kind_of(EngineDeadError()) == "EngineDeadError"
        assert kind_of(VLLMValidationError("x")) == "VLLMValidationError"
        assert [kind_of(error) for error in (KeyError(), errors.HookError("x"), SystemExit())] == [OTHER] * 3
        assert OTHER in KINDS

    def test_an_authors_error_is_of_the_nearest_kind(self):
        """A subclass counts as the class that it is made of."""
        theirs = type("TheirError", (DecodeError,), {})
        assert kind_of(theirs("x")) == "DecodeError"

    def test_a_caller_who_leaves_aborts(self):
        """A cancelled task and a closed generator are no faults of anything."""
        assert [kind_of(asyncio.CancelledError()), kind_of(GeneratorExit())] == ["AbortedError"] * 2

    def test_generate_keeps_its_signature(self):
        """Counting is not seen from outside."""
        assert inspect.isasyncgenfunction(BoundAsyncLLM.generate)
        assert list(inspect.signature(BoundAsyncLLM.generate).parameters)[:4] == [
            "self",
            "prompt",
            "sampling_params",
            "request_id",
        ]
        assert "Yields" in (BoundAsyncLLM.generate.__doc__ or "")


class TestLLM:
    """The synchronous engine, in this process."""

    @pytest.fixture
    def records(self, llm):
        """What is heard of the engine while a test runs."""
        router = llm.llm_engine.output_processor
        router.observer = records = Records()
        yield records
        router.observer = SILENT

    def test_nobody_observes_at_first(self, llm):
        """An engine has the silent observer until somebody sets another."""
        assert llm.llm_engine.output_processor.observer is SILENT

    def test_decodes_are_heard_of_with_their_bytes(self, llm, records):
        """Each waits, with what the engine gave for it, is decoded, and has ended when its result is there."""
        results = llm.generate([scene(seed) for seed in range(5)], ECHO, use_tqdm=False)
        assert [result.outputs for result in results] == [echo(scene(seed)) for seed in range(5)]
        assert [name for name, _ in records.decodes] == ["Echo"] * 5
        assert all(0 <= seconds < DEADLINE for _, seconds in records.decodes)
        assert len(records.waited) == 5
        assert all(BUFFER <= nbytes < BUFFER + 1024 for nbytes in records.waited)
        assert records.pending == []

    def test_a_decode_takes_as_long_as_it_takes(self, llm, records):
        """The seconds are those of the decoder."""
        llm.generate([scene(1), scene(2)], OutputParams(processor="DecodeSleeps"), use_tqdm=False)
        assert len(records.decodes) == 2
        assert all(seconds >= 0.3 for _, seconds in records.decodes)

    @pytest.mark.parametrize("processor", ["DecodeRaises", "DecodeReturnsNone", "DecodeExits", "ReduceRaises"])
    def test_a_failed_decode_ends_and_has_no_seconds(self, llm, records, processor):
        """It is not pending any more."""
        (result,) = llm.generate([scene(1)], OutputParams(processor=processor), use_tqdm=False)
        assert isinstance(result.error, MMOutError)
        assert (len(records.waited), records.pending, records.decodes) == (1, [], [])

    def test_a_decode_for_which_there_is_no_thread(self, llm, records, monkeypatch):
        """Where the system has no thread to spare the request fails, alone, and does not stay pending."""
        pool = llm.llm_engine.output_processor.pool

        def no_thread():
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(pool, "_admit", no_thread)
        (result,) = llm.generate([scene(1)], ECHO, use_tqdm=False)
        assert "can't start new thread" in str(result.error)
        assert (records.pending, llm.llm_engine.output_processor.pending) == ([], {})
        assert len(records.waited) == 1
        monkeypatch.undo()
        assert llm.generate(scene(2), ECHO, use_tqdm=False)[0].outputs == echo(scene(2))

    def test_a_decode_whose_loop_was_closed(self, llm, records):
        """Nobody waits for it, and it does not stay pending."""
        router = llm.llm_engine.output_processor
        loop = asyncio.new_event_loop()
        loop.close()
        request = Request(ECHO, loop=loop)
        state = SimpleNamespace(request_id="gone", external_req_id="gone", queue=None)
        shell = MultimodalRequestOutput("gone", None, [], 0, finished=True)
        router.start_decode(state, request, shell, torch.zeros(9, dtype=torch.uint8))
        wait_for(lambda: not router.pending, "it has ended")
        assert (records.waited, records.pending) == ([9], [])


async def test_an_error_of_no_kind():
    """It is counted as "other", and goes on as it is."""

    class Engine:
        output_processor = SimpleNamespace(
            observer=Records(), binding=SimpleNamespace(choice=SimpleNamespace(pick=None))
        )

        @counted
        async def generate(self, prompt, sampling_params=None):
            raise LookupError(prompt)
            yield

    with pytest.raises(LookupError, match=r"^what$"):
        await anext(Engine().generate("what"))
    assert Engine.output_processor.observer.failures == {("", OTHER): 1}


def test_an_error_that_is_its_own_cause_ends_the_search():
    """The chain of causes of an author's error may be a cycle."""
    error, cause = ValueError("a"), ValueError("b")
    error.__cause__, cause.__cause__ = cause, error
    assert not was_counted(error)
    mark_counted(cause)
    assert was_counted(error)
