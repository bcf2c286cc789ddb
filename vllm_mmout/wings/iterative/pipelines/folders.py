"""Recognise folders with a diffusers pipeline, and complete their ``config.json`` so that they can be served."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_MODEL: Final = "vllm_mmout.wings.iterative.pipelines.model:PipelineModel"


def as_ours(
    config: Mapping[str, Any], folder: str, *, asked: str | None, settings: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Convert the ``config.json`` of a diffusers pipeline to this package's format. Return None for any other model.

    The folder need not have a ``config.json``. If it has, its entries, such as ``mmout`` or ``bands``, take precedence.
    """
    del settings  # pipelines do not use the settings
    del asked  # no other wing serves pipelines
    from vllm_mmout.wings.iterative.pipelines.loading import INDEX, KEY, class_of_folder

    place = Path(folder)
    if "architectures" in config or not (place / INDEX).is_file():
        return None
    pipeline = class_of_folder(str(place.absolute()))
    table = config.get("mmout")
    entries = {"output_processor": _processor(config, pipeline), **(table if isinstance(table, Mapping) else {})}
    return {
        **config,
        "dtype": config.get("dtype", "float32"),
        "architectures": [pipeline.__name__],
        "mmout": {**entries, "model": _MODEL},
        KEY: {**config.get(KEY, {}), "folder": str(place.absolute())},
    }


def _processor(config: Mapping[str, Any], pipeline: Any) -> str:
    if "bands" in config:
        return "regression"
    return "video" if "num_frames" in inspect.signature(pipeline.__call__).parameters else "image"
