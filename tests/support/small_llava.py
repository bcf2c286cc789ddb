"""A folder of a small LLaVA with random weights, by transformers, and what transformers generates of pictures."""

from __future__ import annotations

import json
from pathlib import Path

import torch

IMAGE = "<image>"
WORDS = ["<unk>", "<s>", "</s>", IMAGE, "what", "is", "this", "?", "and", *(f"w{number}" for number in range(119))]


def write_llava(folder, architecture):
    """Write the folder, whose ``config.json`` names an architecture; return the model and the processor."""
    from transformers import LlavaForConditionalGeneration

    torch.manual_seed(11)
    model = LlavaForConditionalGeneration(_config()).eval()
    model.save_pretrained(folder)
    file = Path(folder) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "architectures": [architecture]}))
    processor = llava_processor()
    processor.save_pretrained(folder)
    return model, processor


def generated(model, processor, prompt, pictures, count=8):
    """Return the tokens that transformers generates greedily for one prompt."""
    inputs = processor(text=prompt, images=pictures or None, return_tensors="pt")
    with torch.inference_mode():
        tokens = model.generate(**inputs, do_sample=False, max_new_tokens=count, min_new_tokens=count)
    return tokens[0, inputs["input_ids"].shape[1] :].tolist()


def _config():
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig

    size = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "initializer_range": 0.3}
    vision = CLIPVisionConfig(num_hidden_layers=2, image_size=16, patch_size=4, **size)
    text = LlamaConfig(
        num_hidden_layers=2,
        num_key_value_heads=2,
        vocab_size=len(WORDS),
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **size,
    )
    token = WORDS.index(IMAGE)
    return LlavaConfig(
        vision_config=vision, text_config=text, image_token_id=token, initializer_range=0.3, dtype="float32"
    )


def llava_processor():
    """Return the processor of the folder, with a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import CLIPImageProcessor, LlavaProcessor, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))  # noqa: S106 - a token of a text
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, extra_special_tokens={"image_token": IMAGE}, **special)
    images = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    return LlavaProcessor(
        images, fast, patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )
