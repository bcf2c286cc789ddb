"""OutputParams: the options of one request, the same names in Python, over HTTP and on the command line."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from vllm_mmout.errors import OptionError

LOCAL_ONLY = frozenset({"path"})
"""Options that name something on this machine: they never travel to an engine and are refused from the network."""


class OutputParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What one request asks of the output, and how its input is to be read.

    Args:
        processor: name of the output processor to use, or several names; a request with several gets a dict of
            results by name in the order asked, from one run of the model. None: the model's first.
        output: what a processor with a choice returns; segmentation has "classes", "probabilities", "confidence".
        bands: bands of the input to feed, in the model's order: numbers from 1 as in rasterio and GDAL, or band
            descriptions; a band may repeat.
        indices: the same as ``bands`` but counted from 0, as clients of TerraTorch send it; not with ``bands``.
        nodata: value of the input that means "no observation", instead of the file's own.
        overlap: pixels that neighbouring tiles share; an input that fits one forward has no tile borders.
        path: file or folder to write the result to (Python and command line only); ``outputs.path`` names the file.

    Raises:
        OptionError: a value has the wrong type or is out of range.

    """

    processor: str | tuple[str, ...] | None = None
    output: str | None = None
    bands: tuple[int | str, ...] | None = None
    indices: tuple[int, ...] | None = None
    nodata: float | None = None
    overlap: int = 0
    path: str | None = None

    def __post_init__(self) -> None:
        for name in ("processor", "bands", "indices"):
            value = getattr(self, name)
            if isinstance(value, list):
                msgspec.structs.force_setattr(self, name, tuple(value))
        if isinstance(self.path, Path):
            msgspec.structs.force_setattr(self, "path", str(self.path))
        try:
            msgspec.convert(msgspec.structs.asdict(self), _Checked)
        except msgspec.ValidationError as error:
            raise OptionError(f"OutputParams: {error}") from None
        self._check_ranges()

    def _check_ranges(self) -> None:
        if self.bands is not None and self.indices is not None:
            raise OptionError("bands and indices are both set; give one: bands counts from 1, indices from 0")
        if self.bands is not None and not self.bands:
            raise OptionError("bands is empty; name at least one band, or leave it out")
        for band in self.bands or ():
            if isinstance(band, int) and band < 1:
                raise OptionError(f"bands must count from 1, got {band}; to count from 0 use indices")
        for index in self.indices or ():
            if index < 0:
                raise OptionError(f"indices must count from 0, got {index}")
        if self.overlap < 0:
            raise OptionError(f"overlap must be 0 or more pixels, got {self.overlap}")
        self._check_picks()

    def _check_picks(self) -> None:
        if isinstance(self.processor, tuple):
            if not self.processor:
                raise OptionError("processor is an empty list; name at least one output processor, or leave it out")
            if len(set(self.processor)) < len(self.processor):
                raise OptionError(f"processor names one output processor twice: {list(self.processor)}")

    @property
    def picks(self) -> tuple[str, ...] | None:
        """The processors asked for by name, None for the model's first."""
        return (self.processor,) if isinstance(self.processor, str) else self.processor

    def to_wire(self) -> dict[str, Any]:
        """The options that travel with the request, as plain data without those left at their default."""
        wire: dict[str, Any] = msgspec.to_builtins(self)
        return {key: value for key, value in wire.items() if key not in LOCAL_ONLY}

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any], *, local: bool = False) -> OutputParams:
        """Make the params from plain data of a client.

        Args:
            options: option names to values.
            local: whether the options come from this machine's user; only then may they name a ``path``.

        Raises:
            OptionError: an option is unknown (the known ones are listed) or has a wrong value.

        """
        known = [name for name in cls.__struct_fields__ if local or name not in LOCAL_ONLY]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise OptionError(f"unknown option {name!r}{hint} (known: {', '.join(known)})")
        return cls(**options)


class _Checked(msgspec.Struct, kw_only=True):
    """The types of OutputParams, checked strictly: msgspec checks types when it converts, not in constructors."""

    processor: str | tuple[str, ...] | None
    output: str | None
    bands: tuple[int | str, ...] | None
    indices: tuple[int, ...] | None
    nodata: float | None
    overlap: int
    path: str | None
