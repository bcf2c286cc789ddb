"""Errors for folders that are left to vLLM and that a wing could serve. They name the engine argument to give."""

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
"""Model -> the wing that serves its folder if the engine argument names the wing."""


def leave(model: str, wing: str | None) -> None:
    """Note which wing could serve a model that is left to vLLM; None if no wing could, or if a wing serves it."""
    if wing is None:
        _wings.pop(model, None)
    else:
        _wings[model] = wing


def remedy(model: str) -> str | None:
    """Return how to have a wing serve a model that is left to vLLM; None if no wing could."""
    if (wing := _wings.get(model)) is None:
        return None
    table = {OPTIONS_KEY: {KEY: wing}}
    return (
        f"to have the folder served through {wing} instead, give additional_config={json.dumps(table)}, on the command"
        f" line --additional-config '{json.dumps(table)}'"
    )


class _LeftValueError(ModelError, ValueError):
    """A ModelError for programs that catch the ValueError of vLLM's."""


class _LeftRuntimeError(ModelError, RuntimeError):
    """A ModelError for programs that catch the RuntimeError of vLLM's."""


_KINDS = {ValueError: _LeftValueError, RuntimeError: _LeftRuntimeError}


@contextmanager
def naming_the_argument(model: str) -> Iterator[None]:
    """Add the engine argument to errors of vLLM's start if a wing could serve the model; else leave them unchanged."""
    try:
        yield
    except MMOutError:
        raise
    except Exception as error:
        if (said := remedy(model)) is None:
            raise
        kind = next((kind for base, kind in _KINDS.items() if isinstance(error, base)), ModelError)
        raise kind(
            f"{model} is left to vLLM, which serves models of its architecture itself, and vLLM does not start:"
            f" {type_and_message(error)}; {said}"
        ) from error


class LeftLLM:
    """Mixin for a pooling ``LLM`` whose folder a wing could serve. Errors of ``generate`` name the engine argument."""

    llm_engine: Any

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Call vLLM's ``generate``, and add the engine argument to its refusal."""
        try:
            return super().generate(*args, **kwargs)  # type: ignore[misc]  # of vLLM's LLM
        except ValueError as error:
            from vllm_mmout.engine.hooks.client_errors import as_client_error

            said = remedy(self.llm_engine.vllm_config.model_config.model)
            raise as_client_error(OptionError(f"{error} {said}" if said else str(error))) from error


def bind_left_llm(llm: Any) -> None:
    """Bind an ``LLM`` that pools, if a wing could serve its folder; vLLM refuses its ``generate``."""
    model_config = llm.llm_engine.vllm_config.model_config
    if model_config.runner_type == "pooling" and remedy(model_config.model) is not None:
        rebase(llm, LeftLLM)
