"""Folders of the models that docs/models.md names: their published architecture and configuration, random weights.

Vision models have the published sizes. Language models and diffusion models keep their structure, vocabulary and token
ids, and are narrow.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from token_models import BYTES, write_byte_tokenizer

ORPHEUS = "canopylabs/orpheus-3b-0.1-ft"
SNAC = "snac_24khz"
EMU3 = "Emu3-community/Emu3-Gen-hf"
PIPELINE = "stable-diffusion-v1-5"


def write_named(name, folder):
    """Write the folder of the model that docs/models.md calls ``name``."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    _WRITERS[name](folder)
    return folder


_NORMALISED = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], "do_normalize": True}


def _save(folder, model, **processor):
    """Write a model and the ``preprocessor_config.json`` of its published folder."""
    model.eval().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))


def _segformer(folder):
    """SegFormer B0, 150 classes of ADE20K: 3.8 million parameters."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    model = SegformerForSemanticSegmentation(SegformerConfig(num_labels=150))
    named = {"feature_extractor_type": "SegformerFeatureExtractor", "do_resize": True, "reduce_labels": True}
    _save(folder, model, **named, **_NORMALISED, size=512, resample=2)


def _depth_anything(folder):
    """Depth Anything V2 Small: DINOv2 with 12 layers of 384, 25 million parameters."""
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

    backbone = Dinov2Config(
        hidden_size=384,
        num_attention_heads=6,
        image_size=518,
        patch_size=14,
        reshape_hidden_states=False,
        out_features=["stage3", "stage6", "stage9", "stage12"],
    )
    config = DepthAnythingConfig(
        backbone_config=backbone,
        reassemble_hidden_size=384,
        neck_hidden_sizes=[48, 96, 192, 384],
        fusion_hidden_size=64,
    )
    sizes = {"size": {"height": 518, "width": 518}, "keep_aspect_ratio": True, "ensure_multiple_of": 14}
    named = {"image_processor_type": "DPTImageProcessor", "do_resize": True, "do_rescale": True, "do_pad": False}
    _save(folder, DepthAnythingForDepthEstimation(config), **named, **sizes, **_NORMALISED, resample=3)


def _rt_detr(folder):
    """RT-DETR with ResNet-50 and the 80 classes of COCO: 43 million parameters."""
    from transformers import RTDetrConfig, RTDetrForObjectDetection

    named = {"image_processor_type": "RTDetrImageProcessor", "do_resize": True, "do_rescale": True, "do_pad": False}
    sizes = {"size": {"height": 640, "width": 640}, "do_normalize": False}
    _save(folder, RTDetrForObjectDetection(RTDetrConfig(num_labels=80)), **named, **sizes)


def _tokenizer(folder, words, special, **named):
    """Write a byte-level tokenizer of ``words`` tokens of text, 256 of which are bytes, with ``special`` after them."""
    write_byte_tokenizer(folder, [f"word {number}" for number in range(words - BYTES)], special, **named)


def _orpheus(folder):
    """Orpheus: Llama 3.2 with 156,940 tokens, here with two layers of 256 instead of 28 of 3072."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=156_940,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=131_072,
        bos_token_id=128_000,
        eos_token_id=128_001,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500_000.0,
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
        },
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    llama = {0: "<|begin_of_text|>", 1: "<|end_of_text|>", 9: "<|eot_id|>"}
    special = [llama.get(number, f"<|reserved_special_token_{number}|>") for number in range(256)]
    special += [f"<custom_token_{number}>" for number in range(156_940 - 128_256)]
    _tokenizer(folder, 128_000, special, bos_token=special[0], eos_token=special[1], pad_token=special[2])


