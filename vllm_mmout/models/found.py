"""Where the model lies that a command line names."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from vllm_mmout.errors import InputError
from vllm_mmout.models.embedded import EMBEDDED_MODELS, embedded_model


def found_model(model: str) -> str:
    """Where a model lies.

    Args:
        model: a folder, or the name of an embedded model; hub ids, addresses and single files are left to vLLM.

    Returns:
        The folder, or what was given.

    Raises:
        InputError: it is a folder that does not exist, or that holds no model, or nearly the name of an embedded one.

    """
    path = Path(model)
    if path.is_dir():
        if not any((path / name).is_file() for name in ("config.json", "params.json")):
            raise InputError(f"the folder {model} holds no config.json; give the folder of a model")
        return model
    if model in EMBEDDED_MODELS:
        return str(embedded_model(model))
    vllms = "://" in model or model.endswith(".gguf")  # of object stores, or one file of a hub's model
    if not (path.exists() or vllms) and (model.startswith((".", "~", os.sep)) or model.count("/") > 1):
        raise InputError(f"there is no model folder {model} (embedded models: {', '.join(EMBEDDED_MODELS)})")
    near = difflib.get_close_matches(model, EMBEDDED_MODELS, n=1, cutoff=0.8)
    if near and not path.exists():
        raise InputError(f"there is no embedded model {model!r}; did you mean {near[0]!r}?")
    return model
