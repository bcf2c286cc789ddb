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
        str | tuple[str, ...] | None,
        said(
            "kind of result, such as classes, probabilities, confidence, polygons, areas, or several of those that are"
            " made of one result, as classes, polygons and areas are. Several give a dict of results by kind, from one"
            " run of the model. For a model that generates"
            ' tokens: "none" leaves media tokens undecoded in the text, "media" makes the model write one whole medium,'
            ' "mixed" text and whole media.',
            metavar="KIND",
        ),
    ] = None

    def _check_picks(self) -> None:
        for name, value, kind in (
            ("processor", self.processor, "output processor"),
            ("output", self.output, "kind of result"),
        ):
            if value == ():
                raise wrong(name, f"is an empty list; name at least one {kind}, or leave it out")
            if isinstance(value, tuple) and len(set(value)) < len(value):
                raise wrong(name, f"names one {kind} twice: {list(value)}")
        if isinstance(self.output, tuple) and isinstance(self.processor, tuple):
            raise wrong(
                "output",
                f"names the kinds {', '.join(self.output)} and processor the processors {', '.join(self.processor)};"
                " give several of one of them",
            )

    @property
    def picks(self) -> tuple[str, ...] | None:
        """Names of the requested output processors, or None to use the model's default processor."""
        return (self.processor,) if isinstance(self.processor, str) else self.processor

    @property
    def named(self) -> tuple[str, ...]:
        """Names of the results if the request lists several processors or several kinds of output. Otherwise empty.

        The names are the names of the processors, or the kinds of output. Without a list, the request has one result.
        """
        return next((names for names in (self.processor, self.output) if isinstance(names, tuple)), ())


def wrong(name: str, problem: str) -> OptionError:
    """Return an OptionError about the option ``name``. The message consists of the name and the problem."""
    return OptionError(f"{name} {problem}", param=name)
