"""Define `AskedResult`, one of the results that a request asks for.

A request asks for one result from each of its output processors, or for several kinds of output from one processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from vllm_mmout.outputs.base import MediaOutput, Source, unknown_suffix
from vllm_mmout.outputs.formats import format_of_file
from vllm_mmout.processors.base import formats_for

if TYPE_CHECKING:
    from pathlib import PurePath

    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import OutputProcessor


ResultKey: TypeAlias = "tuple[str, str | None]"
"""Key of a result of a request: (`AskedResult.name`, day). If the request asks for a map of each day, the day is a text
such as "2024-06-01". For other requests, the day is None."""


@dataclass(frozen=True, slots=True)
class AskedResult:
    """One result that a request asks for, with the output processor and the options that make it."""

    name: str
    """Name of the result: the kind of output if ``is_kind`` is True, else the name of the output processor."""
    processor: OutputProcessor
    params: OutputParams
    """Options of the request. If it asks for several kinds of output, ``params.output`` is the kind of this result."""
    is_kind: bool = False
    """True if the request asks a single processor for several kinds of output, and this result is one of them."""

    @property
    def formats(self) -> Mapping[str, str] | None:
        """Names of the result's file formats, by suffix, or None if the processor does not state them.

        Beside the default kind, other kinds leave out its formats: the file of the polygons is not another raster.
        """
        formats = formats_for(self.processor, self.params)
        if formats is None or not self.is_kind or self.name == self.processor.products[0]:
            return formats
        default = msgspec.structs.replace(self.params, output=None)
        taken = set((formats_for(self.processor, default) or {}).values())
        return {suffix: name for suffix, name in formats.items() if name not in taken}

    def suffix(self, asked: str | None) -> str:
        """Return the suffix of the result's file: ``asked`` if it is given and fits this result, else the default."""
        formats = self.formats or {"": ""}
        if asked is None or (self.is_kind and asked.lower() not in formats):
            return next(iter(formats))
        return asked


def asked_results(binding: Binding, params: OutputParams) -> tuple[AskedResult, ...]:
    """Return the results that a request asks for, in the order of the request's processors or kinds of output."""
    processor_names = binding.choice.pick(params.processor)
    if not isinstance(params.output, tuple):
        return tuple(AskedResult(name, binding.processors[name], params) for name in processor_names)
    processor = binding.processors[processor_names[0]]
    return tuple(
        AskedResult(kind, processor, msgspec.structs.replace(params, output=kind), is_kind=True)
        for kind in params.output
    )


def check_suffix_of(results: Sequence[AskedResult], path: PurePath, hint: str = "") -> None:
    """Raise SaveError if the results cannot be saved with the suffix of ``path``.

    The result of each processor must support the suffix. If the request asks for several kinds of output, one kind
    must.
    """
    formats = [result.formats for result in results]
    lacking = [known for known in formats if known is not None and format_of_file(path, known) is None]
    if not lacking or (results[0].is_kind and len(lacking) < len(results)):
        return
    raise unknown_suffix(path, dict.fromkeys(chain(*lacking) if results[0].is_kind else lacking[0]), hint)


def make_kinds(results: Sequence[AskedResult], output: Any, source: Source) -> dict[str, Any]:
    """Convert a processor's ``output`` to each kind that the request asks for. Return the results by name.

    ``source`` describes the input.
    """
    made: dict[str, Any] = {}
    for result in results:
        kind = result.processor.product(output, result.name, result.params, source)
        if isinstance(kind, MediaOutput):
            kind.assumed = output.assumed
        elif hasattr(kind, "placed"):
            kind = kind.placed(source)
        made[result.name] = kind
    return made
