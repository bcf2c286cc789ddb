"""Making and running an author's model; what it raises is said with its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vllm_mmout.errors import InputError, MMOutError, ModelError, raise_interrupt, type_and_message
from vllm_mmout.processors.raw import checked_group, describe

if TYPE_CHECKING:
    from vllm_mmout.processors.base import Raw


def build(model: type[nn.Module], config: Mapping[str, Any]) -> nn.Module:
    """Make a model from its ``config.json``; a model of transformers gets it as its own configuration class."""
    from transformers import PreTrainedModel

    argument: Any = config
    try:
        if issubclass(model, PreTrainedModel):
            known: Any = model.config_class
            argument = known.from_dict({key: value for key, value in config.items() if key != "model_type"})
        return model(argument)
    except MMOutError:
        raise
    except Exception as error:
        raise ModelError(
            f"model {model.__name__} cannot be made: {type_and_message(error)}; its constructor is called with"
            " config.json, as a dict"
        ) from error


def run(model: nn.Module, alike: Sequence[Mapping[str, torch.Tensor]]) -> Raw:
    """What a model gives for requests whose tensors (without axis 0) are alike: the requests on axis 0."""
    try:
        # A copy of one request too: the model may work in place, and an engine in the user's process has the user's
        # memory.
        output = model(**{name: torch.stack([tensors[name] for tensors in alike]) for name in alike[0]})
        if hasattr(output, "to_tuple"):  # an output class of transformers
            output = _of_requests(output, len(alike))
    except InputError:
        raise
    except BaseException as error:
        raise_interrupt(error)
        given = ", ".join(f"{name} {describe(tensor)}" for name, tensor in alike[0].items())
        many = f"{len(alike)} inputs of" if len(alike) > 1 else "an input of"
        raise ModelError(
            f"model {type(model).__name__} failed on {many} {given}: {type_and_message(error)}; correct its"
            " forward, or what its input mapper lets through"
        ) from error
    return checked_group(output, len(alike), f"{type(model).__name__}.forward", ModelError)


def _of_requests(output: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The tensors of an output of transformers with the requests on axis 0; where none has, all, to be refused."""
    tensors = {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}
    return {name: value for name, value in tensors.items() if value.shape[:1] == (count,)} or tensors


_SHOWN = 8
"""Names listed in a message."""
_REMEDY = (
    'Save them from the same class: safetensors.torch.save_file(model.state_dict(), "model.safetensors"), and keep'
    " config.json as it was then"
)


def load_strictly(model: nn.Module, weights: Mapping[str, torch.Tensor], remedy: str = _REMEDY) -> None:
    """Load a model's weights; what is missing, unexpected, of another shape or kind of dtype, or too large, is named.

    Tensors that are stored once though the model has them under several names (tied weights) count for all of these. A
    floating-point weight may have another floating-point dtype than the model. Weights of a model of transformers may
    have the names that its ``save_pretrained`` writes.
    """
    weights = _as_named_now(model, weights)
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    given = [name for name in weights if name in own]
    stored_at = {_place(own[name]): name for name in given if own[name].numel()}
    missing = [name for name, tensor in own.items() if name not in weights and _place(tensor) not in stored_at]
    torn = [name for name in given if _differs(weights[name], weights[stored_at.get(_place(own[name]), name)])]
    unexpected = [name for name in weights if name not in own]
    unlike = [
        f"{name} (the model has {describe(own[name])}, the file {describe(weights[name])})"
        for name in given
        if not _alike(own[name], weights[name])
    ]
    too_large = [f"{name} ({own[name].dtype})" for name in given if _overflows(own[name], weights[name])]
    faults = [
        f"{what}: {_listed(names)}"
        for what, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape or dtype", unlike),
            ("one in the model and different in the file", torn),
            ("too large for the model's dtype", too_large),
        )
        if names
    ]
    if faults:
        raise ModelError(f"the weights do not fit model {type(model).__name__}; {'; '.join(faults)}. {remedy}")
    model.load_state_dict(dict(weights), strict=False)  # what it would report has been checked above


def _as_named_now(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Weights by the names of the model's parameters; transformers may store them by those of an earlier release."""
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel) or weights.keys() == model.state_dict().keys():
        return weights
    kind: Any = type(model)
    options = {"ignore_mismatched_sizes": True, "output_loading_info": True, "dtype": model.dtype}
    loaded, report = kind.from_pretrained(None, config=model.config, state_dict=dict(weights), **options)
    named = {name: tensor for name, tensor in loaded.state_dict().items() if name not in report["missing_keys"]}
    unlike = {name: torch.empty(stored) for name, stored, _ in report["mismatched_keys"]}
    return named | unlike | {name: weights.get(name, torch.empty(0)) for name in report["unexpected_keys"]}


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    """Two names of one weight have one place."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _differs(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is not other and not torch.equal(one, other)


def _overflows(own: torch.Tensor, stored: torch.Tensor) -> bool:
    if own.dtype == stored.dtype or not (own.is_floating_point() and stored.is_floating_point()):
        return False
    finite = torch.isfinite(stored)
    return bool((finite & ~torch.isfinite(stored.to(own.dtype))).any())


def _alike(own: torch.Tensor, stored: torch.Tensor) -> bool:
    kind = own.dtype == stored.dtype or (own.is_floating_point() and stored.is_floating_point())
    return own.shape == stored.shape and kind


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
