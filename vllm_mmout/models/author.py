"""Create, load and run a model that the user wrote. Errors in the model's code are reported with the model's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vllm_mmout.errors import InputError, MMOutError, ModelError, raise_interrupt, type_and_message
from vllm_mmout.processors.raw import checked_group, describe

if TYPE_CHECKING:
    from vllm_mmout.processors.base import Raw


def build(model: type[nn.Module], config: Mapping[str, Any]) -> nn.Module:
    """Create a model from its ``config.json``.

    The constructor of a transformers model is called with an instance of its config class, that of any other model with
    a dict.
    """
    from transformers import PreTrainedModel

    argument: Any = config
    try:
        if issubclass(model, PreTrainedModel):
            config_class: Any = model.config_class
            argument = config_class.from_dict({key: value for key, value in config.items() if key != "model_type"})
        return model(argument)
    except MMOutError:
        raise
    except Exception as error:
        raise ModelError(
            f"model {model.__name__} cannot be made: {type_and_message(error)}; its constructor is called with"
            " config.json, as a dict"
        ) from error


def run(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Raw:
    """Run ``forward`` once for several inputs of equal shape, and return its output.

    ``batch`` holds a tensor [inputs, ...] for each keyword of ``forward``. The model may change them in place.
    """
    count = len(next(iter(batch.values())))
    try:
        output = model(**batch)
        if hasattr(output, "to_tuple"):  # an output class of transformers
            output = _batched_outputs(output, count)
    except InputError:
        raise
    except BaseException as error:
        raise_interrupt(error)
        shapes = ", ".join(f"{name} {describe(tensor[0])}" for name, tensor in batch.items())
        subject = f"{count} inputs of" if count > 1 else "an input of"
        raise ModelError(
            f"model {type(model).__name__} failed on {subject} {shapes}: {type_and_message(error)}; correct its"
            " forward, or let its input mapper refuse such inputs"
        ) from error
    return checked_group(output, count, f"{type(model).__name__}.forward", ModelError)


def _batched_outputs(output: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return the tensors in ``output`` whose axis 0 has length ``count``, or all tensors if no tensor matches."""
    tensors = {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}
    return {name: value for name, value in tensors.items() if value.shape[:1] == (count,)} or tensors


_SHOWN = 8
"""Maximum number of weight names that an error message lists."""
_REMEDY = (
    'Save them from the same class: safetensors.torch.save_file(model.state_dict(), "model.safetensors"), and keep'
    " config.json as it was then"
)


def load_strictly(model: nn.Module, weights: Mapping[str, torch.Tensor], remedy: str = _REMEDY) -> None:
    """Load a model's weights, and raise ModelError with the names of all weights that do not fit.

    A weight does not fit if it is missing, unexpected, has another shape or kind of dtype, or overflows the model's
    dtype. A tensor stored once that the model has under several names (tied weights) counts for all of them. A
    floating-point weight may have another floating-point dtype than the model. Weights of a model of transformers may
    have the names that its ``save_pretrained`` writes.
    """
    weights = _with_current_names(model, weights)
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    loadable = [name for name in weights if name in own]
    stored_at = {_memory_id(own[name]): name for name in loadable if own[name].numel()}
    missing = [name for name, tensor in own.items() if name not in weights and _memory_id(tensor) not in stored_at]
    untied = [name for name in loadable if _differs(weights[name], weights[stored_at.get(_memory_id(own[name]), name)])]
    unexpected = [name for name in weights if name not in own]
    unlike = [
        f"{name} (the model has {describe(own[name])}, the file {describe(weights[name])})"
        for name in loadable
        if not _alike(own[name], weights[name])
    ]
    too_large = [f"{name} ({own[name].dtype})" for name in loadable if _overflows(own[name], weights[name])]
    faults = [
        f"{fault}: {_listed(names)}"
        for fault, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape or dtype", unlike),
            ("one in the model and different in the file", untied),
            ("too large for the model's dtype", too_large),
        )
        if names
    ]
    if faults:
        raise ModelError(f"the weights do not fit model {type(model).__name__}; {'; '.join(faults)}. {remedy}")
    model.load_state_dict(dict(weights), strict=False)  # everything that it would report was checked above


def _with_current_names(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Return the weights under the model's current parameter names.

    An older release of transformers may have stored the weights under other names.
    """
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel) or weights.keys() == model.state_dict().keys():
        return weights
    model_class: Any = type(model)
    options = {"ignore_mismatched_sizes": True, "output_loading_info": True, "dtype": model.dtype}
    loaded, report = model_class.from_pretrained(None, config=model.config, state_dict=dict(weights), **options)
    renamed = {name: tensor for name, tensor in loaded.state_dict().items() if name not in report["missing_keys"]}
    mismatched = {name: torch.empty(stored) for name, stored, _ in report["mismatched_keys"]}
    return renamed | mismatched | {name: weights.get(name, torch.empty(0)) for name in report["unexpected_keys"]}


def _memory_id(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return an identifier of the memory that a tensor uses. Tied weights share memory, so their identifiers are equal.

    An example of tied weights is an embedding and a head.
    """
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _differs(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor is not other and not torch.equal(tensor, other)


def _overflows(own: torch.Tensor, stored: torch.Tensor) -> bool:
    if own.dtype == stored.dtype or not (own.is_floating_point() and stored.is_floating_point()):
        return False
    finite = torch.isfinite(stored)
    return bool((finite & ~torch.isfinite(stored.to(own.dtype))).any())


def _alike(own: torch.Tensor, stored: torch.Tensor) -> bool:
    same_kind = own.dtype == stored.dtype or (own.is_floating_point() and stored.is_floating_point())
    return own.shape == stored.shape and same_kind


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
