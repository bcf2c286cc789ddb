"""The layouts of models that generate pictures and sounds as tokens, with the ids of their vocabularies."""

from __future__ import annotations

from vllm_mmout.wings.tokens.layouts import TokenLayout

EMU3 = TokenLayout(
    modality="image", first=151854, size=32768, row_end=151846, begin=(151851,), end=(151847, 151853), opened=True
)
"""<|visual token 000000|>; <|extra_200|> after each row; <|image token|>; <|extra_201|><|image end|>."""

JANUS = TokenLayout(modality="image", first=0, size=16384, grid=(24, 24), begin=(100016,), opened=True)
"""Codes of the head for pictures, which has a vocabulary of its own; <begin_of_image> ends the prompt."""

ANOLE = TokenLayout(modality="image", first=4, size=8192, grid=(32, 32), begin=(8197,), end=(8196,))
"""Chameleon's vocabulary: pictures between <racm3:break> and <eoss>."""

ORPHEUS = TokenLayout(
    modality="audio",
    first=128266,
    size=4096,
    codebooks=3,
    order="interleaved",
    pattern=(0, 1, 2, 2, 1, 2, 2),
    begin=(128257,),
    end=(128258,),
)
"""SNAC: three codebooks at rates of 1, 2 and 4; each of the seven slots has ids of its own."""

LLASA = TokenLayout(modality="audio", first=128264, size=65536, begin=(128260,), end=(128261,), opened=True)
"""XCodec2: <|s_0|>; <|SPEECH_GENERATION_START|> ends the prompt; <|SPEECH_GENERATION_END|>."""

OUTETTS = TokenLayout(
    modality="audio",
    first=(1000, 3000),
    size=1024,
    codebooks=2,
    order="interleaved",
    begin=(50,),
    end=(51,),
    opened=True,
    text_inside=True,
)
"""DAC with two codebooks, <|c1_0|> and <|c2_0|>; between <|audio_start|> and <|audio_end|> words stand among them. The
ids are made up."""

MUSICGEN = TokenLayout(modality="audio", first=0, size=2048, codebooks=4, order="delayed", pad=2048, opened=True)
"""EnCodec with four codebooks of one range, flattened step by step."""
