"""Options of output processors: which ones a constructor takes, and giving each processor its own."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_mmout.errors import OptionError
from vllm_mmout.messages import close_match
from vllm_mmout.processors.base import OutputProcessor


@dataclass(frozen=True, slots=True)
class Taken:
    """The keyword arguments of a processor's constructor."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    """Those without a default; empty where ``from_config`` is overridden and may find them elsewhere."""
    anything: bool
    """Whether it has ``**options``."""

    def takes(self, option: str) -> bool:
        """Whether the constructor accepts ``option``."""
        return self.anything or option in self.names


def taken_by(processor: type[OutputProcessor]) -> Taken:
    """The options that ``processor`` takes."""
    parameters = inspect.signature(processor).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    makes_itself = getattr(processor.from_config, "__func__", None) is not vars(OutputProcessor)["from_config"].__func__
    return Taken(
        names=tuple(p.name for p in named),
        required=() if makes_itself else tuple(p.name for p in named if p.default is p.empty),
        anything=any(p.kind is p.VAR_KEYWORD for p in parameters),
    )


def check_options(
    options: Mapping[str, Any], taken: Mapping[str, Taken], settings: Collection[str], source: str
) -> None:
    """Refuse options that nobody takes."""
    for option in options:
        if option in settings or any(one.takes(option) for one in taken.values()):
            continue
        lists = [f"of {name}: {', '.join(one.names) or '(no options)'}" for name, one in taken.items()]
        lists += [f"of the engine: {', '.join(settings)}"] if settings else []
        known = [*settings, *(name for one in taken.values() for name in one.names)]
        raise OptionError(
            f"unknown option {option!r} in {source}{close_match(option, known)} (known: {'; '.join(lists)})"
        )


def deal(
    options: Mapping[str, Any], taken: Mapping[str, Taken], settings: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Give each processor the options it takes; the engine's settings go to none."""
    dealt = {}
    for name, one in taken.items():
        dealt[name] = {key: value for key, value in options.items() if one.takes(key) and key not in settings}
        missing = [key for key in one.required if key not in dealt[name]]
        if missing:
            raise OptionError(
                f"output processor {name!r} needs the option {', '.join(missing)}; set it in"
                ' additional_config["mmout"] or in the "mmout" table of config.json'
            )
    return dealt
