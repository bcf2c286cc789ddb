# ruff: noqa: INP001 - the scripts are not a package
"""Trial of one architecture in one way: build, save, start with ``vllm.LLM``, send requests, and compare."""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import compared
import small_models
from by_vllm import by_vllm
from served import over_http

IMAGES = (
    "SEMANTIC_SEGMENTATION", "UNIVERSAL_SEGMENTATION", "INSTANCE_SEGMENTATION", "IMAGE_SEGMENTATION",
    "DEPTH_ESTIMATION", "NORMAL_ESTIMATION", "IMAGE_MATTING", "IMAGE_TO_IMAGE", "OBJECT_DETECTION",
    "ZERO_SHOT_OBJECT_DETECTION", "ZERO_SHOT_IMAGE_CLASSIFICATION", "MASK_GENERATION", "KEYPOINT_DETECTION",
    "KEYPOINT_MATCHING", "POSE_ESTIMATION", "POINTMAP_ESTIMATION", "TEXT_RECOGNITION",
    "IMAGE_CLASSIFICATION", "MASKED_IMAGE_MODELING", "BACKBONE", "IMAGE",
)  # fmt: skip
"""Tables of picture models. All other tables are counted together."""
OWN = "of their own"
"""Name of the table of architectures that are in no table of transformers."""
WAYS = ("alone", "argument")
"""The two ways: with the folder alone, and with the engine argument."""
_SMALL: dict[str, Any] = {
    "gpu_memory_utilization": 0.1,
    "distributed_executor_backend": "uni",
    "max_num_seqs": 4,
    "dtype": "float32",
}
_WITH_THRESHOLD = ("object-detection", "zero-shot-object-detection", "image-segmentation")


def architectures() -> dict[str, str]:
    """Return the table that each architecture is served by, pictures first."""
    from transformers.models.auto import modeling_auto

    from vllm_mmout.wings.transformers.heads import ARCHITECTURES, TABLES

    table_of: dict[str, str] = {}
    for name in [*(name for name in IMAGES if name in TABLES), *(name for name in TABLES if name not in IMAGES)]:
        for classes in getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING_NAMES", {}).values():
            for architecture in (classes,) if isinstance(classes, str) else classes:
                table_of.setdefault(architecture, name)
    return table_of | {name: OWN for name in ARCHITECTURES if name not in table_of}


def is_left_alone(architecture: str) -> bool:
    """Return whether a folder of the architecture is left to vLLM if the engine argument is not set."""
    from vllm_mmout.wings.transformers.heads import head_of
    from vllm_mmout.wings.transformers.left_to_vllm import is_left

    head = head_of(architecture)
    return head is not None and is_left(architecture, head, str(Path(__file__).parent))


