"""Engines of one vLLM whose router is real and whose core is fed by hand.

Two objects of vLLM are replaced, and nothing else. The core (``Core``): a model cannot run without vLLM's compiled
parts, which sources do not have; what it gives crosses vLLM's own wire. The renderer (``Renderer``): it makes prompts,
before the router sees a request.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from types import SimpleNamespace

import torch
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

import vllm_mmout
from vllm_mmout import OutputParams
from vllm_mmout.engine import wire
from vllm_mmout.engine.binding import Binding
from vllm_mmout.engine.hooks.bind import bind_async_llm, bind_llm_engine
from vllm_mmout.engine.settings import EngineSettings
from vllm_mmout.registry.choice import Choice


class Answer(vllm_mmout.OutputProcessor):
    """Gives the tensor as a list."""

    def decode(self, raw, params, state=None):
        return raw.tolist()


class Fails(vllm_mmout.OutputProcessor):
    def decode(self, raw, params, state=None):
        raise LookupError(f"no decode for {raw.tolist()}")


class Waits(Answer):
    """Waits for leave, so that a test can look at a decode that is pending."""

    leave = threading.Event()

    def decode(self, raw, params, state=None):
        self.leave.wait(30)
        return super().decode(raw, params, state)


KINDS = {"answer": Answer, "fails": Fails, "waits": Waits}


def make_binding(*, raw_input=False):
    """What binds an engine with these processors."""
    return Binding(
        model="hand-fed",
        processors={name: kind() for name, kind in KINDS.items()},
        settings=EngineSettings(decode_threads=2, decode_timeout_s=30.0),
        inputs=None,
        raw_input=raw_input,
        max_num_seqs=4,
        max_in_flight=16,
        max_tiles=8,
        choice=Choice(KINDS, {name: {} for name in KINDS}, {}, "a test"),
    )


class Core:
    """Stands for the engine core: gives what a test feeds, as it comes off vLLM's wire, and notes what is aborted."""

    def __init__(self):
        self.steps = deque()
        self.fed = asyncio.Event()
        self.aborted = []

    def feed(self, *outputs):
        """Have these outputs be the core's next step."""
        sent = MsgpackEncoder().encode(EngineCoreOutputs(outputs=list(outputs)))
        frames = [bytearray(part) for part in sent]  # writable, as those of a socket; torch warns of others
        self.steps.append(MsgpackDecoder(EngineCoreOutputs).decode(frames))
        self.fed.set()

    def get_output(self):
        return self.steps.popleft()

    async def get_output_async(self):
        while not self.steps:
            self.fed.clear()
            await self.fed.wait()
        return self.get_output()

    def abort_requests(self, request_ids):
        self.aborted += request_ids

    async def abort_requests_async(self, request_ids):
        self.abort_requests(request_ids)

    def shutdown(self, timeout=None):
        """Nothing runs."""


class Renderer(SimpleNamespace):
    """Stands for what makes prompts."""

    tokenizer = "of a text model"
    mm_processor_cache = None

    def shutdown(self):
        """Nothing runs."""


def _parts(tokenizer, options):
    """What both kinds of engine have, before they are bound."""
    return {
        "engine_core": Core(),
        "output_processor": OutputProcessor(tokenizer, log_stats=False, **options),
        "renderer": Renderer(),
        "log_stats": False,
        "log_requests": False,
        "logger_manager": None,
    }


def llm_engine(*, tokenizer=None, binding=None, **options):
    """A synchronous engine of vLLM's, bound."""
    engine = object.__new__(LLMEngine)
    vars(engine).update(_parts(tokenizer, options), should_execute_dummy_batch=False, dp_group=None)
    bind_llm_engine(engine, binding or make_binding())
    return engine


def async_llm(**options):
    """An asynchronous one; its own handler task runs, and has captured the output processor, before the bind."""
    engine = object.__new__(AsyncLLM)
    model_config = SimpleNamespace(io_processor_plugin=None, hf_config=None)
    vars(engine).update(_parts(None, options), output_handler=None, model_config=model_config)
    engine._run_output_handler()
    bind_async_llm(engine, make_binding())
    return engine


def request(name, params):
    """A request as the frontend's router gets it; its own name outside is without the "-internal"."""
    made = EngineCoreRequest(
        request_id=f"{name}-internal",
        prompt_token_ids=[1],
        mm_features=None,
        sampling_params=params if isinstance(params, SamplingParams) else None,
        pooling_params=params if isinstance(params, PoolingParams) else None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
    made.external_req_id = name
    return made


def marked(processor="answer"):
    """Params of a request that wants its output decoded."""
    return PoolingParams(task="plugin", extra_kwargs=wire.mark(OutputParams(processor=processor)))


def unmarked():
    """Params of a request that wants vLLM's raw tensor."""
    return PoolingParams(task="plugin")


def add(engine, name, params):
    """Admit a request to ``LLMEngine``."""
    engine.output_processor.add_request(request(name, params), None)


def add_async(engine, name, params):
    """Admit a request to ``AsyncLLM``; gives its queue."""
    queue = RequestOutputCollector(params.output_kind, f"{name}-internal")
    engine.output_processor.add_request(request(name, params), None, queue=queue)
    return queue


def answered(name, tensor):
    """The core's output of a pooling request."""
    return EngineCoreOutput(f"{name}-internal", [], pooling_output=tensor, finish_reason=FinishReason.STOP)


def packed(name, values, processor="answer"):
    """The same of a marked request, as the worker's pooler packs it."""
    return answered(name, wire.pack({processor: torch.tensor([values])})[0])


def ended(name, reason, tokens=None, **fields):
    """The core's output of a request that it ends without a result."""
    return EngineCoreOutput(f"{name}-internal", tokens or [], finish_reason=FinishReason[reason], **fields)


def drain(engine):
    """Step ``LLMEngine`` until all is delivered; results by name."""
    results = {}
    while engine.output_processor.has_unfinished_requests():
        results.update({result.request_id: result for result in engine.step()})
    return results
