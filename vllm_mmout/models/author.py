"""Making and running an author's model; what it raises is said with its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vllm_mmout.errors import InputError, MMOutError, ModelError
from vllm_mmout.processors.raw import checked_group, describe

if TYPE_CHECKING:
    from vllm_mmout.processors.base import Raw


def build(model: type[nn.Module], config: Mapping[str, Any]) -> nn.Module:
    """Make a model from its ``config.json``; a model of transformers gets it as its own configuration class.

    Raises:
        ModelError: its constructor raised.

    """
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
            f"model {model.__name__} cannot be made: {type(error).__name__}: {error}; its constructor is called with"
            " config.json, as a dict"
        ) from error


def run(model: nn.Module, alike: Sequence[Mapping[str, torch.Tensor]]) -> Raw:
    """Run a model on requests whose tensors have the same names, shapes and dtypes.

    Args:
        model: the author's.
        alike: the tensors of each request, by keyword, without axis 0.

    Returns:
        What the model gave, the requests on axis 0.

    Raises:
        InputError: it raised one, about what it was given.
        ModelError: it raised anything else, or gave something else.

    """
    try:
        # A copy of one request too: the model may work in place, and an engine in the user's process has the user's
        # memory.
        output = model(**{name: torch.stack([tensors[name] for tensors in alike]) for name in alike[0]})
        if hasattr(output, "to_tuple"):  # an output class of transformers: a dict that may hold tuples beside tensors
            output = {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        given = ", ".join(f"{name} {describe(tensor)}" for name, tensor in alike[0].items())
        many = f"{len(alike)} inputs of" if len(alike) > 1 else "an input of"
        raise ModelError(
            f"model {type(model).__name__} failed on {many} {given}: {type(error).__name__}: {error}; correct its"
            " forward, or what its input mapper lets through"
        ) from error
    return checked_group(output, len(alike), f"{type(model).__name__}.forward", ModelError)
