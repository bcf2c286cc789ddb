"""What an engine of an iterative model needs, and how many steps a request takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.errors import ModelError, OptionError
from vllm_mmout.models.kind import Kind

if TYPE_CHECKING:
    from vllm_mmout.models.inputs.mapper import MappedInput
    from vllm_mmout.params import OutputParams

STEPS: Final = 50
"""Steps of a request where neither it, nor ``config.json``, nor the class says it; diffusers' usual number."""
MOST_STEPS: Final = 1000
"""Steps that a request may have, unless ``config.json`` says otherwise: those of training, of most models."""

ITERATIVE: Final = Kind(
    name="iterative",
    methods=("begin", "step", "finish"),
    adapter="vllm_mmout.wings.iterative.adapter:IterativeModel",
    arguments="vllm_mmout.wings.iterative.kind:engine_arguments",
    tokens="vllm_mmout.wings.iterative.kind:steps_of",
    options=("num_inference_steps", "seed"),
)


def engine_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults of engine arguments: one token a step of each request, and as many requests as a batch is worth."""
    return {
        "scheduler_cls": "vllm_mmout.wings.iterative.scheduler.StepScheduler",
        "enable_chunked_prefill": True,
        "long_prefill_token_threshold": 1,
        "enable_prefix_caching": False,  # all prompts are alike
        "async_scheduling": False,  # vLLM's own scheduler of that gives no early results
        "max_model_len": _most_steps(config),
        "max_num_seqs": 16,
    }


def steps_of(model: type, config: Mapping[str, Any], mapped: MappedInput, params: OutputParams) -> int:
    """Steps of a request: what a class's own ``count_steps(config, tensors, params)`` says, else what is asked for."""
    count = getattr(model, "count_steps", None)
    if count is not None:
        steps = count(config, mapped.tensors, params)
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ModelError(f"{model.__name__}.count_steps must give the steps of a request, 1 or more, got {steps!r}")
    else:
        steps = params.num_inference_steps or usual_steps(model, config)
    most = _most_steps(config)
    if steps > most:
        raise OptionError(
            f"num_inference_steps: the request takes {steps} steps, and the model at most {most}; ask for fewer, or"
            ' write "max_inference_steps" into config.json',
            param="num_inference_steps",
        )
    return int(steps)


def usual_steps(model: type, config: Mapping[str, Any]) -> int:
    """Steps of a request that asks for no number."""
    return _whole(config, "num_inference_steps") or int(getattr(model, "num_inference_steps", 0)) or STEPS


def _most_steps(config: Mapping[str, Any]) -> int:
    return _whole(config, "max_inference_steps") or MOST_STEPS


def _whole(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise OptionError(f'"{name}" in config.json must be a whole number from 1 on, got {value!r}')
    return value
