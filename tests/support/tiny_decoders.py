"""Decoders of token models with the real architectures, a few thousand random weights, and a folder each."""

from __future__ import annotations

import torch

SAMPLING_RATE = 800
"""Of the sounds, Hz: low, so that EnCodec's bandwidths give four codebooks."""


def randomised(model, seed=0):
    """Fill the codebooks, which new models leave at zero, so that each code sounds another way."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        if name.rpartition(".")[2] in {"embed", "embed_sum"}:
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return model.eval()


def emu3():
    """Emu3's decoder: 64 codes, two pixels a cell."""
    from transformers import Emu3VQVAE, Emu3VQVAEConfig

    torch.manual_seed(1)
    return randomised(
        Emu3VQVAE(
            Emu3VQVAEConfig(
                codebook_size=64,
                base_channels=32,
                channel_multiplier=[1, 1],
                num_res_blocks=1,
                attn_resolutions=[1],
                hidden_size=32,
            )
        )
    )


def janus_config():
    """Janus' decoder: 64 codes, 4 x 4 cells of two pixels."""
    from transformers import JanusVQVAEConfig

    return JanusVQVAEConfig(
        num_embeddings=64,
        latent_channels=32,
        base_channels=32,
        channel_multiplier=[1, 1],
        num_res_blocks=1,
        num_patches=4,
        projection_dim=32,
        image_token_embed_dim=32,
    )


def janus():
    """Janus' decoder."""
    from transformers import JanusVQVAE

    torch.manual_seed(2)
    return randomised(JanusVQVAE(janus_config()))


def whole_emu3():
    """A whole Emu3, with a decoder inside."""
    from transformers import Emu3Config, Emu3ForConditionalGeneration

    torch.manual_seed(3)
    text = {"vocab_size": 200, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    codes = {f"<|visual token {code:06d}|>": 102 + code for code in range(64)}
    return Emu3ForConditionalGeneration(
        Emu3Config(
            vq_config=emu3().config.to_dict(),
            text_config={**text, **_small_text()},
            vocabulary_map={"<image>": 100, "<|extra_200|>": 101, **codes},
        )
    ).eval()


def whole_janus():
    """A whole Janus, with a decoder inside."""
    from transformers import JanusConfig, JanusForConditionalGeneration

    torch.manual_seed(4)
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return JanusForConditionalGeneration(
        JanusConfig(
            text_config={"model_type": "llama", "vocab_size": 100, **_small_text()},
            vision_config={**small, "image_size": 16, "patch_size": 4, "projection_dim": 32},
            vq_config=janus_config().to_dict(),
        )
    ).eval()


def _small_text():
    return {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }


def mimi():
    """Mimi: 4 codebooks of 32."""
    from transformers import MimiConfig, MimiModel

    torch.manual_seed(5)
    return randomised(
        MimiModel(
            MimiConfig(
                sampling_rate=SAMPLING_RATE,
                hidden_size=16,
                num_filters=4,
                upsampling_ratios=[4, 2],
                codebook_size=32,
                codebook_dim=8,
                num_quantizers=4,
                vector_quantization_hidden_dimension=8,
                upsample_groups=16,
                num_hidden_layers=1,
                intermediate_size=32,
                num_attention_heads=2,
                num_key_value_heads=2,
                head_dim=8,
                sliding_window=16,
            )
        )
    )


def dac():
    """DAC: 4 codebooks of 32."""
    from transformers import DacConfig, DacModel

    torch.manual_seed(6)
    return randomised(
        DacModel(
            DacConfig(
                sampling_rate=SAMPLING_RATE,
                encoder_hidden_size=4,
                downsampling_ratios=[2, 4],
                decoder_hidden_size=16,
                n_codebooks=4,
                codebook_size=32,
                codebook_dim=4,
            )
        )
    )


def encodec():
    """EnCodec: 4 codebooks of 32, by its bandwidths."""
    from transformers import EncodecConfig, EncodecModel

    torch.manual_seed(7)
    return randomised(
        EncodecModel(
            EncodecConfig(
                sampling_rate=SAMPLING_RATE,
                target_bandwidths=[1.0, 2.0],
                hidden_size=8,
                num_filters=4,
                upsampling_ratios=[4, 2],
                codebook_size=32,
                num_lstm_layers=1,
            )
        )
    )


def xcodec():
    """X-Codec: 4 codebooks of 32, by its bandwidths."""
    from transformers import XcodecConfig, XcodecModel

    torch.manual_seed(8)
    acoustic = {"encoder_hidden_size": 4, "downsampling_ratios": [4, 2], "upsampling_ratios": [4, 2]}
    conv = {"conv_dim": [8], "conv_stride": [8], "conv_kernel": [8], "num_feat_extract_layers": 1}
    semantic = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    position = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    return randomised(
        XcodecModel(
            XcodecConfig(
                sample_rate=SAMPLING_RATE,
                target_bandwidths=[1.0, 2.0],
                codebook_size=32,
                acoustic_model_config={"model_type": "dac", **acoustic, "decoder_hidden_size": 16, "hidden_size": 16},
                semantic_model_config={"model_type": "hubert", **semantic, **conv, **position},
            )
        )
    )


def xcodec2():
    """X-Codec 2: one codebook of 32."""
    from transformers import Wav2Vec2BertConfig, Xcodec2Config, Xcodec2Model

    torch.manual_seed(10)
    semantic = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return Xcodec2Model(
        Xcodec2Config(
            sampling_rate=SAMPLING_RATE,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            encoder_hidden_size=4,
            downsampling_ratios=[4, 2],
            quantization_dim=48,  # of the semantic model and of this one
            quantization_levels=[4, 4, 2],
            semantic_model_config=Wav2Vec2BertConfig(**semantic, feature_projection_input_dim=16),
        )
    ).eval()


SNAC_CONFIG = {
    "sampling_rate": SAMPLING_RATE,
    "encoder_dim": 4,
    "encoder_rates": [2, 2],
    "decoder_dim": 16,
    "decoder_rates": [2, 2],
    "attn_window_size": None,
    "codebook_size": 32,
    "codebook_dim": 4,
    "vq_strides": [4, 2, 1],
    "noise": False,
    "depthwise": True,
}
"""Three codebooks of 32, with 1, 2 and 4 codes a frame, as Orpheus' SNAC has them."""


def snac(**changes):
    """SNAC, of the package snac."""
    from snac import SNAC

    torch.manual_seed(9)
    return randomised(SNAC(**{**SNAC_CONFIG, **changes}))
