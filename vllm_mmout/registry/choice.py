"""`Choice`, the output processors that were selected for a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_mmout.errors import OptionError, RegistrationError
from vllm_mmout.messages import close_match
from vllm_mmout.processors.base import OutputProcessor


@dataclass(frozen=True, slots=True)
class Choice:
    """Output processors that a setting or decorator selected for a model, with their options."""

    processors: Mapping[str, type[OutputProcessor]]
    """Maps the name of each processor to its class. The first processor is the default. There is at least one."""
    options: Mapping[str, Mapping[str, Any]]
    """Maps names of processors to keyword arguments for their constructors."""
    settings: Mapping[str, Any]
    """Settings of the engine, such as ``decode_threads``, with the values that the user chose."""
    chosen_by: str
    """Description of the setting or decorator that selected the processors, for use in messages."""

    @property
    def default(self) -> str:
        """Name of the processor that handles requests that do not choose a processor."""
        return next(iter(self.processors))

    def pick(self, names: str | Sequence[str] | None) -> tuple[str, ...]:
        """Return the processor names that a request selects, in the order of ``names``. None selects the default.

        Raise OptionError if a name is unknown.
        """
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
        """Create the output processors ``names``. If ``names`` is None, create all processors of this choice.

        ``config`` is the model's ``config.json``. Return a dict from the name to the processor.
        """
        processors = {}
        for name in self.processors if names is None else self.pick(names):
            processor_class = self.processors[name]
            processors[name] = processor_class.from_config(config, self.options[name])
            if not isinstance(processors[name], OutputProcessor):
                raise RegistrationError(
                    f"{processor_class.__name__}.from_config must return an OutputProcessor, got {processors[name]!r}"
                )
        return processors
