"""Small pipelines of diffusers with random weights, one for each kind that is served."""

from __future__ import annotations

import string

import torch

_LETTERS = string.ascii_lowercase + string.digits
_BLOCKS = {"block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1}
_TEXT = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2}
_TEXT |= {"vocab_size": 2 * len(_LETTERS) + 2, "projection_dim": 16, "bos_token_id": 72, "eos_token_id": 73}


def pipeline(name):
    """A pipeline by the name of its class, always with the same weights."""
    import diffusers

    torch.manual_seed(5)
    made = getattr(diffusers, name)(**_COMPONENTS[name]())
    for component in made.components.values():
        if isinstance(component, torch.nn.Module):
            component.eval().requires_grad_(requires_grad=False)
    made.set_progress_bar_config(disable=True)
    return made


def _clip_tokenizer():
    from transformers import CLIPTokenizer

    words = [*_LETTERS, *(f"{letter}</w>" for letter in _LETTERS), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={word: row for row, word in enumerate(words)}, merges=[], model_max_length=77)


def _t5_tokenizer():
    from transformers import T5Tokenizer

    words = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), *((letter, -3.0) for letter in _LETTERS)]
    return T5Tokenizer(vocab=words, extra_ids=0, model_max_length=77)


def _clip(kind="CLIPTextModel"):
    import transformers

    return getattr(transformers, kind)(transformers.CLIPTextConfig(**_TEXT))


def _t5(kind="T5EncoderModel", width=32):
    import transformers

    sizes = {"d_model": width, "d_ff": 24, "d_kv": 8, "num_heads": 2, "num_layers": 1, "vocab_size": 64}
    configuration = transformers.T5Config if kind.startswith("T5") else transformers.UMT5Config
    return getattr(transformers, kind)(configuration(**sizes))


def _vae(channels=4, **options):
    from diffusers import AutoencoderKL

    ends = ("DownEncoderBlock2D",) * 2, ("UpDecoderBlock2D",) * 2
    return AutoencoderKL(
        down_block_types=ends[0], up_block_types=ends[1], latent_channels=channels, **_BLOCKS, **options
    )


def _unet(**options):
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=16,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
        **_BLOCKS,
        **{"in_channels": 4, **options},
    )


def _dit():
    import diffusers

    transformer = diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        sample_size=8,
        num_embeds_ada_norm=1000,
    )
    return {"transformer": transformer, "vae": _vae(), "scheduler": diffusers.DDIMScheduler(), "id2label": _LABELS}


_LABELS = {"3": "boat, ship", "7": "lake"}


def _stable_diffusion(**unet):
    from diffusers import DDIMScheduler

    return {
        "unet": _unet(**unet),
        "vae": _vae(sample_size=32),
        "scheduler": DDIMScheduler(
            beta_schedule="scaled_linear", clip_sample=False, set_alpha_to_one=False, steps_offset=1
        ),
        "text_encoder": _clip(),
        "tokenizer": _clip_tokenizer(),
        "safety_checker": None,
        "feature_extractor": None,
    }


def _stable_diffusion_3():
    import diffusers

    transformer = diffusers.SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=32,
        caption_projection_dim=32,
        pooled_projection_dim=32,
        out_channels=4,
        pos_embed_max_size=24,
    )
    return {
        "transformer": transformer,
        "vae": _vae(use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.06, scaling_factor=1.5),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(),
        "text_encoder": _clip("CLIPTextModelWithProjection"),
        "text_encoder_2": _clip("CLIPTextModelWithProjection"),
        "text_encoder_3": _t5(),
        "tokenizer": _clip_tokenizer(),
        "tokenizer_2": _clip_tokenizer(),
        "tokenizer_3": _t5_tokenizer(),
    }


def _wan():
    import diffusers

    transformer = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=32,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )
    vae = diffusers.AutoencoderKLWan(
        base_dim=3,
        z_dim=4,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.1] * 4,
        latents_std=[1.5] * 4,
    )
    return {
        "transformer": transformer,
        "vae": vae,
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0),
        "text_encoder": _t5("UMT5EncoderModel"),
        "tokenizer": _t5_tokenizer(),
    }


def _super_resolution(bands=4):
    import diffusers

    unet = diffusers.UNet2DModel(
        sample_size=16,
        in_channels=2 * bands,
        out_channels=bands,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
        **_BLOCKS,
    )
    vqvae = diffusers.VQModel(
        in_channels=bands,
        out_channels=bands,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=bands,
        num_vq_embeddings=32,
        **_BLOCKS,
    )
    return {"unet": unet, "vqvae": vqvae, "scheduler": diffusers.DDIMScheduler()}


_COMPONENTS = {
    "DiTPipeline": _dit,
    "StableDiffusionPipeline": _stable_diffusion,
    "StableDiffusionImg2ImgPipeline": _stable_diffusion,
    "StableDiffusionInpaintPipeline": lambda: _stable_diffusion(in_channels=9),
    "StableDiffusion3Pipeline": _stable_diffusion_3,
    "WanPipeline": _wan,
    "LDMSuperResolutionPipeline": _super_resolution,
}
KINDS = tuple(_COMPONENTS)
