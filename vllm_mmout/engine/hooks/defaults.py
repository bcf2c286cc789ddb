"""Engine arguments that our models need, filled in where the user left vLLM's own default."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine.hooks.left import leave
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
    "skip_mm_profiling": True,  # of an encoder beside the model, which there is none; the model itself is measured
    "enforce_eager": True,
    "mm_processor_cache_gb": 0,
    "max_model_len": 1,  # a request is one token
    "scheduling_policy": "priority",
}
CPU = {"kv_cache_memory_bytes": 1 << 20}
"""A single-pass model has no cache of keys and values, for which vLLM would want almost all memory to be free."""

_FOR_VLLM = ("convert", "model_impl")
"""Engine arguments that only classes of vLLM use."""
_FOR_VLLMS_CLASS = ("runner", "pooler_config", "hf_overrides")
"""Engine arguments that configure vLLM's own class of an architecture, if it has such a class."""

MAX_NUM_SEQS = {"cpu": 4, "gpu": 16}
"""vLLM's own default makes batches of 256 tiles."""


def fill_in(engine_args: EngineArgs) -> None:
    """Set the defaults of a folder with ``"model_type": "mmout"`` or of a wing's, and find its class; leave others.

    vLLM passes every default explicitly, so a field that has vLLM's own default counts as not set.
    """
    config = _config(engine_args)
    leave(engine_args.model, None)
    family, taken = family_of(config), None
    if config.get("model_type") != MODEL_TYPE and family is None:
        taken = _taken(engine_args, config)
        if taken is None:
            _refuse_another_type(config)
            _leave_to_vllm(engine_args, config)
            return
        config = taken
    from vllm_mmout.models.vllm_registry import announce, withdraw  # no text model needs it

    if family is not None and _switched_off(engine_args, config):
        withdraw(config["architectures"][0])
        return
    _refuse_parts(engine_args)
    announce(config, instead=taken is not None)
    device = _device()
    wanted = dict(ALL_DEVICES, max_num_seqs=MAX_NUM_SEQS[device], **(CPU if device == "cpu" else {}))
    # vLLM's "auto" takes float16 on a CPU: wrong above 2048, and far slower.
    wanted["dtype"] = config.get("dtype") or config.get("torch_dtype") or "float32"
    architecture = config["architectures"][0]
    if is_served(architecture):
        model = served_class(architecture)
        if getattr(model, "loads_itself", False):
            wanted["load_format"] = "dummy"  # vLLM looks for no weights
        if (kind := kind_of(model)) is not None:
            wanted.update(kind.engine_arguments(config))
    untouched = {field.name: _default(field) for field in fields(engine_args)}
    for name, value in wanted.items():
        if getattr(engine_args, name) == untouched[name]:
            setattr(engine_args, name, value)
    _fit_tokens_to_requests(engine_args, untouched["max_num_batched_tokens"])


def _refuse_parts(engine_args: EngineArgs) -> None:
    """Refuse what vLLM does inside its own layers, which a model of plain PyTorch does not have."""
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if (count := getattr(engine_args, name)) > 1:
            raise OptionError(
                f"{name} is {count}, and this model is plain PyTorch, which runs whole on one device; leave it out, or"
                f" run {count} engines by data_parallel_size={count}",
                param=name,
            )
    if engine_args.quantization is not None:
        raise OptionError(
            f"quantization is {engine_args.quantization!r}, which is for vLLM's own layers, and this model is plain"
            " PyTorch; leave it out, or choose a smaller dtype",
            param="quantization",
        )


def _taken(engine_args: EngineArgs, config: dict[str, Any]) -> dict[str, Any] | None:
    """``config.json`` of a folder of another form as one of ours; None for those that are vLLM's.

    The engine argument may name a wing as output processor, to have it serve what vLLM could serve too; the processor
    is then that of the folder.
    """
    if engine_args.config_format not in ("auto", "hf"):
        from vllm_mmout.models.folder_parser import taken_before  # no text model needs it

        return taken_before(engine_args.model, engine_args.config_format)
    if _switched_off(engine_args, config):
        return None
    asked = _engine_table(engine_args).get(KEY)
    if asked is None and _asks_vllm(engine_args, config):
        return None
    entries = as_ours(config, engine_args.model, asked, _engine_table(engine_args))
    if entries is None:
        return None
    from vllm_mmout.models.folder_parser import take  # no text model needs it

    engine_args.config_format = take(engine_args.model, entries)
    if asked in [wing.name for wing in wings()]:
        table = {name: value for name, value in _engine_table(engine_args).items() if name != KEY}
        engine_args.additional_config = {**engine_args.additional_config, OPTIONS_KEY: table}
    return entries


