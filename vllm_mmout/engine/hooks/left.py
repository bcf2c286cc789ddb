"""Errors for model folders left to vLLM that a wing could serve. They name the engine argument that selects it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm_mmout.engine.binding import rebase
from vllm_mmout.engine.settings import OPTIONS_KEY
from vllm_mmout.errors import MMOutError, ModelError, OptionError, type_and_message
from vllm_mmout.registry.resolve import KEY

_wings: dict[str, str] = {}
"""Name of the wing that could serve each model that is left to vLLM, by the model's path or hub id."""


def leave(model: str, wing: str | None) -> None:
    """Record which wing could serve a model that is left to vLLM.

    `wing` is None if no wing could serve the model, or if the model is not left to vLLM.
    """
    if wing is None:
        _wings.pop(model, None)
    else:
        _wings[model] = wing


def remedy(model: str) -> str | None:
    """Return a hint how to have a wing serve a model that is left to vLLM, or None if no wing could."""
    if (wing := _wings.get(model)) is None:
        return None
    table = {OPTIONS_KEY: {KEY: wing}}
    return (
        f"to have the folder served through {wing} instead, give additional_config={json.dumps(table)}, on the command"
        f" line --additional-config '{json.dumps(table)}'"
    )


class _LeftValueError(ModelError, ValueError):
    """ModelError that is also a ValueError, for programs that catch vLLM's ValueError."""


class _LeftRuntimeError(ModelError, RuntimeError):
    """ModelError that is also a RuntimeError, for programs that catch vLLM's RuntimeError."""


_KINDS = {ValueError: _LeftValueError, RuntimeError: _LeftRuntimeError}


@contextmanager
def naming_the_argument(model: str) -> Iterator[None]:
    """Add the engine argument that selects a wing to errors of vLLM's start, if a wing could serve the model."""
    try:
        yield
    except MMOutError:
        raise
    except Exception as error:
        if (hint := remedy(model)) is None:
            raise
        kind = next((kind for base, kind in _KINDS.items() if isinstance(error, base)), ModelError)
        raise kind(
            f"{model} is left to vLLM, which serves models of its architecture itself, and vLLM does not start:"
            f" {type_and_message(error)}; {hint}"
        ) from error


class LeftLLM:
    """Mixin for a pooling ``LLM`` whose folder a wing could serve.

    Errors of ``generate`` name the engine argument that selects the wing.
    """

    llm_engine: Any

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Call vLLM's ``generate``, which raises, and add the engine argument that selects the wing to the error."""
        try:
            return super().generate(*args, **kwargs)  # type: ignore[misc]  # of vLLM's LLM
        except ValueError as error:
            from vllm_mmout.engine.hooks.client_errors import as_client_error

            hint = remedy(self.llm_engine.vllm_config.model_config.model)
            raise as_client_error(OptionError(f"{error} {hint}" if hint else str(error))) from error


def bind_left_llm(llm: Any) -> None:
    """Turn a pooling ``LLM`` into a `LeftLLM` if a wing could serve its folder."""
    model_config = llm.llm_engine.vllm_config.model_config
    if model_config.runner_type == "pooling" and remedy(model_config.model) is not None:
        rebase(llm, LeftLLM)
