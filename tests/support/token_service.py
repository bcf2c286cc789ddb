"""Our routes on an app without an engine, whose model writes pictures and sounds as tokens; keeps what it is asked."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
from token_models import AUDIO_CODES, BEGIN, END, FIRST, IMAGE_CODES, ROW_END, make_tokenizer

PIXELS = 3
"""Of a cell, each side."""
RATE = 16000
FRAME = 640
"""Samples of a frame."""
LENGTH = 600
"""Tokens of a request."""


class Cells:
    """A decoder whose cell is a square of one grey."""

    def decode(self, codes):
        pixels = codes.float()[:, None] / (IMAGE_CODES - 1) * 2 - 1
        return pixels.repeat_interleave(PIXELS, 2).repeat_interleave(PIXELS, 3).repeat(1, 3, 1, 1)


class Steps:
    """A decoder whose frame is a step of one height."""

    sampling_rate = RATE

    def decode(self, codes):
        return (codes.float() / AUDIO_CODES).flatten(1).repeat_interleave(FRAME, 1)[:, None]


def image_processor(prompt=None, **layout):
    """Pictures, of any size where no grid is given."""
    from vllm_mmout.wings.tokens import VQImageProcessor

    layout = {"row_end": ROW_END, "begin": [BEGIN], "end": [END], **layout}
    layout = {"modality": "image", "first": FIRST, "size": IMAGE_CODES, **layout}
    layout = {name: value for name, value in layout.items() if value is not None}
    return VQImageProcessor(layout=layout, decoder=Cells(), prompt=prompt, value_range=(-1, 1))


def audio_processor(prompt=None, **options):
    """Sounds."""
    from vllm_mmout.wings.tokens import CodecAudioProcessor

    layout = {"modality": "audio", "first": FIRST, "size": AUDIO_CODES, "begin": [BEGIN], "end": [END]}
    return CodecAudioProcessor(layout=layout, decoder=Steps(), prompt=prompt, sampling_rate=RATE, **options)


def picture_of(processor, codes, **known):
    """What the decoder makes of codes [rows, columns]."""
    from vllm_mmout import OutputParams
    from vllm_mmout.wings.tokens.layouts import Medium

    codes = np.asarray(codes)
    medium = Medium(0, codes.size, (codes,), **{"complete": True, **known})
    return processor.decode(medium, OutputParams())


class TokenEngine:
    """Answers with what it is told to; keeps what it was asked."""

    def __init__(self, processors, tokenizer, usual=None):
        from vllm_mmout.registry.choice import Choice

        choice = Choice({name: type(one) for name, one in processors.items()}, {}, {}, "a test")
        binding = SimpleNamespace(model="painter", processors=processors, choice=choice, unguided=None)
        config = SimpleNamespace(max_model_len=LENGTH, get_diff_sampling_param=lambda: dict(usual or {}))
        self.output_processor = SimpleNamespace(binding=binding)
        self.vllm_config = SimpleNamespace(model_config=config)
        self.tokenizer = tokenizer
        self.asked = []
        self.answer = None
        """Called with prompt and sampling params; gives the media of each answer, or raises."""
        self.log_stats = False
        self.finish_reason = "stop"
        self.closed = 0
        self.waits = None

    async def generate(self, prompt, params, request_id, **_):
        self.asked.append((prompt["prompt_token_ids"], params))
        try:
            if self.waits is not None:
                await self.waits.wait()
            answers = [
                SimpleNamespace(multimodal=media, updates=[], finish_reason=self.finish_reason, token_ids=[0] * 7)
                for media in self.answer(prompt["prompt_token_ids"], params.sampling)
            ]
            yield SimpleNamespace(outputs=answers, finished=True)
        finally:
            self.closed += 1


def tokenizer_in(folder):
    """The tokenizer of token_models, as vLLM loads it."""
    from vllm.tokenizers.registry import get_tokenizer

    make_tokenizer(folder)
    return get_tokenizer(str(folder))


def token_app(processors, tokenizer, **engine):
    """The app, whose model is called ``painter``, and its engine."""
    from fastapi import FastAPI

    from vllm_mmout.serving.image_routes import Slots
    from vllm_mmout.serving.options import ServingOptions
    from vllm_mmout.serving.response.store import ResultStore
    from vllm_mmout.serving.routes import ServingPlugin
    from vllm_mmout.wings.tokens.serving.token_image_service import TokenImageService

    options = ServingOptions()
    app = FastAPI()
    ServingPlugin().attach_router(app)
    registry = SimpleNamespace(is_base_model=lambda name: name == "painter", model_name=lambda: "painter")
    models = SimpleNamespace(registry=registry, lora_requests={}, base_model_paths=[SimpleNamespace(name="painter")])
    store = ResultStore.temporary(options.result_ttl, options.max_results)
    made = TokenEngine(processors, tokenizer, **engine)
    app.state.mmout = TokenImageService.of(made, models, options, store)
    app.state.mmout_slots = Slots(options.max_waiting)
    return app, made


@contextmanager
def openai_client(app):
    """OpenAI's client of an app in this process."""
    import openai
    from starlette.testclient import TestClient

    with TestClient(app) as http:
        yield openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=http, max_retries=0)
