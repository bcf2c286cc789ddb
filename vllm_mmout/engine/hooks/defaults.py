"""Set the engine arguments that this package's models need, unless the user has set them."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine.hooks.unserved_folders import record_alternative
from vllm_mmout.engine.settings import OPTIONS_KEY
from vllm_mmout.errors import OptionError
from vllm_mmout.models.config import MODEL_TYPE
from vllm_mmout.models.kind import kind_of
from vllm_mmout.models.model_folders import as_ours, family_of, is_served, served_class, served_if_named
from vllm_mmout.registry.registration import NONE
from vllm_mmout.registry.resolve import KEY
from vllm_mmout.wing import wings

if TYPE_CHECKING:
    from vllm.engine.arg_utils import EngineArgs

ALL_DEVICES: dict[str, Any] = {
    "runner": "pooling",
    "skip_tokenizer_init": True,
    "enable_mm_embeds": True,
    "skip_mm_profiling": True,  # it profiles a separate encoder, which our models lack; the model itself is profiled
    "enforce_eager": True,
    "mm_processor_cache_gb": 0,
    "max_model_len": 1,  # each request is one token
    "scheduling_policy": "priority",
}
CPU = {"kv_cache_memory_bytes": 1 << 20}
"""Engine arguments to add on a CPU. They make the KV cache tiny, because models of this package use no KV cache.

With vLLM's default size of the KV cache, the engine starts only if almost all of the machine's memory is free.
"""

_FOR_VLLM = ("convert", "model_impl")
"""Engine arguments that only vLLM's own model classes use. If the user sets any, vLLM's own class is used."""
_FOR_VLLMS_CLASS = ("runner", "pooler_config", "hf_overrides")
"""Engine arguments that select vLLM's own class for a model if the user sets any of these arguments.

vLLM must also have a class for the model.
"""

_NO_CACHE = "and this model has no cache of keys and values; leave it out"
_UNUSABLE = {
    "quantization": (
        "which is for vLLM's own layers, and this model is plain PyTorch; leave it out, or choose a smaller dtype"
    ),
    "enable_prefix_caching": _NO_CACHE,
    "kv_transfer_config": _NO_CACHE,
    "mm_processor_kwargs": (
        "which is for vLLM's own input processors, and the inputs of this model are read by vllm_mmout; leave it out,"
        " or write what is meant into the model's config.json or its input mapper"
    ),
}
"""Reasons for refusing an engine argument, by the argument's name. Each reason is the end of an error message."""

MAX_NUM_SEQS = {"cpu": 4, "gpu": 16}
"""Default of ``max_num_seqs``, the largest number of requests in a batch, for each device.

With vLLM's own default, a batch could have 256 tiles.
"""


def fill_in(engine_args: EngineArgs) -> None:
    """Set the engine arguments that a model needs, and register the model's class with vLLM.

    This is done for model folders that this package or an extension package serves. The arguments of models that vLLM
    serves itself are left unchanged. vLLM passes every default explicitly, so a field with vLLM's own default counts as
    not set.
    """
    config = _config(engine_args)
    record_alternative(engine_args.model, None)
    family, taken = family_of(config), None
    if config.get("model_type") != MODEL_TYPE and family is None:
        taken = _translated_config(engine_args, config)
        if taken is None:
            _refuse_another_type(config)
            _leave_to_vllm(engine_args, config)
            return
        config = taken
    from vllm_mmout.models.vllm_registry import announce, withdraw  # no text model needs it

    if family is not None and _switched_off(engine_args, config):
        withdraw(config["architectures"][0])
        return
    _refuse_unusable(engine_args)
    announce(config, instead=taken is not None)
    device = _device()
    wanted = dict(ALL_DEVICES, max_num_seqs=MAX_NUM_SEQS[device], **(CPU if device == "cpu" else {}))
    # vLLM's "auto" chooses float16 on a CPU, which rounds integers above 2048 and is far slower.
    wanted["dtype"] = config.get("dtype") or config.get("torch_dtype") or "float32"
    architecture = config["architectures"][0]
    if is_served(architecture):
        model = served_class(architecture)
        if getattr(model, "loads_itself", False):
            wanted["load_format"] = "dummy"  # keeps vLLM from looking for weights
        if (kind := kind_of(model)) is not None:
            wanted.update(kind.engine_arguments(config))
    untouched = {field.name: _default(field) for field in fields(engine_args)}
    for name, value in wanted.items():
        if getattr(engine_args, name) == untouched[name]:
            setattr(engine_args, name, value)
    _fit_tokens_to_requests(engine_args, untouched["max_num_batched_tokens"])


def _refuse_unusable(engine_args: EngineArgs) -> None:
    """Raise OptionError if an engine argument is set that models of this package cannot use, such as quantization."""
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if (count := getattr(engine_args, name)) > 1:
            raise OptionError(
                f"{name} is {count}, and this model is plain PyTorch, which runs whole on one device; leave it out, or"
                f" run {count} engines by data_parallel_size={count}",
                param=name,
            )
    for name, reason in _UNUSABLE.items():
        if value := getattr(engine_args, name):
            raise OptionError(f"{name} is {value!r}, {reason}", param=name)


