"""Small detectors of transformers with random weights, of the families whose folders say "is_encoder_decoder"."""

from __future__ import annotations

_RESNET = {"embedding_size": 8, "hidden_sizes": [8, 8, 16, 16], "depths": [1] * 4, "layer_type": "basic"}
_DETR = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "num_queries": 7,
}
_DAB = {name: value for name, value in _DETR.items() if name != "d_model"} | {"hidden_size": 16}
_DEFORMABLE = {"encoder_n_points": 2, "decoder_n_points": 2, "num_feature_levels": 2}
_RT = {
    "encoder_hidden_dim": 16,
    "encoder_in_channels": [8, 16, 16],
    "decoder_in_channels": [16] * 3,
    "feat_strides": [8, 16, 32],
    "encoder_ffn_dim": 16,
    "encoder_attention_heads": 2,
    "d_model": 16,
    "num_queries": 7,
    "decoder_layers": 2,
    "decoder_ffn_dim": 16,
    "decoder_attention_heads": 2,
    "decoder_n_points": 2,
    "num_denoising": 0,
    "eval_size": None,
    "hidden_expansion": 0.5,
}
_HGNET = {
    "stem_channels": [3, 8, 8],
    "stage_in_channels": [8, 8, 8, 16],
    "stage_mid_channels": [8] * 4,
    "stage_out_channels": [8, 8, 16, 16],
    "stage_num_blocks": [1] * 4,
    "stage_numb_of_layers": [1] * 4,
    "stage_downsample": [False, True, True, True],
    "stage_light_block": [False] * 4,
    "stage_kernel_size": [3] * 4,
    "embedding_size": 8,
    "hidden_sizes": [8, 8, 16, 16],
    "depths": [1] * 4,
    "out_features": ["stage2", "stage3", "stage4"],
}

DETECTORS = {
    "Detr": _DETR,
    "ConditionalDetr": _DETR,
    "DeformableDetr": _DETR | _DEFORMABLE | {"d_model": 32},
    "TableTransformer": _DETR,
    "DabDetr": _DAB,
    "RTDetr": _RT,
    "RTDetrV2": _RT,
    "DFine": _RT,
}
"""Family of transformers -> entries of its configuration that make it small."""


def detector(family):
    """A model ``FamilyForObjectDetection`` with random weights."""
    import torch
    import transformers

    sizes = dict(DETECTORS[family])
    if family == "DFine":
        sizes["backbone_config"] = transformers.HGNetV2Config(**_HGNET)
    elif family.startswith("RTDetr"):
        sizes["backbone_config"] = transformers.RTDetrResNetConfig(
            **_RESNET, out_features=["stage2", "stage3", "stage4"]
        )
    else:
        stages = ["stage3", "stage4"] if family == "DeformableDetr" else ["stage4"]
        sizes["backbone_config"] = transformers.ResNetConfig(**_RESNET, out_features=stages)
    torch.manual_seed(5)
    config = getattr(transformers, f"{family}Config")(num_labels=3, **sizes)
    model = getattr(transformers, f"{family}ForObjectDetection")(config)
    return model.eval().requires_grad_(requires_grad=False)
