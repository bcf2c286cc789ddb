"""Options that choose the output processors of a request, and the kind of output that they return."""

from __future__ import annotations

from typing import Annotated

import msgspec

from vllm_mmout.errors import OptionError
from vllm_mmout.option import said


class Picks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Options that choose the output processors of a request, and the kind of output that they return."""

    processor: Annotated[
        str | tuple[str, ...] | None,
        said(
            "output processor, or several. Several give a dict of results by name in the order asked, from one run of"
            " the model. By default the model's first.",
            metavar="NAME",
        ),
    ] = None
    output: Annotated[
        str | None,
        said(
            "kind of result, such as classes, probabilities, confidence, polygons, areas. For a model that generates"
            ' tokens: "none" leaves media tokens undecoded in the text, "media" makes the model write one whole medium,'
            ' "mixed" text and whole media.',
            metavar="KIND",
        ),
    ] = None

    def _check_picks(self) -> None:
        if not isinstance(self.processor, tuple):
            return
        if not self.processor:
            raise wrong("processor", "is an empty list; name at least one output processor, or leave it out")
        if len(set(self.processor)) < len(self.processor):
            raise wrong("processor", f"names one output processor twice: {list(self.processor)}")

    @property
    def picks(self) -> tuple[str, ...] | None:
        """Names of the requested output processors, or None for the model's first."""
        return (self.processor,) if isinstance(self.processor, str) else self.processor


def wrong(name: str, problem: str) -> OptionError:
    """Return an OptionError about the option ``name``. The message consists of the name and the problem."""
    return OptionError(f"{name} {problem}", param=name)