def row_of(architecture: str, way: str, *, served: bool = False) -> dict[str, Any]:
    """Return a row with architecture, table, way and result: "works", "runs" (nothing to compare with), or the error.

    ``way`` is "argument", with which the product serves any folder, or "alone". ``served`` adds requests over HTTP.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm_mmout.wings.transformers.heads import head_of

    row = {"architecture": architecture, "table": architectures()[architecture], "way": way}
    row["date"] = time.strftime("%Y-%m-%d")
    head: Any = head_of(architecture)
    left = way == "alone" and is_left_alone(architecture)
    result = "transformers itself: no model of it is small enough"
    try:
        for model in small_models.candidates(architecture, by_vllm=left):
            with tempfile.TemporaryDirectory() as folder:
                result = _tried(architecture, head, model, folder, Way(way, left=left, served=served))
            if not result.startswith("transformers itself"):
                break
    except Exception as error:  # noqa: BLE001 - any error is a result
        result = f"transformers itself: {said(error)}" if result.endswith("enough") else result
    return row | {"result": f"vLLM: {result}" if left and not result.startswith("transformers") else result}


@dataclass(frozen=True)
class Way:
    """The parameters of a trial of a folder."""

    name: str
    left: bool
    """Whether vLLM serves the folder."""
    served: bool
    """Whether the requests are also sent to a server."""


def _tried(architecture: str, head: Any, model: Any, folder: str, way: Way) -> str:
    try:
        model.save_pretrained(folder)
        small_models.save_processor(head, model.config, folder)
        inputs = compared.inputs_of(architecture, head, folder)
        expected = [compared.expected_of(head, model, folder, request) for request in inputs]
    except Exception as error:  # noqa: BLE001 - any error is a result
        return f"transformers itself: {said(error)}"
    return _by_vllm(folder, inputs, expected) if way.left else _result_of(head, folder, inputs, expected, way)


def leave_row(architecture: str, way: str, file: str, *, served: bool) -> None:
    """Try an architecture, write its row as JSON and its output to a log, and end this process."""
    with Path(f"{file}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    Path(file).write_text(json.dumps(row_of(architecture, way, served=served)))
    os._exit(0)  # vLLM's threads may block a normal exit


def _by_vllm(folder: str, inputs: list[Any], expected: list[compared.Case]) -> str:
    """Return the result of a folder that is left to vLLM."""
    from vllm import LLM
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda inspect: inspect()  # noqa: SLF001 - saves ten seconds of imports
    try:
        llm = LLM(folder, **_SMALL, max_model_len=16, enforce_eager=True)
    except Exception as error:  # noqa: BLE001 - any error is a result
        return f"does not load: {said(error.__cause__ or error)}"
    try:
        return by_vllm(llm, inputs, expected)
    except Exception as error:  # noqa: BLE001 - any error is a result
        return f"fails: {said(error)}"


def _result_of(  # noqa: PLR0911 - each step may end the trial
    head: Any, folder: str, inputs: list[Any], expected: list[compared.Case], way: Way
) -> str:
    from vllm import LLM

    from vllm_mmout.errors import MMOutError

    options = _options(head, way.name)
    try:
        llm = LLM(folder, **_SMALL, additional_config={"mmout": options})
    except Exception as error:  # noqa: BLE001 - any error is a result
        return f"refused: {said(error)}"
    try:
        together = [*inputs, inputs[0]]
        outputs = [result.outputs for result in llm.generate(together, use_tqdm=False)]
        outputs += [llm.generate([inputs[0]], use_tqdm=False)[0].outputs]
    except MMOutError as error:
        return f"fails: {said(error)}"
    except Exception as error:  # noqa: BLE001 - any error is a result
        return f"ends the engine: {said(error)}"
    try:
        differences = [
            compared.difference(case, output)
            for case, output in zip([*expected, expected[0], expected[0]], outputs, strict=True)
        ]
    except Exception as error:  # noqa: BLE001 - any error is a result
        return f"runs; transformers' post-processing: {said(error)}"
    ties = compared.ties_of([text or "" for text in differences])
    if (differs := next(filter(None, differences), "")) and not ties:
        return f"differs: {differs}"
    if way.served and (differs := over_http(folder, options, together, outputs[: len(together)])):
        return f"differs: {differs}"
    if ties:
        return f"works; in a batch, ties are decided differently, {ties}"
    return "works" if None not in differences else "runs"


def _options(head: Any, way: str) -> dict[str, Any]:
    """Return the options of the output processor."""
    options: dict[str, Any] = {"output_processor": "transformers"} if way == "argument" else {}
    if head.processor in _WITH_THRESHOLD:
        options["threshold"] = compared.THRESHOLD
    if head.processor == "text-to-waveform":
        options["sampling_rate"] = 16_000  # missing in some config.json
    if head.processor == "zero-shot-object-detection":
        options["text_threshold"] = compared.THRESHOLD
    return options


def said(error: BaseException) -> str:
    """Return an error in one line of at most 120 characters."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 120 else f"{text[:117]}..."
