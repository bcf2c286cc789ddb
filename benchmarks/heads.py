"""Heads of transformers through the engine against transformers itself: SegFormer B0, ViT-B/16, YOLOS tiny.

The models have their real sizes and random weights, and 32 pictures form one batch. Both sides run in this process on
the same threads, in turns: ``LLM.generate`` of a folder, and the processor, the forward and the ``post_process_*`` of
transformers. Rows of "tensors" start after the processor on both sides, rows of "pictures" before it. ``HEADS_ROUNDS``
makes shorter runs, ``HEADS_ONLY="ViT"`` selects heads by name, and ``HEADS_SIDE`` makes pictures for YOLOS smaller.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compiled import timed
from benchmarks.report import Figure, Row, setting

ROUNDS = int(setting("HEADS_ROUNDS", "7"))
SIDE = int(setting("HEADS_SIDE", "512"))
ONLY = setting("HEADS_ONLY", "")
COUNT = 32
PLOTTED = ("ratio",)
PACKAGES = ("transformers",)
LEAST = 0.9
"""Minimum ratio of the throughput to that of transformers."""
_SIZE = (480, 640)
"""Height and width of a picture in pixels."""


@dataclass(frozen=True, slots=True)
class Head:
    """A model with a head of transformers, to be measured."""

    name: str
    architecture: str
    processor: str
    config: Mapping[str, Any] = field(default_factory=dict)
    processing: Mapping[str, Any] = field(default_factory=dict)
    post_process: str = ""


_YOLOS = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768, "image_size": [SIDE, SIDE]}
HEADS = (
    Head(
        "SegFormer B0",
        "SegformerForSemanticSegmentation",
        "segformer.image_processing_pil_segformer.SegformerImageProcessorPil",
        {"num_labels": 150},
        post_process="post_process_semantic_segmentation",
    ),
    Head("ViT-B/16", "ViTForImageClassification", "vit.image_processing_pil_vit.ViTImageProcessorPil"),
    Head(
        f"YOLOS tiny, {SIDE} pixels",
        "YolosForObjectDetection",
        "yolos.image_processing_pil_yolos.YolosImageProcessorPil",
        _YOLOS,
        {"size": {"height": SIDE, "width": SIDE}},
        "post_process_object_detection",
    ),
)


def run() -> list[Row]:
    """Run the benchmark and return its rows."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    kept: list[Any] = []  # when the first engine is freed, all others lose vLLM's parallel groups
    return [row for head in HEADS if ONLY in head.name for row in _rows(head, kept)]


def _rows(head: Head, kept: list[Any]) -> Iterator[Row]:
    import torch
    import transformers
    from PIL import Image
    from vllm import LLM

    from vllm_mmout.importing import import_path

    module, _, name = head.processor.rpartition(".")
    processor = import_path(f"transformers.models.{module}:{name}", "processor")(**head.processing)
    cls = getattr(transformers, head.architecture)
    torch.manual_seed(0)
    model = cls(cls.config_class(**head.config)).eval()
    random = np.random.default_rng(0)
    pictures = [Image.fromarray(random.integers(0, 256, (*_SIZE, 3), np.uint8)) for _ in range(COUNT)]
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(Path(folder))
        processor.save_pretrained(Path(folder))
        kept.append(LLM(folder, max_num_seqs=COUNT, gpu_memory_utilization=0.3, distributed_executor_backend="uni"))
    features = processor(pictures, return_tensors="pt")
    sized = {"target_sizes": torch.tensor(_SIZE)} if head.post_process else {}
    requests = [{"pixel_values": values, **sized} for values in features["pixel_values"]]

    def plain(features_of_batch: Any) -> Any:
        with torch.inference_mode():
            output = model(features_of_batch["pixel_values"])
            if not head.post_process:
                return output.logits.softmax(-1)
            return getattr(processor, head.post_process)(output, target_sizes=[_SIZE] * COUNT)

    sides: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "tensors": (lambda: _results(kept[-1], requests), lambda: plain(features)),
        "pictures": (
            lambda: _results(kept[-1], pictures),
            lambda: plain(processor(pictures, return_tensors="pt")),
        ),
    }
    for begin, (ours, theirs) in sides.items():
        ours(), theirs()  # warm
        pairs = [(timed(ours)[0], timed(theirs)[0]) for _ in range(ROUNDS)]
        engine, transformers_ = zip(*pairs, strict=True)
        figures = {
            "ratio": Figure.ratio(transformers_, engine, at_least=LEAST),
            "engine pictures/s": Figure.of(COUNT / seconds for seconds in engine),
            "transformers pictures/s": Figure.of(COUNT / seconds for seconds in transformers_),
        }
        yield Row(f"{head.name}, {COUNT} {begin}", figures)


def _results(llm: Any, requests: list[Any]) -> list[Any]:
    return [result.outputs for result in llm.generate(requests, use_tqdm=False)]