def _asks_vllm(engine_args: EngineArgs, config: dict[str, Any]) -> bool:
    """Return whether the engine arguments say how vLLM is to serve a folder itself."""
    defaults = {field.name: _default(field) for field in fields(engine_args)}
    said = {name for name in (*_FOR_VLLM, *_FOR_VLLMS_CLASS) if getattr(engine_args, name) != defaults[name]}
    architectures = config.get("architectures")
    if not said or said & set(_FOR_VLLM) or not isinstance(architectures, list) or not architectures:
        return bool(said & set(_FOR_VLLM))
    from vllm_mmout.models.vllm_registry import class_of_vllm  # no other text model needs it

    return class_of_vllm(architectures[0]) is not None


def _leave_to_vllm(engine_args: EngineArgs, config: dict[str, Any]) -> None:
    """Let vLLM's own class serve a folder, and note whether a wing could.

    An earlier engine of this process may have served the architecture through a class of ours.
    """
    wing = served_if_named(config, engine_args.model)
    own = engine_args.config_format in ("auto", "hf") and _engine_table(engine_args).get(KEY) is None
    if own and not _switched_off(engine_args, config):
        leave(engine_args.model, wing)
    architectures = config.get("architectures")
    for architecture in architectures if isinstance(architectures, list) else ():
        if isinstance(architecture, str) and is_served(architecture):
            from vllm_mmout.models.vllm_registry import withdraw

            withdraw(architecture, converted=wing is not None)


def _engine_table(engine_args: EngineArgs) -> dict[str, Any]:
    """Our table in the engine argument ``additional_config``."""
    additional = engine_args.additional_config
    table = additional.get(OPTIONS_KEY) if isinstance(additional, dict) else None
    return table if isinstance(table, dict) else {}


def _switched_off(engine_args: EngineArgs, config: dict[str, Any]) -> bool:
    """Whether the user, or else the folder, wants no output processor; vLLM's own class serves the model then."""
    for table in (_engine_table(engine_args), config, config.get("mmout")):
        named = table.get(KEY) if isinstance(table, dict) else None
        if named is not None:
            return bool(named == NONE)
    return False


def _refuse_another_type(config: dict[str, Any]) -> None:
    """Say what is wrong with a folder that names a class of ours, and would be given to another part of vLLM."""
    table = config.get("mmout")
    if isinstance(table, dict) and "model" in table:
        raise OptionError(
            f'config.json names the model {table["model"]!r} in its "mmout" table, and its "model_type" is'
            f' {json.dumps(config.get("model_type"))}; write "model_type": "{MODEL_TYPE}", by which the class is used'
        )


def _fit_tokens_to_requests(engine_args: EngineArgs, unset: Any) -> None:
    """Let a step have as many tokens as requests: each is one token.

    vLLM measures memory on a device with a step of all tokens in all requests, and looks for the last token of each in
    what ``forward`` gives, which has one row a request.
    """
    requests, tokens = engine_args.max_num_seqs, engine_args.max_num_batched_tokens
    if tokens == unset or tokens is None:
        engine_args.max_num_batched_tokens = requests
    elif requests is not None and tokens > requests:
        raise OptionError(
            f"max_num_batched_tokens is {tokens} and max_num_seqs {requests}; a request of such a model is one token a"
            " step: leave max_num_batched_tokens out"
        )


def _device() -> str:
    from vllm.platforms import current_platform

    return "cpu" if current_platform.is_cpu() else "gpu"


def _default(field: Any) -> Any:
    return field.default if field.default is not MISSING else field.default_factory()


def _config(engine_args: EngineArgs) -> dict[str, Any]:
    """The model's ``config.json``; empty where there is none, which vLLM then reports better than we could."""
    model = engine_args.model
    folder = Path(model)
    if folder.is_dir():
        file = folder / "config.json"
        return _read(file) if file.is_file() else {}
    if folder.exists() or "://" in model:
        return {}
    return _read_from_hub(engine_args)


def _read_from_hub(engine_args: EngineArgs) -> dict[str, Any]:
    """The ``config.json`` of a hub id, which vLLM would fetch in its next step."""
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
    except (OSError, ValueError):  # offline, unknown, not allowed, no id at all: vLLM says it better
        return {}


def _read(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_bytes())
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}
