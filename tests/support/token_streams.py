"""Streams of tokens of the models in token_models, and what engines say of them."""

from __future__ import annotations

import numpy as np
from token_models import AUDIO_LAYOUT, BYTES, IMAGE_LAYOUT

from vllm_mmout.wings.tokens.layouts import TokenLayout

PICTURE = TokenLayout.from_mapping(IMAGE_LAYOUT)
SOUND = TokenLayout.from_mapping(AUDIO_LAYOUT)
TEXT = list(range(BYTES))
"""Ids of the tokens that are text."""


def codes(rows, columns, seed=0):
    """Any codes of a picture."""
    return np.random.default_rng(seed).integers(0, IMAGE_LAYOUT["size"], (rows, columns))


def of_text(text):
    """The tokens of a text: byte for byte, as the tests' tokenizer has them."""
    return [TOKENIZER[byte] for byte in text.encode()]


def _byte_tokens():
    from tokenizers.pre_tokenizers import ByteLevel

    letters = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    return [letters[names[byte]] for byte in range(256)]


TOKENIZER = _byte_tokens()


def seen(completion):
    """What vLLM itself says of an answer."""
    names = ("index", "text", "finish_reason", "stop_reason", "cumulative_logprob", "logprobs")
    return {name: getattr(completion, name) for name in names} | {"token_ids": list(completion.token_ids)}


def in_one_step(patch, llm, tokens):
    """Have the engine answer with all of its tokens in one step."""
    from vllm.v1.engine import FinishReason

    client = type(llm.llm_engine.engine_core)
    original = client.get_output

    def get_output(self):
        outputs = original(self)
        for output in outputs.outputs:
            output.new_token_ids[:] = tokens
            output.finish_reason = FinishReason.LENGTH
        return outputs

    patch.setattr(client, "get_output", get_output)


def fail_on(monkeypatch, engine_processor, grid):
    """Have the decoder of a bound engine's first processor raise on pictures of a grid."""
    processor = next(iter(engine_processor.binding.processors.values()))
    decode_batch = processor.decode_batch

    def failing(media):
        if any(one.grid == grid for one in media):
            raise ValueError(f"no pictures of {grid}")
        return decode_batch(media)

    monkeypatch.setattr(processor, "decode_batch", failing)