def _snac(folder):
    """SNAC of 24 kHz, 20 million parameters."""
    import snac

    config = {
        "sampling_rate": 24_000,
        "encoder_dim": 48,
        "encoder_rates": [2, 4, 8, 8],
        "decoder_dim": 1024,
        "decoder_rates": [8, 8, 4, 2],
        "attn_window_size": None,
        "codebook_size": 4096,
        "codebook_dim": 8,
        "vq_strides": [4, 2, 1],
        "noise": True,
        "depthwise": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(snac.SNAC(**config).state_dict(), folder / "pytorch_model.bin")


def _emu3(folder):
    """Emu3: 184,622 tokens and a VQ-VAE of 32,768 codes, here with two layers of 128 instead of 32 of 4096."""
    from transformers import Emu3Config, Emu3ForConditionalGeneration, Emu3ImageProcessor, Emu3Processor

    texts = [f"<|reserved {number}|>" for number in range(151_643, 184_622)]

    def put(token, text):
        texts[token - 151_643] = text

    for token, text in {
        151_643: "<|endoftext|>",
        151_846: "<|extra_200|>",
        151_847: "<|extra_201|>",
        151_849: "<|extra_203|>",
        151_850: "<|extra_204|>",
        151_851: "<|image token|>",
        151_852: "<|image start|>",
        151_853: "<|image end|>",
    }.items():
        put(token, text)
    codes = {f"<|visual token {code:06d}|>": 151_854 + code for code in range(32_768)}
    for text, token in codes.items():
        put(token, text)
    text = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    config = Emu3Config(
        text_config=text,
        vq_config={"base_channels": 32, "hidden_size": 128},
        vocabulary_map={**codes, "<image>": 151_851, "<|extra_200|>": 151_846},
    )
    Emu3ForConditionalGeneration(config).save_pretrained(folder)
    extra = {
        "image_token": "<|image token|>",
        "boi_token": "<|image start|>",
        "eoi_token": "<|image end|>",
        "image_wrapper_token": "<|image token|>",
        "eof_token": "<|extra_201|>",
    }
    named = {"bos_token": "<|extra_203|>", "eos_token": "<|extra_204|>", "pad_token": "<|endoftext|>"}
    _tokenizer(folder, 151_643, texts, extra_special_tokens=extra, **named)
    from transformers import AutoTokenizer

    Emu3Processor(Emu3ImageProcessor(), AutoTokenizer.from_pretrained(folder)).save_pretrained(folder)


def _stable_diffusion(folder):
    """Stable Diffusion 1.5: the published blocks, a tenth as wide."""
    import diffusers
    import transformers
    from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker
    from small_pipelines import _clip_tokenizer

    clip = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2}
    clip |= {"projection_dim": 64}
    text = {**clip, "vocab_size": 74, "bos_token_id": 72, "eos_token_id": 73}
    vision = {**clip, "image_size": 224, "patch_size": 14}
    blocks = {"layers_per_block": 2, "norm_num_groups": 32}
    channels = (32, 64, 128, 128)
    diffusers.StableDiffusionPipeline(
        unet=diffusers.UNet2DConditionModel(
            sample_size=64,
            block_out_channels=channels,
            cross_attention_dim=64,
            attention_head_dim=8,
            **blocks,
        ),
        vae=diffusers.AutoencoderKL(
            sample_size=512,
            block_out_channels=channels,
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            latent_channels=4,
            **blocks,
        ),
        scheduler=diffusers.PNDMScheduler(
            beta_start=0.00085,
            beta_end=0.012,
            beta_schedule="scaled_linear",
            skip_prk_steps=True,
            set_alpha_to_one=False,
            steps_offset=1,
        ),
        text_encoder=transformers.CLIPTextModel(transformers.CLIPTextConfig(**text)),
        tokenizer=_clip_tokenizer(),
        safety_checker=StableDiffusionSafetyChecker(
            transformers.CLIPConfig(vision_config=vision, text_config=text, projection_dim=64)
        ),
        feature_extractor=transformers.CLIPImageProcessor(),
    ).save_pretrained(folder)


_WRITERS = {
    "nvidia/segformer-b0-finetuned-ade-512-512": _segformer,
    "depth-anything/Depth-Anything-V2-Small-hf": _depth_anything,
    "PekingU/rtdetr_r50vd": _rt_detr,
    ORPHEUS: _orpheus,
    SNAC: _snac,
    EMU3: _emu3,
    PIPELINE: _stable_diffusion,
}
NAMED = tuple(_WRITERS)
