"""Engine arguments that our models need, filled in where the user left vLLM's own default."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_mmout.models.config import MODEL_TYPE

if TYPE_CHECKING:
    from vllm.engine.arg_utils import EngineArgs

ALL_DEVICES: dict[str, Any] = {
    "runner": "pooling",
    "skip_tokenizer_init": True,
    "enable_mm_embeds": True,
    "skip_mm_profiling": True,  # of an encoder beside the model, which there is none; the model itself is measured
    "enforce_eager": True,
    "mm_processor_cache_gb": 0,
    "scheduling_policy": "priority",
}
CPU = {"kv_cache_memory_bytes": 1 << 20}
"""A single-pass model has no cache of keys and values, for which vLLM would want almost all memory to be free."""

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
    from vllm_mmout.models.vllm_registry import announce  # no text model needs it

    announce(config)
    device = _device()
    wanted = dict(ALL_DEVICES, max_num_seqs=MAX_NUM_SEQS[device], **(CPU if device == "cpu" else {}))
    dtype = config.get("dtype") or config.get("torch_dtype")
    if dtype:  # vLLM's "auto" takes float16 on a CPU: wrong above 2048, and far slower
        wanted["dtype"] = dtype
    untouched = {field.name: _default(field) for field in fields(engine_args)}
    for name, value in wanted.items():
        if getattr(engine_args, name) == untouched[name]:
            setattr(engine_args, name, value)
    if engine_args.max_num_batched_tokens == untouched["max_num_batched_tokens"]:
        # A request is one token. vLLM measures memory on a device with this many tokens, in max_num_seqs requests, and
        # looks for the last token of each in what forward gives, which has one row a request.
        engine_args.max_num_batched_tokens = engine_args.max_num_seqs


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
    return _read_from_hub(model, revision)


def _read_from_hub(model: str, revision: str | None) -> dict[str, Any]:
    """The ``config.json`` of a hub id, which vLLM would fetch in its next step."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from vllm import envs

    cached = try_to_load_from_cache(model, "config.json", revision=revision)
    if isinstance(cached, str):
        return _read(Path(cached))
    if envs.VLLM_USE_MODELSCOPE:
        return {}
    try:
        return _read(Path(hf_hub_download(model, "config.json", revision=revision)))
    except (OSError, ValueError):  # offline, unknown, not allowed, no id at all: vLLM says it better
        return {}


def _read(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_bytes())
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}
