"""Engine arguments that our models need, filled in where the user left vLLM's own default."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_mmout.models.config import MODEL_TYPE
from vllm_mmout.models.known import announce

if TYPE_CHECKING:
    from vllm.engine.arg_utils import EngineArgs

ALL_DEVICES: dict[str, Any] = {
    "runner": "pooling",
    "skip_tokenizer_init": True,
    "enable_mm_embeds": True,
    "enforce_eager": True,
    "mm_processor_cache_gb": 0,
    "scheduling_policy": "priority",
}
MAX_NUM_SEQS = {"cpu": 4, "gpu": 16}
"""vLLM's own default makes batches of 256 tiles."""


def fill_in(engine_args: EngineArgs) -> None:
    """Set the defaults of a folder with ``"model_type": "mmout"`` and find its class; leave any other model alone.

    vLLM passes every default explicitly, so a field that has vLLM's own default counts as not set.

    Raises:
        MMOutError: the folder names no class, or one that cannot be found or imported.

    """
    config = _config(engine_args.model, engine_args.revision)
    if config.get("model_type") != MODEL_TYPE:
        return
    announce(config)
    wanted = dict(ALL_DEVICES, max_num_seqs=MAX_NUM_SEQS[_device()])
    dtype = config.get("dtype") or config.get("torch_dtype")
    if dtype:  # vLLM's "auto" takes float16 on a CPU: wrong above 2048, and far slower
        wanted["dtype"] = dtype
    untouched = {field.name: _default(field) for field in fields(engine_args)}
    for name, value in wanted.items():
        if getattr(engine_args, name) == untouched[name]:
            setattr(engine_args, name, value)


def _device() -> str:
    from vllm.platforms import current_platform

    return "cpu" if current_platform.is_cpu() else "gpu"


def _default(field: Any) -> Any:
    return field.default if field.default is not MISSING else field.default_factory()


def _config(model: str, revision: str | None) -> dict[str, Any]:
    """The model's ``config.json``; empty where there is none, which vLLM then reports better than we could."""
    folder = Path(model)
    if folder.is_dir():
        file = folder / "config.json"
        return _read(file) if file.is_file() else {}
    if folder.exists() or "://" in model:
        return {}
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(model, "config.json", revision=revision)
    return _read(Path(cached)) if isinstance(cached, str) else {}


def _read(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_bytes())
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}
