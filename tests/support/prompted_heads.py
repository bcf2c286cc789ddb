"""Small models of transformers that take texts, points, boxes or another picture, with random weights."""

from __future__ import annotations

import torch
from small_heads import SQUARE, VIT, processor_of

_WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "wet", "dry", "field", "a", "of", ".")
_CLIP = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
_TEXT = _CLIP | {"vocab_size": 64, "max_position_embeddings": 16, "eos_token_id": 2, "bos_token_id": 1}
_VISION = _CLIP | {"image_size": 32, "patch_size": 16}


def bert_tokenizer(folder):
    """A tokenizer of a few words."""
    from transformers import BertTokenizer

    (folder / "vocab.txt").write_text("\n".join(_WORDS))
    return BertTokenizer(str(folder / "vocab.txt"))


def clip_tokenizer():
    """A tokenizer of single letters, as CLIP's."""
    from transformers import CLIPTokenizer

    letters = [f"{letter}{end}" for letter in "abcdefghijklmnopqrstuvwxyz" for end in ("", "</w>")]
    vocab = {token: number for number, token in enumerate(["<|pad|>", "<|startoftext|>", "<|endoftext|>", *letters])}
    return CLIPTokenizer(vocab=vocab, merges=[], model_max_length=16)


def prompted(architecture, folder):
    """The model, and its processor."""
    import transformers

    torch.manual_seed(5)
    cls = getattr(transformers, architecture)
    square = {"height": 32, "width": 32}
    text, vision = {"text_config": _TEXT, "vision_config": _VISION}, {"size": square}
    made = {
        "OwlViTForObjectDetection": lambda: (
            cls.config_class(**text, projection_dim=16),
            transformers.OwlViTProcessor(processor_of("owlvit", vision), clip_tokenizer()),
        ),
        "CLIPModel": lambda: (
            cls.config_class(**text, projection_dim=16),
            transformers.CLIPProcessor(processor_of("clip", vision | {"crop_size": square}), clip_tokenizer()),
        ),
        "CLIPSegForImageSegmentation": lambda: (
            cls.config_class(
                **text,
                projection_dim=16,
                reduce_dim=16,
                decoder_num_attention_heads=2,
                extract_layers=[0, 1],
                decoder_intermediate_size=16,
                conditional_layer=0,
            ),
            transformers.CLIPSegProcessor(processor_of("vit", vision), clip_tokenizer()),
        ),
        "SamModel": lambda: (
            cls.config_class(
                vision_config=VIT
                | {"image_size": 64, "output_channels": 16, "mlp_dim": 16, "window_size": 2}
                | {"global_attn_indexes": [1], "num_pos_feats": 8},
                prompt_encoder_config={"hidden_size": 16, "image_size": 64},
                mask_decoder_config={
                    "hidden_size": 16,
                    "mlp_dim": 16,
                    "num_attention_heads": 2,
                    "iou_head_hidden_dim": 8,
                },
            ),
            transformers.SamProcessor(processor_of("sam", {"size": {"longest_edge": 64}, "pad_size": SQUARE})),
        ),
        "VitPoseForPoseEstimation": lambda: (
            cls.config_class(
                backbone_config=transformers.VitPoseBackboneConfig(
                    **VIT, image_size=[64, 48], patch_size=[16, 16], out_indices=[2]
                ),
                num_labels=5,
            ),
            processor_of("vitpose", {"size": {"height": 64, "width": 48}}),
        ),
        "SuperPointForKeypointDetection": lambda: (
            cls.config_class(encoder_hidden_sizes=[8, 8, 8, 8], decoder_hidden_size=8, descriptor_decoder_dim=8),
            processor_of("superpoint", {"size": SQUARE}),
        ),
        "LightGlueForKeypointMatching": lambda: (
            cls.config_class(
                keypoint_detector_config={
                    "model_type": "superpoint",
                    "initializer_range": 0.3,
                    "encoder_hidden_sizes": [8, 8, 8, 8],
                    "decoder_hidden_size": 8,
                    "descriptor_decoder_dim": 8,
                },
                descriptor_dim=8,
                filter_threshold=0.0,
                num_hidden_layers=2,
                num_attention_heads=1,
            ),
            processor_of("lightglue", {"size": SQUARE}),
        ),
        "VitMatteForImageMatting": lambda: (
            cls.config_class(
                backbone_config=transformers.VitDetConfig(
                    **{k: v for k, v in VIT.items() if k != "intermediate_size"},
                    image_size=64,
                    patch_size=16,
                    num_channels=4,
                    out_features=["stage2"],
                ),
                hidden_size=16,
                convstream_hidden_sizes=[4, 8, 8],
                fusion_hidden_sizes=[8, 8, 8, 4],
            ),
            processor_of("vitmatte", {}),
        ),
        "ViltForQuestionAnswering": lambda: (
            cls.config_class(**VIT, vocab_size=len(_WORDS), image_size=32, patch_size=16, num_labels=4),
            transformers.ViltProcessor(processor_of("vilt", {"size": {"shortest_edge": 32}}), bert_tokenizer(folder)),
        ),
        "LayoutLMv3ForQuestionAnswering": lambda: (
            cls.config_class(
                **VIT,
                vocab_size=64,
                max_position_embeddings=40,
                max_2d_position_embeddings=101,
                coordinate_size=2,
                shape_size=4,
                input_size=32,
                patch_size=16,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
            ),
            transformers.LayoutLMv3Processor(
                processor_of("layoutlmv3", {"size": square, "apply_ocr": False}), layout_tokenizer()
            ),
        ),
        **dict.fromkeys(
            ("BertForMultipleChoice", "BertForQuestionAnswering"),
            lambda: (
                cls.config_class(**VIT, vocab_size=len(_WORDS), initializer_range=0.5),
                bert_tokenizer(folder),
            ),
        ),
        "VitsModel": lambda: (
            cls.config_class(
                vocab_size=30,
                hidden_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                ffn_dim=16,
                flow_size=16,
                upsample_initial_channel=16,
                upsample_rates=[4, 4],
                upsample_kernel_sizes=[8, 8],
                spectrogram_bins=9,
                resblock_kernel_sizes=[3],
                resblock_dilation_sizes=[[1, 3, 5]],
                prior_encoder_num_flows=1,
                posterior_encoder_num_wavenet_layers=1,
                prior_encoder_num_wavenet_layers=1,
                noise_scale=0.0,
                noise_scale_duration=0.0,
                use_stochastic_duration_prediction=False,
                sampling_rate=8000,
            ),
            vits_tokenizer(folder),
        ),
    }
    config, processor = made[architecture]()
    return cls(config).eval().requires_grad_(requires_grad=False), processor


def layout_tokenizer():
    """A tokenizer of letters, as LayoutLMv3's."""
    from transformers import LayoutLMv3Tokenizer

    tokens = ["<pad>", "<s>", "</s>", "<unk>", "<mask>", *"\u0120abcdefghijklmnopqrstuvwxyz"]
    return LayoutLMv3Tokenizer(vocab={token: number for number, token in enumerate(tokens)}, merges=[])


def vits_tokenizer(folder):
    """A tokenizer of letters, as that of VITS."""
    import json

    from transformers import VitsTokenizer

    letters = {letter: number for number, letter in enumerate(" abcdefghijklmnopqrstuvwxyz")}
    (folder / "letters.json").write_text(json.dumps(letters))
    return VitsTokenizer(str(folder / "letters.json"), phonemize=False, pad_token=" ", unk_token="z")  # noqa: S106 - tokens of text
