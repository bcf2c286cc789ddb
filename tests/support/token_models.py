"""Small Llama models whose vocabulary has words, pictures and sounds; random weights, decoders of real architectures.

The tokenizer is byte-level BPE without merges: every byte is a token, so that any text comes back character for
character. Behind the 256 bytes come the special tokens, then the media codes.
"""

from __future__ import annotations

import json
from pathlib import Path

BYTES = 256
BOS, EOS, PAD = 256, 257, 258
BEGIN, END, ROW_END = 259, 260, 261
FIRST = 262
"""Of the media codes."""
IMAGE_CODES = 64
"""As Emu3's decoder in tiny_decoders has."""
AUDIO_CODES = 32
"""Of each of the four codebooks of Mimi's decoder there."""
VOCABULARY = 768

IMAGE_LAYOUT = {
    "modality": "image",
    "first": FIRST,
    "size": IMAGE_CODES,
    "row_end": ROW_END,
    "begin": [BEGIN],
    "end": [END],
}
"""Pictures of any number of rows, of any length."""


def special_tokens():
    """Their texts, by id."""
    names = {BOS: "<s>", EOS: "</s>", PAD: "<pad>", BEGIN: "<boi>", END: "<eoi>", ROW_END: "<eol>"}
    return names | {FIRST + code: f"<code {code}>" for code in range(VOCABULARY - FIRST)}


def write_byte_tokenizer(folder, words, special, **named):
    """Write a fast tokenizer of the bytes, then ``words``, then the texts ``special``; ``named`` says what some are."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    texts = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *words]
    tokenizer = Tokenizer(models.BPE({text: number for number, text in enumerate(texts)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)


def make_tokenizer(folder):
    """Write the tokenizer of these models."""
    special = [text for _, text in sorted(special_tokens().items())]
    names = dict(zip(("bos_token", "eos_token", "pad_token"), special, strict=False))
    write_byte_tokenizer(folder, [], special, **names)


def make_model(folder, table, decoder=None, *, max_length=512):
    """Write a model folder.

    Args:
        folder: where to; made.
        table: the ``mmout`` table of its config.json; None: a model of text alone.
        decoder: a decoder of tiny_decoders, written to the folder ``decoder`` in it.
        max_length: tokens of a request.

    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=max_length,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        torch_dtype="float32",
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    make_tokenizer(folder)
    if table is not None:
        file = folder / "config.json"
        written = json.loads(file.read_text()) | {"mmout": table}
        file.write_text(json.dumps(written))
    if decoder is not None:
        decoder.save_pretrained(folder / "decoder")
    return folder


def image_model(folder, **options):
    """A model that writes pictures, decoded by Emu3's decoder."""
    from tiny_decoders import emu3

    table = {"output_processor": "vq_image", "layout": IMAGE_LAYOUT, "decoder": "decoder", **options}
    return make_model(folder, table, emu3())


AUDIO_LAYOUT = {
    "modality": "audio",
    "first": FIRST,
    "size": AUDIO_CODES,
    "codebooks": 4,
    "order": "interleaved",
    "begin": [BEGIN],
    "end": [END],
}
"""Sounds of any number of frames, each of four codes."""


def audio_model(folder, **options):
    """A model that writes sounds, decoded by Mimi's decoder."""
    from tiny_decoders import mimi

    table = {"output_processor": "codec_audio", "layout": AUDIO_LAYOUT, "decoder": "decoder", **options}
    return make_model(folder, table, mimi())


ENGINE = {
    "gpu_memory_utilization": 0.3,
    "distributed_executor_backend": "uni",
    "dtype": "float32",
    "max_model_len": 512,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 128 << 20,
    "seed": 0,
    "logits_processors": ["scripted_tokens:Scripted"],
}
"""Arguments of small engines."""

DRAWING = (
    "--dtype",
    "float32",
    "--enforce-eager",
    "--max-model-len",
    "512",
    "--logits-processors",
    "drawing_tokens:Drawing",
)
"""Flags of servers of such models, which write media as drawing_tokens says."""
DRAWN_CHAT = "<s>{% for one in messages %}{{ one.content }}{% endfor %}<pad>{{ size | default('3x4') }}<boi>"
SPOKEN_CHAT = "{{ voice | default('tara') }}: {% for one in messages %}{{ one.content }}{% endfor %}"
PAINTER = ("--served-model-name", "painter", "--chat-template", DRAWN_CHAT)
SPEAKER = ("--served-model-name", "speaker", "--chat-template", SPOKEN_CHAT)
