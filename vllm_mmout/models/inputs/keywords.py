"""Define `Keywords`, the keyword parameters in the signature of a model's ``forward``."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_mmout.errors import InputError, RegistrationError


@dataclass(frozen=True, slots=True)
class Keywords:
    """Keyword parameters that the ``forward`` of a model class takes."""

    model: str
    """Name of the model class, for error messages."""
    names: tuple[str, ...]
    """Names of all keyword parameters, in the order of the signature."""
    required: frozenset[str]
    """Names of the keyword parameters without a default."""

    @classmethod
    def of(cls, model: type, config: Mapping[str, Any] | None = None) -> Keywords:
        """Read the keyword parameters from the signature of ``model.forward``.

        A class with ``keywords_of(config)`` names them itself, all optional. An iterative model, which has no
        ``forward``, names them in a tuple ``inputs``.
        """
        if (named_by := getattr(model, "keywords_of", None)) is not None:
            return cls(model.__name__, named_by(config or {}), frozenset())
        if isinstance(names := getattr(model, "inputs", None), tuple):
            return cls(model.__name__, names, frozenset())
        # A class need not have `forward` as far as type checkers know.
        parameters = list(inspect.signature(getattr(model, "forward")).parameters.values())[1:]  # noqa: B009
        if any(parameter.kind is parameter.POSITIONAL_ONLY for parameter in parameters):
            raise RegistrationError(f"{model.__name__}.forward takes tensors by position only; drop the '/'")
        keyword_parameters = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if not keyword_parameters:
            raise RegistrationError(
                f"{model.__name__}.forward must take its tensors by keyword, as forward(self, pixel_values)"
            )
        required = frozenset(parameter.name for parameter in keyword_parameters if parameter.default is parameter.empty)
        return cls(model.__name__, tuple(parameter.name for parameter in keyword_parameters), required)

    def check_declared(self, declared: Iterable[str]) -> None:
        """Raise RegistrationError if an input mapper declares a tensor that ``forward`` does not take."""
        unknown = [name for name in declared if name not in self.names]
        if unknown:
            raise RegistrationError(
                f"the input mapper of {self.model} gives {', '.join(map(repr, unknown))}, its forward takes"
                f" {', '.join(self.names)}; use the same names"
            )

    def check(self, keywords: Iterable[str]) -> None:
        """Raise InputError if the names of an input's tensors do not match the parameters of ``forward``."""
        names = list(keywords)
        unknown = [name for name in names if name not in self.names]
        missing = [name for name in self.names if name in self.required and name not in names]
        if unknown or missing or not names:
            faults = [f"it does not know {', '.join(map(repr, unknown))}"] if unknown else []
            faults += [f"it needs {', '.join(map(repr, missing))}"] if missing else []
            takes = ", ".join(name if name in self.required else f"{name} (optional)" for name in self.names)
            raise InputError(
                f"{self.model}.forward takes {takes}; got {', '.join(map(str, names)) or 'nothing'}:"
                f" {' and '.join(faults) or 'give at least one'}"
            )
