# ruff: noqa: INP001 - the scripts are not a package
"""Models of transformers with few layers and random weights, each with its family's processor and default values."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

LARGEST = 400_000_000
"""Largest number of parameters of a model that is tried."""
_LAYERS = ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers")
_PARTS = ("text_config", "vision_config", "audio_config", "qformer_config", "backbone_config", "encoder_config")
_VIT = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
_SAPIENS = {**_VIT, "num_key_value_attention_heads": 2, "num_first_full_attention_layers": 1}
_SAPIENS |= {"num_hidden_layers": 2, "num_last_full_attention_layers": 1}
_SAPIENS |= {"head_config": {"upsample_out_channels": [32, 16], "conv_out_channels": [16]}}
_TIMM = {"architecture": "resnet18", "num_labels": 10}
_TIMM |= {"pretrained_cfg": {"input_size": [3, 224, 224], "mean": [0.5] * 3, "std": [0.5] * 3, "num_classes": 10}}
_OCR_BLOCKS = {
    "reduce_channel": [1, 1, 0],
    "return_channel": [1, 1, 0],
    **{
        f"{way}_{ratio}": [kernel, [1, 1], [side // 2 for side in kernel]]
        for ratio, long in (("longratio", 7), ("midratio", 5), ("shortratio", 3))
        for way, kernel in (
            ("vertical_long_to_small_conv", [long, 1]),
            ("horizontal_small_to_long_conv", [1, long]),
            ("symmetric_conv_long", [long, long]),
        )
    },
}
ENTRIES = {
    "BeitForSemanticSegmentation": {**_VIT, "num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]},
    "Data2VecVisionForSemanticSegmentation": {**_VIT, "num_hidden_layers": 4, "out_indices": [1, 2, 3, 4]},
    "EomtForUniversalSegmentation": {**_VIT, "num_hidden_layers": 4, "num_blocks": 2},
    "EomtDinov3ForUniversalSegmentation": {"num_hidden_layers": 4, "num_blocks": 2},
    "Wav2Vec2BertForCTC": {"vocab_size": 32, "num_hidden_layers": 2},
    "Wav2Vec2ConformerForCTC": {"vocab_size": 32, "num_hidden_layers": 2},
    **{f"Pixio{kind}": {**_VIT, "num_hidden_layers": 2} for kind in ("Model", "Backbone")},
    **{
        f"PerceiverForImageClassification{kind}": {
            "num_cross_attention_heads": 1,
            "num_latents": 32,
            "d_latents": 64,
            "num_self_attention_heads": 4,
            "num_self_attends_per_block": 2,
            "image_size": 224,
        }
        for kind in ("Learned", "Fourier", "ConvProcessing")
    },
    "TimmBackbone": {"backbone": "resnet18", "use_pretrained_backbone": False},
    **{f"TimmWrapper{kind}": _TIMM for kind in ("Model", "ForImageClassification")},
    "VitMatteForImageMatting": {
        "backbone_config": {**_VIT, "model_type": "vitdet", "num_channels": 4, "out_features": ["stage2"]}
        | {"num_hidden_layers": 2},
        "hidden_size": 64,
    },
    "GPTBigCodeForSequenceClassification": {"n_embd": 128, "n_head": 4, "n_layer": 2, "vocab_size": 128},
    "OPTForSequenceClassification": {
        "hidden_size": 128,
        "word_embed_proj_dim": 128,
        "num_attention_heads": 4,
        "ffn_dim": 128,
        "num_hidden_layers": 2,
    },
    "LwDetrForObjectDetection": {"projector_scale_factors": [1.0]},
    "PPOCRV5ServerDetForObjectDetection": {"intraclass_block_config": _OCR_BLOCKS, "kernel_list": [3, 2, 2]},
    "PPOCRV6MediumDetForObjectDetection": {"intraclass_block_config": _OCR_BLOCKS, "kernel_list": [3, 2, 2]},
    "Owlv2ForObjectDetection": {"vision_config": {"image_size": 960, "num_hidden_layers": 2}},
    "PPDocLayoutV2ForObjectDetection": {"class_thresholds": [0.5] * 25, "class_order": list(range(25))},
    **{
        f"Sapiens2For{task}": _SAPIENS
        for task in ("SemanticSegmentation", "NormalEstimation", "PoseEstimation", "PointmapEstimation")
    },
    **{
        f"{family}ForPrediction": {
            "prediction_length": 6,
            "context_length": 16,
            "num_time_features": 2,
            "num_parallel_samples": 5,
        }
        for family in ("Autoformer", "Informer", "TimeSeriesTransformer")
    },
    "Sapiens2ForImageMatting": {**_SAPIENS, "num_labels": 4},
}
"""Entries of configurations, for architectures whose default configuration does not work."""
_OF_ANOTHER = {"d_fine": "rt_detr", "dab-detr": "conditional_detr", "rt_detr_v2": "rt_detr"}
"""Family whose processor the checkpoints have, for families without an image processor of their own."""
_EXTRACTORS = {"wav2vec2-bert": "SeamlessM4TFeatureExtractor"}
_OPTIONS = {
    "eomt": {"do_pad": True},
    "layoutlmv3": {"apply_ocr": False},
    "imagegpt": {
        "clusters": [[level / 256 - 1] * 3 for level in range(512)],
        "size": {"height": 32, "width": 32},
    },
    "vitpose_backbone": {"size": {"height": 256, "width": 192}},
    "eomt_dinov3": {"do_pad": True},
    **{
        kind: {"size": {"height": side, "width": side}}
        for kind, side in {
            "blip-2": 224,
            "llama4_vision_model": 448,
            "lw_detr": 640,
            "lw_detr_vit": 256,
            "omdet-turbo": 640,
            "rf_detr": 560,
            "videoprism_vision_model": 288,
        }.items()
    },
}
"""Options of the processors of families whose networks accept only inputs like their checkpoints' processors make."""
_NARROW = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 4, "num_local_experts": 4,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_embd": 64, "n_head": 4, "n_layer": 2, "n_inner": 128,
    "d_model": 64, "d_ff": 128, "d_kv": 16, "ffn_dim": 128, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
}  # fmt: skip
"""Sizes of a small language model."""
_FOR_VLLM = {
    "hidden_size": 128, "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "n_embd": 128,
    "n_head": 4, "d_model": 128, "embedding_size": 128, "dim": 128, "n_heads": 4, "hidden_dim": 256,
    "moe_intermediate_size": 64,
}  # fmt: skip
"""Sizes that vLLM's attention on a CPU supports."""
_QUIET = {"noise_scale": 0.0, "noise_scale_duration": 0.0, "use_stochastic_duration_prediction": False}
"""Entries that turn off sampling, so that two runs give equal results."""
_LARGE = 1000
_SMALLER = {"shortest_edge": 256, "longest_edge": 352}
"""Size of pictures for processors with a larger default, such as DETR's."""
_WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "</s>", "<s>", "wet", "dry", "field", "a", "of")


