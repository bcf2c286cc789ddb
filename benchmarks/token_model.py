"""A model with random weights that writes text and pictures as tokens, and a picture decoder of realistic size."""

from __future__ import annotations

import json
from pathlib import Path

WORDS = 256
"""Number of text tokens, which have the first ids: one for each byte."""
CODES = 16384
"""Number of picture tokens, which have the ids after the text tokens: Janus' codebook."""
RATE = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8}
"""Size of a Llama whose step of a few requests takes some ten milliseconds on one core."""


def layout(side: int) -> dict[str, object]:
    """Return the layout of pictures of ``side`` x ``side`` codes, without markers."""
    return {"modality": "image", "first": WORDS, "size": CODES, "grid": [side, side]}


def write_decoder(folder: Path, side: int) -> Path:
    """Write Janus' VQ decoder with its own channels, for pictures of ``side`` x ``side`` codes of 16 pixels each."""
    import torch
    from transformers import JanusVQVAE, JanusVQVAEConfig

    torch.manual_seed(1)
    JanusVQVAE(JanusVQVAEConfig(num_embeddings=CODES, num_patches=side)).eval().save_pretrained(folder)
    return folder


def write_model(folder: Path, decoder: Path, side: int, length: int) -> Path:
    """Write a Llama whose tokens include the codes of a decoder.

    Args:
        folder: The folder to create.
        decoder: The folder of the picture decoder, which runs on one thread.
        side: Number of rows, and of columns, of a picture's codes.
        length: Largest number of tokens of a request, with its prompt.

    """
    write_text_model(folder, vocab_size=WORDS + CODES, max_position_embeddings=length, num_attention_heads=8, **RATE)
    table = {"output_processor": "vq_image", "layout": layout(side), "decoder": str(decoder), "threads": 1}
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"mmout": table}))
    return folder


def write_text_model(folder: Path, **config: int) -> Path:
    """Write a Llama with random weights in float32, and a tokenizer. ``config`` holds arguments of `LlamaConfig`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(2)
    LlamaForCausalLM(LlamaConfig(dtype="float32", **config)).save_pretrained(folder)
    _write_tokenizer(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    """Write a fast tokenizer that makes a token of each byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