def _translated_config(engine_args: EngineArgs, config: dict[str, Any]) -> dict[str, Any] | None:
    """Translate ``config.json`` from an extension package's format to this package's format.

    Return None if vLLM serves the folder itself. The engine argument may name an extension package in place of an
    output processor. That package then serves the folder even if vLLM could, and the folder selects the processor.
    """
    if engine_args.config_format not in ("auto", "hf"):
        from vllm_mmout.models.folder_parser import taken_before  # no text model needs it

        return taken_before(engine_args.model, engine_args.config_format)
    if _switched_off(engine_args, config):
        return None
    processor = _engine_table(engine_args).get(KEY)
    if processor is None and _asks_vllm(engine_args, config):
        return None
    entries = as_ours(config, engine_args.model, processor, _engine_table(engine_args))
    if entries is None:
        return None
    from vllm_mmout.models.folder_parser import take  # no text model needs it

    engine_args.config_format = take(engine_args.model, entries)
    if processor in [wing.name for wing in wings()]:
        table = {name: value for name, value in _engine_table(engine_args).items() if name != KEY}
        engine_args.additional_config = {**engine_args.additional_config, OPTIONS_KEY: table}
    return entries


def _asks_vllm(engine_args: EngineArgs, config: dict[str, Any]) -> bool:
    """Return whether the user has set engine arguments that select vLLM's own class for the model."""
    defaults = {field.name: _default(field) for field in fields(engine_args)}
    names = {name for name in (*_FOR_VLLM, *_FOR_VLLMS_CLASS) if getattr(engine_args, name) != defaults[name]}
    architectures = config.get("architectures")
    if not names or names & set(_FOR_VLLM) or not isinstance(architectures, list) or not architectures:
        return bool(names & set(_FOR_VLLM))
    from vllm_mmout.models.vllm_registry import class_of_vllm  # no other text model needs it

    return class_of_vllm(architectures[0]) is not None


def _leave_to_vllm(engine_args: EngineArgs, config: dict[str, Any]) -> None:
    """Let vLLM serve a model with vLLM's own class. Record which extension package could serve the model instead.

    If an earlier engine of this process has registered another class for the architecture, that class is withdrawn.
    """
    wing = served_if_named(config, engine_args.model)
    own = engine_args.config_format in ("auto", "hf") and _engine_table(engine_args).get(KEY) is None
    if own and not _switched_off(engine_args, config):
        record_alternative(engine_args.model, wing)
    architectures = config.get("architectures")
    for architecture in architectures if isinstance(architectures, list) else ():
        if isinstance(architecture, str) and is_served(architecture):
            from vllm_mmout.models.vllm_registry import withdraw

            withdraw(architecture, converted=wing is not None)


def _engine_table(engine_args: EngineArgs) -> dict[str, Any]:
    """Return ``additional_config["mmout"]`` of the engine arguments, or an empty dict if it is missing."""
    additional = engine_args.additional_config
    table = additional.get(OPTIONS_KEY) if isinstance(additional, dict) else None
    return table if isinstance(table, dict) else {}


def _switched_off(engine_args: EngineArgs, config: dict[str, Any]) -> bool:
    """Return whether the output processor is "none". The engine argument takes precedence over config.json.

    vLLM's own class then serves the model.
    """
    for table in (_engine_table(engine_args), config, config.get("mmout")):
        processor = table.get(KEY) if isinstance(table, dict) else None
        if processor is not None:
            return bool(processor == NONE)
    return False


def _refuse_another_type(config: dict[str, Any]) -> None:
    """Raise OptionError if ``config.json`` has ``mmout.model`` (the model class), but not the model type "mmout"."""
    table = config.get("mmout")
    if isinstance(table, dict) and "model" in table:
        raise OptionError(
            f'config.json names the model {table["model"]!r} in its "mmout" table, and its "model_type" is'
            f' {json.dumps(config.get("model_type"))}; write "model_type": "{MODEL_TYPE}" to have the class used'
        )


def _fit_tokens_to_requests(engine_args: EngineArgs, unset: Any) -> None:
    """Set ``max_num_batched_tokens`` to ``max_num_seqs``, because a request to a model of this package has one token.

    vLLM measures memory with a step of ``max_num_batched_tokens`` tokens, and looks up the last token of each request
    in the output of ``forward``. That output has only one row for each request.
    """
    requests, tokens = engine_args.max_num_seqs, engine_args.max_num_batched_tokens
    if tokens == unset or tokens is None:
        engine_args.max_num_batched_tokens = requests
    elif requests is not None and tokens > requests:
        raise OptionError(
            f"max_num_batched_tokens is {tokens} and max_num_seqs is {requests}, but each request of this model has one"
            " token a step; leave max_num_batched_tokens out"
        )


def _device() -> str:
    from vllm.platforms import current_platform

    return "cpu" if current_platform.is_cpu() else "gpu"


def _default(field: Any) -> Any:
    return field.default if field.default is not MISSING else field.default_factory()


def _config(engine_args: EngineArgs) -> dict[str, Any]:
    """Read the model's ``config.json``. Return an empty dict if the file is missing or invalid.

    vLLM itself reports the error when it reads the file.
    """
    model = engine_args.model
    folder = Path(model)
    if folder.is_dir():
        file = folder / "config.json"
        return _read(file) if file.is_file() else {}
    if folder.exists() or "://" in model:
        return {}
    return _read_from_hub(engine_args)


def _read_from_hub(engine_args: EngineArgs) -> dict[str, Any]:
    """Read the ``config.json`` of a model on the Hugging Face hub, or return an empty dict if that fails."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from vllm import envs

    place: dict[str, Any] = {
        "repo_id": engine_args.model,
        "filename": "config.json",
        "revision": engine_args.revision,
    }
    cached = try_to_load_from_cache(**place)
    if isinstance(cached, str):
        return _read(Path(cached))
    if envs.VLLM_USE_MODELSCOPE:
        return {}
    try:
        return _read(Path(hf_hub_download(**place, token=engine_args.hf_token)))
    except (OSError, ValueError):  # offline, unknown, forbidden, or not a hub id: vLLM has better messages for these
        return {}


def _read(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_bytes())
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}
