"""Loading the pipeline of a folder; no code of the folder is run, and nothing in it is unpickled."""

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
"""Entry of ``config.json`` as one of ours: ``folder``, and ``tiled_above``, pixels of a picture."""
INDEX: Final = "model_index.json"
_NEEDS: Final = 'pipelines of diffusers need its packages: pip install "vllm-mmout[diffusion]"'


def index_of(folder: str) -> dict[str, Any]:
    """What ``model_index.json`` says; RegistrationError: it cannot be read, or names code of its own."""
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
    """The pipeline's class; RegistrationError: diffusers has none, or a part is of another package."""
    try:
        import diffusers
    except ImportError as error:
        raise RegistrationError(f"{_NEEDS} ({type_and_message(error)})") from error

    named = index.get("_class_name")
    found = getattr(diffusers, named, None) if isinstance(named, str) else None
    if not isinstance(found, type) or not issubclass(found, diffusers.DiffusionPipeline):
        raise RegistrationError(
            f"{INDEX} names the pipeline {named!r}, and diffusers {diffusers.__version__} has none of that name"
        )
    for name, part in index.items():
        package = part[0] if isinstance(part, list) and len(part) == 2 else None
        known = package in (None, "diffusers", "transformers") or hasattr(diffusers.pipelines, str(package))
        if not name.startswith("_") and not known:
            raise RegistrationError(
                f"{INDEX} has {name} of {package!r}; pipelines are served whose parts are of diffusers and transformers"
            )
    return found


@cache
def class_of_folder(folder: str) -> type:
    """The class of a folder's pipeline."""
    return class_of(index_of(folder))


def load(folder: str, dtype: torch.dtype, device: torch.device) -> Any:
    """The pipeline of a folder, on a device; ModelError: it cannot be loaded."""
    cls: Any = class_of_folder(folder)
    try:
        made = cls.from_pretrained(
            folder, dtype=dtype, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
        return made.to(device)
    except Exception as error:
        raise ModelError(
            f"{cls.__name__} cannot be loaded from {folder}: {type_and_message(error)}; put there what"
            ' pipeline.save_pretrained("FOLDER") writes'
        ) from error
