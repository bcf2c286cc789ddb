# ruff: noqa: INP001 - scripts are no package
"""Trying one architecture: built, saved as a user would, started by ``vllm.LLM``, asked, and compared."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import compared
import small_models
from served import over_http

IMAGES = (
    "SEMANTIC_SEGMENTATION", "UNIVERSAL_SEGMENTATION", "INSTANCE_SEGMENTATION", "IMAGE_SEGMENTATION",
    "DEPTH_ESTIMATION", "NORMAL_ESTIMATION", "IMAGE_MATTING", "IMAGE_TO_IMAGE", "OBJECT_DETECTION",
    "ZERO_SHOT_OBJECT_DETECTION", "ZERO_SHOT_IMAGE_CLASSIFICATION", "MASK_GENERATION", "KEYPOINT_DETECTION",
    "KEYPOINT_MATCHING", "POSE_ESTIMATION", "POINTMAP_ESTIMATION", "TEXT_RECOGNITION",
    "IMAGE_CLASSIFICATION", "MASKED_IMAGE_MODELING", "BACKBONE", "IMAGE",
)  # fmt: skip
"""Tables of pictures; all others are counted apart."""
OWN = "of their own"
"""Stands for a table with architectures that no table has."""
_WITH_THRESHOLD = ("object-detection", "zero-shot-object-detection", "image-segmentation")


def architectures() -> dict[str, str]:
    """Architecture -> the table that it is served by, pictures first."""
    from transformers.models.auto import modeling_auto

    from vllm_mmout.wings.transformers.heads import ARCHITECTURES, TABLES

    found: dict[str, str] = {}
    for name in [*(name for name in IMAGES if name in TABLES), *(name for name in TABLES if name not in IMAGES)]:
        for classes in getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES", {}).values():
            for architecture in (classes,) if isinstance(classes, str) else classes:
                found.setdefault(architecture, name)
    return found | {name: OWN for name in ARCHITECTURES if name not in found}


def row_of(architecture: str, *, served: bool = False) -> dict[str, Any]:
    """Architecture, table, and what became of it: "works", "runs" where nothing can be compared, or why not.

    ``served``: over HTTP too.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm_mmout.wings.transformers.heads import head_of

    row = {"architecture": architecture, "table": architectures()[architecture]}
    head: Any = head_of(architecture)
    result = "transformers itself: no model of it is small enough"
    try:
        for model in small_models.candidates(architecture):
            with tempfile.TemporaryDirectory() as folder:
                result = _tried(architecture, head, model, folder, served=served)
            if not result.startswith("transformers itself"):
                break
    except Exception as error:  # noqa: BLE001 - as below
        result = f"transformers itself: {said(error)}" if result.endswith("enough") else result
    return row | {"result": result}


def _tried(architecture: str, head: Any, model: Any, folder: str, *, served: bool) -> str:
    try:
        model.save_pretrained(folder)
        small_models.save_processor(head, model.config, folder)
        inputs = compared.inputs_of(architecture, head, folder)
        expected = [compared.expected_of(head, model, folder, given) for given in inputs]
    except Exception as error:  # noqa: BLE001 - it is a row
        return f"transformers itself: {said(error)}"
    return _result_of(head, folder, inputs, expected, served=served)


def leave_row(architecture: str, file: str, *, served: bool) -> None:
    """Try one in a process of its own, which this ends; its row is left as JSON, what was printed beside it."""
    with Path(f"{file}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    Path(file).write_text(json.dumps(row_of(architecture, served=served)))
    os._exit(0)  # vLLM's threads may wait


def _result_of(  # noqa: PLR0911 - each step has an end of its own
    head: Any, folder: str, inputs: list[Any], expected: list[compared.Case], *, served: bool
) -> str:
    from vllm import LLM

    from vllm_mmout.errors import MMOutError

    options = _options(head)
    try:
        llm = LLM(
            folder,
            gpu_memory_utilization=0.1,
            distributed_executor_backend="uni",
            max_num_seqs=4,
            dtype="float32",
            additional_config={"mmout": options},
        )
    except Exception as error:  # noqa: BLE001 - as above
        return f"refused: {said(error)}"
    try:
        together = [*inputs, inputs[0]]
        found = [one.outputs for one in llm.generate(together, use_tqdm=False)]
        found += [llm.generate([inputs[0]], use_tqdm=False)[0].outputs]
    except MMOutError as error:
        return f"fails: {said(error)}"
    except Exception as error:  # noqa: BLE001 - as above
        return f"ends the engine: {said(error)}"
    try:
        told = [
            compared.difference(case, one)
            for case, one in zip([*expected, expected[0], expected[0]], found, strict=True)
        ]
    except Exception as error:  # noqa: BLE001 - as above
        return f"runs; transformers' post-processing: {said(error)}"
    ties = compared.ties_of([said or "" for said in told])
    if (differs := next(filter(None, told), "")) and not ties:
        return f"differs: {differs}"
    if served and (differs := over_http(folder, options, together, found[: len(together)])):
        return f"differs: {differs}"
    if ties:
        return f"works; in a batch ties fall otherwise, {ties}"
    return "works" if None not in told else "runs"


def _options(head: Any) -> dict[str, Any]:
    """What is asked of the output processor."""
    options: dict[str, Any] = {"output_processor": "transformers"}
    if head.processor in _WITH_THRESHOLD:
        options["threshold"] = compared.THRESHOLD
    if head.processor == "text-to-waveform":
        options["sampling_rate"] = 16_000  # some config.json say none
    if head.processor == "zero-shot-object-detection":
        options["text_threshold"] = compared.THRESHOLD
    return options


def said(error: BaseException) -> str:
    """An error in a line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 300 else f"{text[:297]}..."
