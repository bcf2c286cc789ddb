"""Small models of transformers that find segments, with random weights that find several."""

from __future__ import annotations

import torch
from small_heads import SQUARE, VIT, processor_of

_SWIN = {"image_size": 64, "patch_size": 4, "embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2]}
_SWIN |= {"window_size": 4, "out_features": ["stage1", "stage2", "stage3", "stage4"]}
_LABELS = {"id2label": {0: "field", 1: "water", 2: "road"}, "label2id": {"field": 0, "water": 1, "road": 2}}


def segmenting(architecture):
    """The model, and its processor."""
    import transformers
    from transformers import DetrConfig, MaskFormerSwinConfig, ResNetConfig, SwinConfig

    cls = getattr(transformers, architecture)
    made = {
        "Mask2FormerForUniversalSegmentation": lambda: (
            cls.config_class(
                backbone_config=SwinConfig(**_SWIN), feature_size=32, mask_feature_size=32, hidden_dim=32,
                encoder_feedforward_dim=16, encoder_layers=1, decoder_layers=2, num_attention_heads=2, num_queries=8,
                dim_feedforward=16, **_LABELS,
            ),
            processor_of("mask2former", {"size": SQUARE}),
        ),
        "MaskFormerForInstanceSegmentation": lambda: (
            cls.config_class(
                backbone_config=MaskFormerSwinConfig(**_SWIN), fpn_feature_size=32, mask_feature_size=32,
                decoder_config=DetrConfig(
                    d_model=16, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=16, num_queries=8,
                    encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=16,
                ),
                **_LABELS,
            ),
            processor_of("maskformer", {"size": SQUARE}),
        ),
        "DetrForSegmentation": lambda: (
            cls.config_class(
                use_timm_backbone=False, use_pretrained_backbone=False, backbone=None,
                backbone_config=ResNetConfig(
                    hidden_sizes=[8, 8, 16, 16], depths=[1] * 4, embedding_size=8, layer_type="basic",
                    out_features=["stage1", "stage2", "stage3", "stage4"],
                ),
                d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=16, decoder_ffn_dim=16, num_queries=8,
                encoder_attention_heads=8, decoder_attention_heads=8, **_LABELS,
            ),
            processor_of("detr", {"size": SQUARE}),
        ),
        "EomtForUniversalSegmentation": lambda: (
            cls.config_class(
                **{k: v for k, v in VIT.items() if k != "intermediate_size"}, mlp_ratio=2, image_size=64, patch_size=16,
                num_queries=8, num_blocks=1, num_upscale_blocks=1, **_LABELS,
            ),
            processor_of("eomt", {"size": {"shortest_edge": 64, "longest_edge": 64}, "do_pad": True}),
        ),
    }  # fmt: skip
    torch.manual_seed(8)
    config, processor = made[architecture]()
    model = cls(config).eval().requires_grad_(requires_grad=False)
    for parameter in model.parameters():  # so that queries differ, and are sure
        if parameter.ndim > 1:
            parameter.normal_(0, 2.5 / parameter[0].numel() ** 0.5)
    return model, processor
