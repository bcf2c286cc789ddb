"""Find the folders of the models that are part of the package."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Final

from vllm_mmout.errors import InputError, OptionError

EMBEDDED_MODELS: Final = ("water-index",)
"""Names of the models that are part of the package."""


def embedded_model(name: str = "water-index") -> str:
    """Return the absolute path of an embedded model's folder. Raise OptionError for an unknown name."""
    if name not in EMBEDDED_MODELS:
        near = difflib.get_close_matches(str(name), EMBEDDED_MODELS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise OptionError(f"no embedded model {name!r}{hint} (known: {', '.join(EMBEDDED_MODELS)})")
    return str(Path(__file__).resolve().parent / name)


_MODEL_FILES = ("config.json", "params.json", "model_index.json")
"""Names of files that identify a model folder. A model of diffusers has a ``model_index.json``."""


def found_model(model: str) -> str:
    """Return the folder of a local or embedded model. Return a hub id or an address unchanged, for vLLM to download."""
    path = Path(model)
    if path.is_dir():
        if not any((path / name).is_file() for name in _MODEL_FILES):
            raise InputError(f"the folder {model} holds no config.json; give the folder of a model")
        return model
    if model in EMBEDDED_MODELS:
        return embedded_model(model)
    for_vllm = "://" in model or model.endswith(".gguf")  # an object store, or a file of a model on the hub
    if not (path.exists() or for_vllm) and (model.startswith((".", "~", os.sep)) or model.count("/") > 1):
        raise InputError(f"there is no model folder {model} (embedded models: {', '.join(EMBEDDED_MODELS)})")
    near = difflib.get_close_matches(model, EMBEDDED_MODELS, n=1, cutoff=0.8)
    if near and not path.exists():
        raise InputError(f"there is no embedded model {model!r}; did you mean {near[0]!r}?")
    return model
