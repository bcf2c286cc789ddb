"""Engine arguments for iterative models, and the number of steps of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.errors import ModelError, OptionError
from vllm_mmout.models.kind import ModelKind

if TYPE_CHECKING:
    from vllm_mmout.models.inputs.mapped_input import MappedInput
    from vllm_mmout.params import OutputParams

STEPS: Final = 50
"""Number of steps if the request, ``config.json`` and the model class do not set it. Diffusers has the same default."""
MOST_STEPS: Final = 1000
"""Default maximum number of steps of a request. ``max_inference_steps`` in ``config.json`` replaces the default."""

ITERATIVE: Final = ModelKind(
    name="iterative",
    methods=("begin", "step", "finish"),
    adapter="vllm_mmout.wings.iterative.adapter:IterativeModel",
    arguments="vllm_mmout.wings.iterative.kind:engine_arguments",
    tokens="vllm_mmout.wings.iterative.kind:steps_of",
    options=("num_inference_steps", "seed"),
)


def engine_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return default engine arguments for an iterative model, so that each engine step runs one step of the model."""
    return {
        "scheduler_cls": "vllm_mmout.wings.iterative.scheduler.StepScheduler",
        "enable_chunked_prefill": True,
        "long_prefill_token_threshold": 1,
        "enable_prefix_caching": False,  # all prompts have the same tokens, so a cached prefix would skip steps
        "async_scheduling": False,  # vLLM's asynchronous scheduler returns no results before the last step
        "max_model_len": _most_steps(config),
        "max_num_seqs": 16,
    }


def steps_of(model: type, config: Mapping[str, Any], mapped: MappedInput, params: OutputParams) -> int:
    """Return the number of steps of a request, which is also the number of tokens that vLLM schedules for it.

    The model class's ``count_steps`` returns it. Without that method, the request's options and ``config.json`` set it.
    Raise OptionError if there are more steps than the model allows.
    """
    count = getattr(model, "count_steps", None)
    if count is not None:
        steps = count(config, mapped.tensors, params)
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ModelError(f"{model.__name__}.count_steps must return a number of steps, 1 or more, got {steps!r}")
    else:
        steps = params.num_inference_steps or default_steps(model, config)
    max_steps = _most_steps(config)
    if steps > max_steps:
        raise OptionError(
            f"num_inference_steps: the request needs {steps} steps, and the model allows at most {max_steps}; use"
            ' fewer, or set "max_inference_steps" in config.json',
            param="num_inference_steps",
        )
    return int(steps)


def default_steps(model: type, config: Mapping[str, Any]) -> int:
    """Return the default number of steps, for requests that do not set ``num_inference_steps``."""
    return _whole(config, "num_inference_steps") or int(getattr(model, "num_inference_steps", 0)) or STEPS


def _most_steps(config: Mapping[str, Any]) -> int:
    return _whole(config, "max_inference_steps") or MOST_STEPS


def _whole(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise OptionError(f'"{name}" in config.json must be a whole number of at least 1, got {value!r}')
    return value