def candidates(architecture: str, *, by_vllm: bool = False) -> Iterator[Any]:
    """Yield models of an architecture: with few layers, narrow, then with the default configuration.

    ``by_vllm`` adds a first model whose heads are as wide as vLLM's attention on a CPU needs. Raise ValueError at the
    end with the last error, if a model could not be built.
    """
    import torch
    import transformers

    cls = getattr(transformers, architecture)
    failed: list[str] = []
    for form in (*([_narrow_for_vllm] if by_vllm else []), _fewer_layers, _narrower, _as_it_is):
        config = cls.config_class(**ENTRIES.get(architecture, {}))
        for name, value in _QUIET.items():
            if hasattr(config, name):
                setattr(config, name, value)
        if architecture not in ENTRIES:
            form(config)
        _with_lists(config)
        try:
            with torch.device("meta"):
                count = sum(parameter.numel() for parameter in cls(config).parameters())
            if count > LARGEST:
                raise ValueError(f"{count / 1e6:.0f} million parameters")  # noqa: TRY301
            torch.manual_seed(0)
            model = cls(config).eval().float()
        except Exception as error:  # noqa: BLE001 - the next form may work
            failed.append(f"{type(error).__name__}: {error}")
        else:
            yield model
        if architecture in ENTRIES:
            break
    if failed:
        raise ValueError(failed[-1])


def _as_it_is(config: Any) -> None:
    """Keep the default configuration."""


def _with_lists(config: Any) -> None:
    """Replace tuples with lists, as in config.json."""
    for name, value in vars(config).items():
        if isinstance(value, tuple):
            setattr(config, name, list(value))


