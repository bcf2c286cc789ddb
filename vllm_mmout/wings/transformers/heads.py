"""The heads of transformers' auto tables: what each takes, and which output processor its results go through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, TypeAlias

from vllm_mmout.errors import OptionError

KEY: Final = "transformers"
"""Of the table in ``config.json`` where a folder of transformers that was taken says what it was."""

Takes: TypeAlias = Literal["image", "audio", "text", "video", "tensors"]


@dataclass(frozen=True, slots=True)
class Head:
    """What the architectures of one auto table have in common."""

    takes: Takes
    processor: str
    """Name of the output processor."""
    outputs: tuple[str, ...] = ()
    """What is kept of the model's output, where it has it; empty: all tensors with the requests on axis 0."""
    tiled: bool = False
    """Whether a scene is cut into tiles."""
    sized: bool = False
    """Whether the results need the input's size in pixels."""
    text: bool = False
    """Whether vLLM's own text models may serve architectures of the table that its registry does not name."""


_CLASSES = ("logits", "logits_per_image")
_BOXES = ("logits", "pred_boxes")

TABLES: Final[Mapping[str, Head]] = {
    "SEMANTIC_SEGMENTATION": Head("image", "semantic-segmentation", ("logits",), tiled=True, sized=True),
    "DEPTH_ESTIMATION": Head("image", "depth-estimation", tiled=True, sized=True),
    "IMAGE_TO_IMAGE": Head("image", "image-to-image", ("reconstruction",), tiled=True, sized=True),
    "OBJECT_DETECTION": Head("image", "object-detection", _BOXES, tiled=True, sized=True),
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
    "QUESTION_ANSWERING": Head("text", "tensor", ("start_logits", "end_logits"), text=True),
    "MASKED_LM": Head("text", "tensor", ("logits",), text=True),
    "NEXT_SENTENCE_PREDICTION": Head("text", "tensor", ("logits",)),
    "TIME_SERIES_CLASSIFICATION": Head("tensors", "tensor"),
    "TIME_SERIES_REGRESSION": Head("tensors", "tensor"),
    "TIME_SERIES_PREDICTION": Head("tensors", "tensor"),
    "TEXT_ENCODING": Head("text", "tensor", text=True),
}
"""Name of an auto table, as in ``MODEL_FOR_..._MAPPING_NAMES``, to its head; an architecture has the first that it is
in. Not here are tables of models that write tokens, which are vLLM's own."""


def head_of(architecture: str) -> Head | None:
    """The head of an architecture; None where no table that is served has it."""
    return _heads().get(architecture)


def described(config: Mapping[str, Any]) -> tuple[Head, Mapping[str, Any]]:
    """The head of a folder that was taken, and what it was: ``model_type``, ``folder``."""
    table, head = config.get(KEY), head_of(config["architectures"][0])
    if head is None or not isinstance(table, Mapping):
        raise OptionError(
            f"config.json names no folder of transformers: its architecture is {config['architectures']!r}; leave"
            ' "model" out of its "mmout" table'
        )
    return head, table


def folder_of(config: Mapping[str, Any]) -> str:
    """The folder that was taken; "" of a model that is none of transformers', for which nothing can be loaded."""
    table = config.get(KEY)
    return str(table["folder"]) if isinstance(table, Mapping) else ""


@cache
def _heads() -> dict[str, Head]:
    from transformers.models.auto import modeling_auto

    found: dict[str, Head] = {}
    for name, head in TABLES.items():
        table: Mapping[str, Any] = getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES", {})
        for classes in table.values():
            for architecture in (classes,) if isinstance(classes, str) else classes:
                found.setdefault(architecture, head)
    return found
