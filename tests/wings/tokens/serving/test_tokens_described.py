"""The routes of models that generate tokens answer as ``/openapi.json`` says, whatever they are sent."""

from __future__ import annotations

from collections import Counter
from itertools import cycle

import numpy as np
import pytest
from hypothesis import given, settings
from judging import CHECKS, DRIVEN, judge_error
from schemathesis_apart import GenerationMode, schemathesis

pytest.importorskip("vllm", reason="the routes are vLLM's server's")

from token_service import audio_processor, image_processor, picture_of, token_app

from vllm_mmout.errors import TokenError

pytestmark = pytest.mark.engine
GENERATIONS, SPEECH = "/v1/images/generations", "/v1/audio/speech"
GENERATED = 30


@pytest.fixture(scope="module")
def model(byte_tokenizer):
    """An app whose model writes both, and its engine."""
    processors = {
        "vq_image": image_processor("{prompt}{rows:2}{columns:2}"),
        "codec_audio": audio_processor("{voice:x}{input}{instructions}"),
    }
    app, engine = token_app(processors, byte_tokenizer)
    codes = {"vq_image": np.arange(4).reshape(2, 2), "codec_audio": np.arange(9)}
    media = {name: picture_of(processor, codes[name]) for name, processor in processors.items()}

    turns = cycle([True, True, False])  # not by the prompt: what is generated decides no count

    def answer(prompt, sampling):
        if not next(turns):
            raise TokenError("token 3 at 1 is text")
        return [[media[engine.asked[-1][1].processor]]] * sampling.n

    engine.answer = answer
    return app, engine


@pytest.mark.parametrize("route", [GENERATIONS, SPEECH])
def test_whatever_is_sent_is_answered_as_described(model, route):
    """Right and wrong requests get answers of the declared form, never a fault of the server; some are honoured."""
    app, _ = model
    operation = schemathesis.openapi.from_asgi("/openapi.json", app)[route]["POST"]
    counts = Counter()
    for mode in GenerationMode:

        @settings(DRIVEN, max_examples=GENERATED)
        @given(case=operation.as_strategy(generation_mode=mode))
        def send(case):
            response = case.call()
            counts[response.status_code] += 1
            assert response.status_code < 500, response.text
            case.validate_response(response, checks=CHECKS)
            if response.status_code != 200:
                judge_error(response)

        send()
    assert counts[200] >= 5
    assert counts[422]
    assert counts[400] >= 20
