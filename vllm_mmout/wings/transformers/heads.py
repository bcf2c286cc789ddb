"""Choose the inputs and the output processor of a transformers model by its head, such as object detection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, TypeAlias

from vllm_mmout.errors import OptionError

KEY: Final = "transformers"
"""Name of the table in ``config.json`` with the folder and the original ``model_type`` of a transformers model."""

NATIVE: Final = "native"
"""Key in the table ``transformers`` of config.json. If its value is True, large pictures are cut into tiles instead of
scaled down.
"""

Takes: TypeAlias = Literal["image", "audio", "text", "video", "tensors"]


@dataclass(frozen=True, slots=True)
class Head:
    """Input and output settings for models with a certain head, such as a head for object detection."""

    takes: Takes
    processor: str
    """Name of the output processor for models with this head."""
    outputs: tuple[str, ...] = ()
    """Names of the model outputs to keep. If empty, all output tensors with a batch axis are kept."""
    tiled: bool = False
    """Whether large pictures are cut into tiles."""
    sized: bool = False
    """Whether the output processor needs the input's height and width."""
    text: bool = False
    """Whether vLLM itself may be able to serve text models that have this head. Such models are then left to vLLM.

    For example, to serve LlamaForSequenceClassification, vLLM converts LlamaForCausalLM to a classifier.
    """
    prompt: tuple[str, ...] = ()
    """Names of the request fields that are allowed beside the picture, such as a text or points."""
    needs: tuple[str, ...] = ()
    """Names of request fields. Each request must have at least one of them."""
    alone: bool = False
    """Whether each request gets its own forward pass. If True, the tensors of a request keep the batch axis from the
    transformers processor."""
    repeated: bool = False
    """Whether the picture is repeated for each text, because the transformers processor takes pairs of picture and
    text."""
    padding: str = ""
    """Value of the argument ``padding`` for the transformers processor, or "" to use its default."""

    drawn: bool = False
    """Whether results are drawn at random by the network's ``generate``, as in some forecasting models."""

    @property
    def encodes(self) -> bool:
        """Whether the results are an encoder's plain output tensors, which vLLM could also serve as embeddings."""
        return self.processor == "tensor" and not self.outputs


_BOXES = ("logits", "pred_boxes", "order_logits", "out_masks")
_CLASSES = ("logits", "logits_per_image")
_SEGMENTS = ("class_queries_logits", "masks_queries_logits", "logits", "pred_masks", "pred_boxes")
_TEXT = ("text",)
_TASK = ("task_inputs",)
_POINTS = ("input_points", "input_labels", "input_boxes")
_GROUNDED = (*_BOXES, "input_ids", "decoder_class_logits", "decoder_coord_logits", "classes_structure")
_MATCHES = ("mask", "matches", "matching_scores", "keypoints")

TABLES: Final[Mapping[str, Head]] = {
    "SEMANTIC_SEGMENTATION": Head("image", "semantic-segmentation", ("logits",), tiled=True, sized=True),
    **dict.fromkeys(
        ("UNIVERSAL_SEGMENTATION", "INSTANCE_SEGMENTATION", "IMAGE_SEGMENTATION"),
        Head("image", "image-segmentation", _SEGMENTS, tiled=True, sized=True),
    ),
    "DEPTH_ESTIMATION": Head("image", "depth-estimation", tiled=True, sized=True),
    "IMAGE_TO_IMAGE": Head("image", "image-to-image", ("reconstruction",), tiled=True, sized=True),
    "OBJECT_DETECTION": Head("image", "object-detection", _BOXES, tiled=True, sized=True),
    "ZERO_SHOT_OBJECT_DETECTION": Head(
        "image", "zero-shot-object-detection", _GROUNDED, tiled=True, sized=True, prompt=_TEXT, needs=_TEXT, alone=True
    ),
    "ZERO_SHOT_IMAGE_CLASSIFICATION": Head(
        "image",
        "zero-shot-classification",
        ("logits_per_image",),
        prompt=_TEXT,
        needs=_TEXT,
        alone=True,
        padding="longest",
    ),
    "VISUAL_QUESTION_ANSWERING": Head("image", "classification", ("logits",), prompt=_TEXT, needs=_TEXT),
    "DOCUMENT_QUESTION_ANSWERING": Head(
        "image", "tensor", ("start_logits", "end_logits"), prompt=("text", "text_pair", "boxes"), needs=_TEXT
    ),
    "MASK_GENERATION": Head(
        "image",
        "mask-generation",
        ("pred_masks", "iou_scores"),
        sized=True,
        prompt=_POINTS,
        needs=("input_points", "input_boxes"),
        alone=True,
    ),
    "KEYPOINT_DETECTION": Head(
        "image", "keypoint-detection", ("keypoints", "scores", "descriptors", "mask"), sized=True
    ),
    "KEYPOINT_MATCHING": Head(
        "image", "keypoint-matching", _MATCHES, sized=True, prompt=("other_image",), needs=("other_image",), alone=True
    ),
    "POSE_ESTIMATION": Head(
        "image", "pose-estimation", ("heatmaps",), prompt=("boxes",), needs=("boxes",), sized=True, alone=True
    ),
    "IMAGE_MATTING": Head("image", "image-matting", ("alphas", "foregrounds"), sized=True),
    "NORMAL_ESTIMATION": Head("image", "normal-estimation", ("normals",), tiled=True, sized=True),
    "POINTMAP_ESTIMATION": Head("image", "tensor"),
    "TEXT_RECOGNITION": Head("image", "tensor"),
    "IMAGE_CLASSIFICATION": Head("image", "classification", _CLASSES),
    "VIDEO_CLASSIFICATION": Head("video", "classification", _CLASSES),
    "AUDIO_CLASSIFICATION": Head("audio", "classification", _CLASSES),
    "SEQUENCE_CLASSIFICATION": Head("text", "classification", _CLASSES, text=True),
    "MASKED_IMAGE_MODELING": Head("image", "tensor"),
    "BACKBONE": Head("image", "tensor"),
    "IMAGE": Head("image", "tensor"),
    "AUDIO_FRAME_CLASSIFICATION": Head("audio", "tensor", ("logits",)),
    "AUDIO_XVECTOR": Head("audio", "tensor", ("logits", "embeddings")),
    "CTC": Head("audio", "tensor", ("logits",)),
    "TOKEN_CLASSIFICATION": Head("text", "tensor", ("logits",), text=True),
    "QUESTION_ANSWERING": Head("text", "tensor", ("start_logits", "end_logits")),
    "MULTIPLE_CHOICE": Head("text", "zero-shot-classification", ("logits",), needs=("choices",)),
    "MASKED_LM": Head("text", "tensor", ("logits",)),
    "NEXT_SENTENCE_PREDICTION": Head("text", "tensor", ("logits",)),
    "TIME_SERIES_CLASSIFICATION": Head("tensors", "tensor"),
    "TIME_SERIES_REGRESSION": Head("tensors", "tensor"),
    "TIME_SERIES_PREDICTION": Head("tensors", "tensor"),
    "TEXT_ENCODING": Head("text", "tensor", text=True),
}
"""Input and output settings of models by kind of head. The entry "DEPTH_ESTIMATION", for example, applies to all
architectures in transformers' table ``MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES``.

If several of transformers' tables list an architecture, the first entry here whose table lists it applies. Models that
generate text are left to vLLM.
"""


