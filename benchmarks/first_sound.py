"""Delay of the first sound of an utterance of 30 s: how many of its tokens and how much time it takes.

Mimi and DAC, in the sizes that transformers configures and with random weights, decode the random codes that a small
Llama generates. Mimi never looks ahead, DAC does. Sounds come in chunks of half a second through ``AsyncLLM``, whose
engine is in another process, and the first chunk is encoded as the first bytes of a WAV file.

``FIRST_SOUND_ROUNDS`` makes shorter runs. ``FIRST_SOUND_SECONDS`` changes the length of the utterance.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Figure, Row, setting
from benchmarks.token_model import WORDS, write_text_model

ROUNDS = int(setting("FIRST_SOUND_ROUNDS", "3"))
SECONDS = float(setting("FIRST_SOUND_SECONDS", "30"))
CHUNK_S = 0.5
ASKED = 10.0
"""Maximum percentage of the utterance's tokens that may have come with the first sound."""
TOLERANCE = 1e-5
"""Maximum difference between the chunks and the whole sound, relative to the loudest sample."""


@dataclass(frozen=True, slots=True)
class Codec:
    """A decoder of sounds, with its token format."""

    name: str
    codebooks: int
    frames_per_s: float
    codes: int

    @property
    def tokens(self) -> int:
        """Number of tokens of an utterance."""
        return round(SECONDS * self.frames_per_s) * self.codebooks

    @property
    def layout(self) -> dict[str, object]:
        """The layout of the tokens. Codebooks share a range of token ids, and an answer starts with the first code."""
        return {
            "modality": "audio", "first": WORDS, "size": self.codes, "codebooks": self.codebooks, "opened": True
        }  # fmt: skip

    def write(self, folder: Path) -> None:
        """Write a decoder with random weights into a folder."""
        import torch
        import transformers

        torch.manual_seed(3)
        kind = {"mimi": "Mimi", "dac": "Dac"}[self.name]
        model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")())
        for name, tensor in model.state_dict().items():
            if name.endswith("embed_sum"):  # zero in a new model, so it is randomised here
                tensor.copy_(torch.randn(tensor.shape))
        model.eval().save_pretrained(folder)


CODECS = (Codec("mimi", 8, 12.5, 2048), Codec("dac", 2, 50.0, 1024))


@dataclass(frozen=True, slots=True)
class Spoken:
    """The measurements of one utterance."""

    percent: float
    """Percentage of the utterance's tokens that had come with the first sound."""
    first_s: float
    whole_s: float
    chunks: int


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    return [_measured(codec) for codec in CODECS]


def _measured(codec: Codec) -> Row:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "model")
        write_text_model(
            folder,
            vocab_size=WORDS + codec.codes,
            max_position_embeddings=codec.tokens + 16,
            num_attention_heads=4,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=4,
        )
        codec.write(folder / "decoder")
        table = {"output_processor": "codec_audio", "layout": codec.layout, "decoder": "decoder", "threads": 1}
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"mmout": table}))
        rounds = asyncio.run(_rounds(folder, codec))
    figures = {
        "first sound % of tokens": Figure.of((utterance.percent for utterance in rounds), at_most=ASKED),
        "first sound s": Figure.of(utterance.first_s for utterance in rounds),
        "whole s": Figure.of(utterance.whole_s for utterance in rounds),
        "chunks": Figure.of(utterance.chunks for utterance in rounds),
    }
    return Row(f"{SECONDS:g} s of {codec.name}, {codec.tokens} tokens", figures)


async def _rounds(folder: Path, codec: Codec) -> list[Spoken]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine: Any = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=str(folder),
            dtype="float32",
            gpu_memory_utilization=0.3,
            distributed_executor_backend="uni",
            enforce_eager=True,
            enable_prefix_caching=False,
        )
    )
    try:
        await _spoken(engine, codec, "warm", tokens=60 * codec.codebooks)  # warms up
        return [await _spoken(engine, codec, f"round {number}", codec.tokens) for number in range(ROUNDS)]
    finally:
        engine.shutdown()


async def _spoken(engine: Any, codec: Codec, name: str, tokens: int) -> Spoken:
    """Generate one utterance, and check that its chunks make up its sound and equal the decode of all its codes."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from vllm_mmout import OutputParams
    from vllm_mmout.outputs.formats.sound_stream import SoundStream

    sampling = SamplingParams(
        max_tokens=tokens,
        min_tokens=tokens,
        ignore_eos=True,
        allowed_token_ids=list(range(WORDS, WORDS + codec.codes)),
        output_kind=RequestOutputKind.DELTA,
    )
    params = OutputParams(chunk_seconds=CHUNK_S, sampling=sampling)
    started, first_s, heard_at = time.perf_counter(), 0.0, 0
    written: list[int] = []
    chunks: list[Any] = []
    async for output in engine.generate({"prompt_token_ids": [1, 2, 3]}, params, name):
        answer = output.outputs[0]
        written += answer.token_ids
        for chunk in answer.updates:
            if not chunks:
                assert SoundStream("wav", chunk.rate, chunk.channels).write(chunk.samples)
                first_s, heard_at = time.perf_counter() - started, len(written)
            chunks.append(chunk)
    whole_s = time.perf_counter() - started
    _check(engine, codec, written, chunks, answer.multimodal[0])
    return Spoken(100 * heard_at / tokens, first_s, whole_s, len(chunks))


def _check(engine: Any, codec: Codec, written: list[int], chunks: list[Any], sound: Any) -> None:
    from vllm_mmout import OutputParams
    from vllm_mmout.wings.tokens.layouts import Medium

    joined = np.concatenate([chunk.samples for chunk in chunks], axis=1)
    assert np.array_equal(joined, sound.samples), "the chunks do not make up the sound"
    codes = tuple((np.array(written) - WORDS).reshape(-1, codec.codebooks).T)
    processor = next(iter(engine.output_processor.binding.processors.values()))
    whole = processor.decode(Medium(0, len(written), codes, complete=True), OutputParams()).samples
    assert joined.shape == whole.shape, "the chunks and the whole sound differ in length"
    assert np.abs(joined - whole).max() <= TOLERANCE * np.abs(whole).max(), "the chunks differ from the whole sound"
