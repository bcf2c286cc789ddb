"""Add a hint to vLLM's errors about a model folder if an installed extension package could serve the folder instead.

The hints name the engine argument that selects the extension package.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm_mmout.engine.binding import rebase
from vllm_mmout.engine.settings import OPTIONS_KEY
from vllm_mmout.errors import MMOutError, ModelError, OptionError, type_and_message
from vllm_mmout.registry.resolve import KEY

_alternatives: dict[str, str] = {}
"""Maps a model's path or hub id to the name of the extension package that could serve it instead of vLLM."""


def record_alternative(model: str, wing: str | None) -> None:
    """Record that the extension package ``wing`` could serve a model that vLLM serves itself.

    `wing` is None if no package could serve the model, or vLLM does not serve it.
    """
    if wing is None:
        _alternatives.pop(model, None)
    else:
        _alternatives[model] = wing


def remedy(model: str) -> str | None:
    """Return a hint on how to serve a model with an extension package. Return None if no package could serve it.

    `record_alternative` records which package could serve a model.
    """
    if (wing := _alternatives.get(model)) is None:
        return None
    table = {OPTIONS_KEY: {KEY: wing}}
    return (
        f"to have the folder served through {wing} instead, give additional_config={json.dumps(table)}, on the command"
        f" line --additional-config '{json.dumps(table)}'"
    )


class _LeftValueError(ModelError, ValueError):
    """ModelError that replaces a ValueError of vLLM. Programs that catch ValueError also catch this error."""


class _LeftRuntimeError(ModelError, RuntimeError):
    """ModelError that replaces a RuntimeError of vLLM. Programs that catch RuntimeError also catch this error."""


_KINDS = {ValueError: _LeftValueError, RuntimeError: _LeftRuntimeError}


@contextmanager
def naming_the_argument(model: str) -> Iterator[None]:
    """Wrap vLLM's start. Errors then name the engine argument that selects an extension package for the model.

    If no extension package could serve ``model``, errors are raised unchanged.
    """
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
    """Mixin for an ``LLM`` that runs a pooling model without an extension package, although a package could serve it.

    If vLLM refuses the model in ``generate``, the error names the engine argument that selects the package.
    """

    llm_engine: Any

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Call vLLM's ``generate``. If vLLM refuses the model, suggest an extension package for it in the error."""
        try:
            return super().generate(*args, **kwargs)  # type: ignore[misc]  # of vLLM's LLM
        except ValueError as error:
            from vllm_mmout.engine.hooks.client_errors import as_client_error

            hint = remedy(self.llm_engine.vllm_config.model_config.model)
            raise as_client_error(OptionError(f"{error} {hint}" if hint else str(error))) from error


def bind_left_llm(llm: Any) -> None:
    """Make errors of ``llm.generate`` suggest an extension package for the model, by adding the mixin `LeftLLM`.

    The mixin is added only for a pooling model that an extension package could serve instead of vLLM.
    """
    model_config = llm.llm_engine.vllm_config.model_config
    if model_config.runner_type == "pooling" and remedy(model_config.model) is not None:
        rebase(llm, LeftLLM)
