"""Load the diffusers pipeline of a model folder, without running the folder's code and without unpickling."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.errors import ModelError, RegistrationError, type_and_message

if TYPE_CHECKING:
    import torch

KEY: Final = "diffusers"
"""Key of the diffusers pipeline's settings in ``config.json``. The settings are ``folder`` and ``tiled_above``.

``folder`` is the folder of the pipeline. A result with more than ``tiled_above`` pixels is decoded in tiles.
"""
INDEX: Final = "model_index.json"
_NEEDS: Final = 'pipelines of diffusers need its packages: pip install "vllm-mmout[diffusion]"'


def index_of(folder: str) -> dict[str, Any]:
    """Read a pipeline folder's ``model_index.json``. Raise RegistrationError if it is not a readable JSON object."""
    file = Path(folder) / INDEX
    try:
        index = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RegistrationError(
            f"{file} cannot be read: {type_and_message(error)}; put there what"
            ' pipeline.save_pretrained("FOLDER") writes'
        ) from error
    if not isinstance(index, dict):
        raise RegistrationError(f"{file} must be an object, got {type(index).__name__}")
    return index


def class_of(index: Mapping[str, Any]) -> type:
    """Return the diffusers class that a ``model_index.json`` names. Raise RegistrationError if it is not supported."""
    try:
        import diffusers
    except ImportError as error:
        raise RegistrationError(f"{_NEEDS} ({type_and_message(error)})") from error

    class_name = index.get("_class_name")
    pipeline = getattr(diffusers, class_name, None) if isinstance(class_name, str) else None
    if not isinstance(pipeline, type) or not issubclass(pipeline, diffusers.DiffusionPipeline):
        raise RegistrationError(
            f"{INDEX} names the pipeline {class_name!r}, and diffusers {diffusers.__version__} has none of that name"
        )
    for name, part in index.items():
        package = part[0] if isinstance(part, list) and len(part) == 2 else None
        loadable = package in (None, "diffusers", "transformers") or hasattr(diffusers.pipelines, str(package))
        if not name.startswith("_") and not loadable:
            raise RegistrationError(
                f"{INDEX} has {name} of {package!r}; pipelines are served whose parts are of diffusers and transformers"
            )
    return pipeline


@cache
def class_of_folder(folder: str) -> type:
    """Return the diffusers class of the pipeline in a folder."""
    return class_of(index_of(folder))


def load(folder: str, dtype: torch.dtype, device: torch.device) -> Any:
    """Load the diffusers pipeline in a folder and move it to a device. Raise ModelError if it cannot be loaded."""
    cls: Any = class_of_folder(folder)
    try:
        pipeline = cls.from_pretrained(
            folder, dtype=dtype, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
        return pipeline.to(device)
    except Exception as error:
        raise ModelError(
            f"{cls.__name__} cannot be loaded from {folder}: {type_and_message(error)}; put there what"
            ' pipeline.save_pretrained("FOLDER") writes'
        ) from error
