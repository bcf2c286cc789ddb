"""A model that writes text and pictures as tokens, with random weights, and a picture decoder of a real size."""

from __future__ import annotations

import json
from pathlib import Path

WORDS = 256
"""The first ids: a token a byte."""
CODES = 16384
"""The ids behind them: Janus' codebook."""
RATE = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8}
"""Makes a step of a few requests some ten milliseconds on one core."""


def layout(side: int) -> dict[str, object]:
    """Pictures of ``side`` x ``side`` codes, without markers."""
    return {"modality": "image", "first": WORDS, "size": CODES, "grid": [side, side]}


def write_decoder(folder: Path, side: int) -> Path:
    """Write Janus' VQ decoder with its own channels, for pictures of ``side`` x ``side`` codes of 16 pixels each."""
    import torch
    from transformers import JanusVQVAE, JanusVQVAEConfig

    torch.manual_seed(1)
    JanusVQVAE(JanusVQVAEConfig(num_embeddings=CODES, num_patches=side)).eval().save_pretrained(folder)
    return folder


def write_model(folder: Path, decoder: Path, side: int, length: int) -> Path:
    """Write a Llama that fits a decoder's codes.

    Args:
        folder: where to; made.
        decoder: folder of the picture decoder, which runs on one thread.
        side: codes of a row, and rows.
        length: tokens of a request, its prompt included.

    """
    write_text_model(folder, vocab_size=WORDS + CODES, max_position_embeddings=length, num_attention_heads=8, **RATE)
    table = {"output_processor": "vq_image", "layout": layout(side), "decoder": str(decoder), "threads": 1}
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"mmout": table}))
    return folder


def write_text_model(folder: Path, **config: int) -> Path:
    """Write a Llama with random weights, in float32, and a tokenizer; ``config`` is what its `LlamaConfig` says."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(2)
    LlamaForCausalLM(LlamaConfig(dtype="float32", **config)).save_pretrained(folder)
    _write_tokenizer(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    """A fast one in which each byte is a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