def _narrower(config: Any, sizes: Mapping[str, int] = _NARROW) -> None:
    """Make a language model with few heads and experts."""
    _fewer_layers(config)
    for name, value in sizes.items():
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, value)
    for part in filter(None, (getattr(config, name, None) for name in _PARTS)):
        if hasattr(part, "to_dict"):
            _narrower(part, sizes)


def _narrow_for_vllm(config: Any) -> None:
    _narrower(config, _NARROW | _FOR_VLLM)


def _fewer_layers(config: Any, depth: int = 0) -> None:
    """Reduce the number of layers, unless another entry refers to layers."""
    outs = getattr(config, "out_indices", None) or getattr(config, "backbone_out_indices", None)
    for name in _LAYERS:
        value = getattr(config, name, None)
        if isinstance(value, int) and value > 2 and not outs:
            setattr(config, name, 2)
    for name in ("layer_types", "mlp_layer_types"):
        kinds = getattr(config, name, None)
        if isinstance(kinds, list | tuple):
            setattr(config, name, list(kinds)[: getattr(config, "num_hidden_layers", None)])
    if isinstance(getattr(config, "depths", None), list | tuple):
        config.depths = [1] * len(config.depths)
    for name in _PARTS:
        part = getattr(config, name, None)
        if part is not None and hasattr(part, "to_dict") and depth < 3:
            _fewer_layers(part, depth + 1)


def save_processor(head: Any, config: Any, folder: str) -> None:
    """Save the processor of the model's family, with its default values."""
    import transformers
    from transformers.models.auto import (
        feature_extraction_auto,
        image_processing_auto,
        processing_auto,
        video_processing_auto,
    )

    kind = config.model_type
    family = kind.removesuffix("_vision_model")
    if head.takes == "text":
        tokenizer().save_pretrained(folder)
    elif head.takes == "audio":
        names = feature_extraction_auto.FEATURE_EXTRACTOR_MAPPING_NAMES
        name = _EXTRACTORS.get(kind) or names.get(kind, "Wav2Vec2FeatureExtractor")
        getattr(transformers, name)().save_pretrained(folder)
    elif head.takes == "video" and (named := video_processing_auto.VIDEO_PROCESSOR_MAPPING_NAMES.get(family)):
        name = next(iter(named.values())) if isinstance(named, Mapping) else named
        getattr(transformers, name)(do_sample_frames=False, **_OPTIONS.get(kind, {})).save_pretrained(folder)
    elif head.takes in ("image", "video"):
        named = image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES.get(_OF_ANOTHER.get(kind, kind))
        if kind == "timm_wrapper":  # its config.json has the image processing
            return
        processor = image_processor(named, kind)
        if kind == "oneformer":
            classes = {str(number): {"name": f"class {number}", "isthing": 1} for number in range(config.num_labels)}
            Path(folder, "classes.json").write_text(json.dumps(classes))
            processor = type(processor)(repo_path=folder, class_info_file="classes.json", size=_SMALLER)
        named = processing_auto.PROCESSOR_MAPPING_NAMES.get(kind)
        if head.prompt and named:
            cls = getattr(transformers, named)
            parts = inspect.signature(cls.__init__).parameters
            components = {"image_processor": processor, "tokenizer": tokenizer()}
            processor = cls(**{name: part for name, part in components.items() if name in parts})
        processor.save_pretrained(folder)


def image_processor(named: Any, kind: str) -> Any:
    """Return a family's image processor with default values, or ViT's for families without one, such as backbones."""
    import transformers

    names = list(named.values()) if isinstance(named, Mapping) else list(named or ())
    for name in [name_or_none for name_or_none in names if name_or_none] or ["ViTImageProcessor"]:
        try:
            cls = getattr(transformers, name)
            processor = cls()
        except (ImportError, AttributeError):
            continue
        if kind in _OPTIONS:
            return cls(**_OPTIONS[kind])
        size = dict(getattr(processor, "size", None) or {})
        return cls(size=_SMALLER) if size.get("longest_edge", 0) > _LARGE else processor
    raise ValueError(f"{kind} has no image processor that can be made here")


def tokenizer() -> Any:
    """Return a tokenizer of a few words, which is not of any family."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(_WORDS)}, unk_token="[UNK]"))  # noqa: S106 - a token of text
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]", "eos": "</s>"}
    special["bos"] = "<s>"
    named = {f"{name}_token": token for name, token in special.items()}
    return PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=16, **named)