ARCHITECTURES: Final[Mapping[str, Head]] = {
    "CLIPSegForImageSegmentation": Head(
        "image",
        "text-segmentation",
        ("logits",),
        tiled=True,
        sized=True,
        prompt=_TEXT,
        needs=_TEXT,
        alone=True,
        repeated=True,
        padding="max_length",
    ),
    **{
        f"PPOCR{family}DetForObjectDetection": Head(
            "image", "object-detection", ("last_hidden_state",), tiled=True, sized=True
        )
        for family in ("V5Mobile", "V5Server", "V6Small", "V6Medium")
    },
    "OneFormerForUniversalSegmentation": Head(
        "image", "image-segmentation", _SEGMENTS, tiled=True, sized=True, prompt=_TASK, needs=_TASK
    ),
    **dict.fromkeys(
        ("TimesformerModel", "VideoMAEModel", "VideoPrismVisionModel", "VivitModel"), Head("video", "tensor")
    ),
    "PPLCNetForImageClassification": Head("image", "tensor", ("last_hidden_state",)),
    "VitMatteForImageMatting": Head(
        "image", "image-matting", ("alphas",), sized=True, prompt=("trimaps",), needs=("trimaps",)
    ),
    **dict.fromkeys(("PatchTSTForPrediction", "PatchTSMixerForPrediction"), Head("tensors", "tensor")),
    **dict.fromkeys(
        ("AutoformerForPrediction", "InformerForPrediction", "TimeSeriesTransformerForPrediction"),
        Head("tensors", "tensor", ("sequences",), drawn=True),
    ),
    "VitsModel": Head("text", "text-to-waveform", ("waveform", "sequence_lengths"), alone=True),
    "FastSpeech2ConformerModel": Head("text", "tensor", ("spectrogram",), alone=True),
    "FastSpeech2ConformerWithHifiGan": Head("text", "text-to-waveform", ("waveform",), alone=True),
    **{
        f"{family}Model": Head("audio", "tensor")
        for family in ("AST", "Data2VecAudio", "Hubert", "SEW", "UniSpeech", "UniSpeechSat", "Wav2Vec2", "Wav2Vec2Bert")
    },
    **{f"{family}Model": Head("audio", "tensor") for family in ("Wav2Vec2Conformer", "WavLM")},
}
"""Input and output settings of single architectures. These settings take precedence over the settings in `TABLES`.

An architecture is listed here if transformers' tables lack it, or if it needs other settings than the other
architectures of its table.
"""


def head_of(architecture: str) -> Head | None:
    """Return the input and output settings for an architecture, or None if this package does not serve it."""
    return _heads().get(architecture)


def described(config: Mapping[str, Any]) -> tuple[Head, Mapping[str, Any]]:
    """Return the head settings of a model, and the table ``transformers`` of the model's ``config``.

    The table has the model's folder and its original ``model_type``. Raise OptionError if ``config`` does not
    describe a model folder of the transformers library.
    """
    table, head = config.get(KEY), head_of(config["architectures"][0])
    if head is None or not isinstance(table, Mapping):
        raise OptionError(
            f"config.json names no folder of transformers: its architecture is {config['architectures']!r}; leave"
            ' "model" out of its "mmout" table'
        )
    return head, table


def folder_of(config: Mapping[str, Any]) -> str:
    """Return the folder of a transformers model from its ``config``, or "" for any other model."""
    table = config.get(KEY)
    return str(table["folder"]) if isinstance(table, Mapping) else ""


@cache
def _heads() -> dict[str, Head]:
    from transformers.models.auto import modeling_auto

    heads = dict(ARCHITECTURES)
    for name, head in TABLES.items():
        table: Mapping[str, Any] = getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES", {})
        for classes in table.values():
            for architecture in (classes,) if isinstance(classes, str) else classes:
                heads.setdefault(architecture, head)
    return heads
