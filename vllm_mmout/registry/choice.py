"""Choice: the output processors that serve one model, with their options, and what chose them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_mmout.errors import OptionError, RegistrationError
from vllm_mmout.messages import close_match
from vllm_mmout.processors.base import OutputProcessor


@dataclass(frozen=True, slots=True)
class Choice:
    """The output processors that serve one model."""

    processors: Mapping[str, type[OutputProcessor]]
    """Name -> class, the default first; never empty."""
    options: Mapping[str, Mapping[str, Any]]
    """Name -> keyword arguments for the constructor."""
    settings: Mapping[str, Any]
    """Settings of the engine rather than of a processor, as given."""
    chosen_by: str
    """What chose them, in words for people."""

    @property
    def default(self) -> str:
        """The processor of requests that name none."""
        return next(iter(self.processors))

    def pick(self, names: str | Sequence[str] | None) -> tuple[str, ...]:
        """The processors that a request asks for, in the order asked; None is the default."""
        if names is None:
            return (self.default,)
        picks = (names,) if isinstance(names, str) else tuple(names)
        unknown = [pick for pick in picks if pick not in self.processors]
        if unknown:
            raise OptionError(
                f"the model has no output processor {' nor '.join(map(repr, unknown))}"
                f"{close_match(unknown[0], self.processors)} (known: {', '.join(self.processors)})",
                param="processor",
            )
        return picks

    def create(self, config: Mapping[str, Any], names: str | Sequence[str] | None = None) -> dict[str, OutputProcessor]:
        """Make the instances of this process by name, those asked for or all, from the model's ``config.json``."""
        made = {}
        for name in self.processors if names is None else self.pick(names):
            kind = self.processors[name]
            made[name] = kind.from_config(config, self.options[name])
            if not isinstance(made[name], OutputProcessor):
                raise RegistrationError(
                    f"{kind.__name__}.from_config must return an OutputProcessor, got {made[name]!r}"
                )
        return made
