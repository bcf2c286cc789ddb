"""Small models of transformers with random weights, one or more for each head, and their processors."""

from __future__ import annotations

import importlib

import torch

VIT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
SQUARE = {"height": 64, "width": 64}
_STAGES = {"depths": [1] * 4, "hidden_sizes": [8, 8, 16, 16]}
_RESNET = {**_STAGES, "embedding_size": 8, "layer_type": "basic"}
_DPT = {"backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8] * 4, "fusion_hidden_size": 8}
_DPT |= VIT | {"num_hidden_layers": 4, "image_size": 64, "patch_size": 16}
_SEGFORMER = _STAGES | {"num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 16}
_WAV2VEC2 = VIT | {"conv_dim": [8, 8], "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_feat_extract_layers": 2}
_WAV2VEC2 |= {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}

HEADS = {
    "SegformerForSemanticSegmentation": (_SEGFORMER | {"num_labels": 5}, ("segformer", {"size": SQUARE})),
    "DPTForSemanticSegmentation": (_DPT | {"num_labels": 4}, ("dpt", {"size": SQUARE})),
    "MobileViTForSemanticSegmentation": (
        {"image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 64]}
        | {"aspp_out_channels": 16, "num_labels": 4, "atrous_rates": [2, 4, 6]},
        ("mobilevit", {"size": {"shortest_edge": 72}, "crop_size": SQUARE}),
    ),
    "DPTForDepthEstimation": (_DPT, ("dpt", {"size": SQUARE})),
    "GLPNForDepthEstimation": (_SEGFORMER, ("glpn", {"size_divisor": 32})),
    "Swin2SRForImageSuperResolution": (
        {"image_size": 64, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 8, "upscale": 2},
        ("swin2sr", {}),
    ),
    "YolosForObjectDetection": (
        VIT | {"image_size": [64, 64], "num_detection_tokens": 7, "num_labels": 3},
        ("yolos", {"size": SQUARE}),
    ),
    "ViTForImageClassification": (VIT | {"image_size": 64, "num_labels": 4}, ("vit", {"size": SQUARE})),
    "BeitForImageClassification": (VIT | {"image_size": 64, "num_labels": 4}, ("vit", {"size": SQUARE})),
    "ResNetForImageClassification": (_RESNET | {"num_labels": 4}, ("convnext", {"size": {"shortest_edge": 64}})),
    "ConvNextForImageClassification": (_STAGES | {"num_labels": 4}, ("convnext", {"size": {"shortest_edge": 64}})),
    "ResNetBackbone": (_RESNET | {"out_features": ["stage2", "stage3"]}, ("convnext", {"size": {"shortest_edge": 64}})),
    "ViTModel": (VIT | {"image_size": 64}, ("vit", {"size": SQUARE})),
    "ASTForAudioClassification": (
        VIT | {"max_length": 64, "num_mel_bins": 64, "num_labels": 3},
        ("ASTFeatureExtractor", {"max_length": 64, "num_mel_bins": 64}),
    ),
    "Wav2Vec2ForCTC": (_WAV2VEC2 | {"vocab_size": 10}, ("Wav2Vec2FeatureExtractor", {})),
    "VideoMAEForVideoClassification": (
        VIT | {"image_size": 32, "num_frames": 4, "num_labels": 3},
        ("videomae", {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}),
    ),
    "PatchTSTForClassification": (
        {"num_input_channels": 2, "num_targets": 3, "context_length": 32, "patch_length": 8, "stride": 8, "d_model": 16}
        | {"num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16, "use_cls_token": True},
        None,
    ),
}
"""Architecture -> the entries of its configuration, and its processor: a family and options, or a class."""


def head(architecture, **changed):
    """The model, and its processor; None for a model that has none. ``changed`` are further settings of its config."""
    import transformers

    entries, made_with = HEADS[architecture]
    cls = getattr(transformers, architecture)
    torch.manual_seed(3)
    model = cls(cls.config_class(**entries | changed)).eval().requires_grad_(requires_grad=False)
    return model, None if made_with is None else processor_of(*made_with)


def processor_of(name, options):
    """A processor of transformers; of pictures the variant that does without torchvision."""
    import transformers

    if name.endswith("Extractor"):
        return getattr(transformers, name)(**options)
    module = importlib.import_module(f"transformers.models.{name}.image_processing_pil_{name}")
    (cls,) = (made for key, made in vars(module).items() if key.endswith("ImageProcessorPil"))
    return cls(**options)


def saved(folder, model, processor):
    """What ``save_pretrained`` writes, nothing changed."""
    model.save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)
    return str(folder)
