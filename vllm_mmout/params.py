"""OutputParams: the options of one request, the same names in Python, over HTTP and on the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any

import msgspec

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import as_window
from vllm_mmout.messages import unknown
from vllm_mmout.params_parts import OF_MODELS, Tiling
from vllm_mmout.request_options import options_of, said

LOCAL_ONLY = frozenset({"path", "sampling", "grid", "chunk_seconds"})
"""Options that are of this process alone: they never travel to an engine and are refused from the network."""

STAYS = LOCAL_ONLY | {"partial_images"}
"""Options that no engine needs to know: requests that differ in them alone are of one batch."""


class OutputParams(Tiling, frozen=True, kw_only=True):
    """What one request asks of the output, and how its input is to be read.

    Raises:
        OptionError: a value has the wrong type or is out of range.

    """

    simplify: Annotated[
        float | None,
        said(
            "how far borders of polygons may move to have fewer corners. By default they follow the pixels.",
            ge=0,
            unit="pixels",
        ),
    ] = None
    partial_images: Annotated[
        int,
        said(
            "pictures of the result that come before it while a scene grows, evenly spread over its tiles. What is not"
            " finished is transparent. Inputs that fit one forward have none, nor do processors that join no rasters;"
            " of several picks it is the first's. `AsyncLLM.generate` yields them in reports of its progress. Where a"
            " model generates pictures as tokens they are spread over the rows, come in ``updates`` of its answers, and"
            " have grey for what is not finished.",
            ge=0,
            le=3,
        ),
    ] = 0
    chunk_seconds: Annotated[
        float | None,
        said(
            "of a model that generates a sound as tokens: least length of the chunks that `AsyncLLM.generate` yields"
            " while the tokens come. By default a sound comes whole.",
            ge=0.001,
            unit="seconds",
        ),
    ] = None
    sampling: Annotated[Any, said("vLLM's `SamplingParams`, for models that generate tokens; by default theirs.")] = (
        None
    )
    grid: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=1)], Annotated[int, msgspec.Meta(ge=1)]] | None,
        said(
            "rows and columns of codes of the pictures that a model generates, with output media or mixed, or with"
            " partial_images. By default those of the model's layout."
        ),
    ] = None
    path: Annotated[
        str | None,
        said(
            "file or folder to write the result to, also in a bucket, in Python alone; ``outputs.path`` names the file."
        ),
    ] = None

    def __post_init__(self) -> None:
        for name in ("processor", "bands", "indices", "scale", "offset", "bbox", "grid", *OF_MODELS):
            value = getattr(self, name)
            if isinstance(value, list):
                msgspec.structs.force_setattr(self, name, tuple(value))
        if isinstance(self.path, PurePath):
            msgspec.structs.force_setattr(self, "path", str(self.path))
        if self.window is not None:
            try:
                msgspec.structs.force_setattr(self, "window", as_window(self.window))
            except InputError as error:
                raise OptionError(str(error), param="window") from None
        for option in _CHOSEN:
            option.checked(getattr(self, option.name))
        try:
            msgspec.convert({**msgspec.structs.asdict(self), "sampling": None, "window": None}, _Checked)
        except msgspec.ValidationError as error:
            place = re.search(r"\$\.(\w+)", str(error))
            raise OptionError(f"OutputParams: {error}", param=place and place[1]) from None
        for option in _BOUNDED:
            if getattr(self, option.name) is not None:
                option.checked(getattr(self, option.name))
        self._check_bands()
        self._check_values()
        self._check_place()
        self._check_steps()
        self._check_tiles()
        self._check_picks()

    @property
    def part(self) -> bool:
        """Whether the request is one part, a tile, of several."""
        return False

    @property
    def blends(self) -> bool:
        """Whether the output of this request is averaged with its neighbours' before the result is made of it."""
        return self.part and self.overlap > 0 and self.blend != "none"

    def of_part(self, **changes: Any) -> OutputParams:
        """The same of one part of the request, with other values of some options."""
        return _PartParams(**{**msgspec.structs.asdict(self), **changes})

    def to_wire(self) -> dict[str, Any]:
        """The options that travel with the request, as plain data without those left at their default."""
        wire: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(self, sampling=None))
        # msgspec leaves out texts that are the default object itself, which those that were unpickled are not.
        said = [key for key in wire if key not in STAYS and getattr(self, key) != OPTIONS[key].default]
        return {key: wire[key] for key in said} | ({_PART: True} if self.part else {})

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> OutputParams:
        """Make the params from plain data, as `to_wire` gives it."""
        known = [name for name in OPTIONS if name not in LOCAL_ONLY]
        for name in options:
            if name not in known and name != _PART:
                raise unknown(name, known)
        if options.get(_PART, False) not in {True, False}:
            raise OptionError(f"{_PART} must be true or false, got {options[_PART]!r}", param=_PART)
        params = cls(**{name: value for name, value in options.items() if name != _PART})
        return params.of_part() if options.get(_PART) else params


class _PartParams(OutputParams, frozen=True, kw_only=True):
    """The params of one part of a request, which the engine makes."""

    @property
    def part(self) -> bool:
        """It is one."""
        return True


_PART = "part"
OPTIONS = options_of(OutputParams)
"""All options by name."""
_CHOSEN = [option for option in OPTIONS.values() if option.choices]
_BOUNDED = [option for option in OPTIONS.values() if option.bounded]
_Checked = msgspec.defstruct(
    "_Checked",
    [(option.name, option.hint | None if option.default is None else option.hint) for option in OPTIONS.values()],
    kw_only=True,
)
"""The types of OutputParams, checked strictly: msgspec checks types when it converts, not in constructors."""
OutputParams.__doc__ = "\n".join(
    [*(OutputParams.__doc__ or "").splitlines()[:2], "    Args:"]
    + [f"        {option.name}: {option.meta.description}" for option in OPTIONS.values()]
    + ["", *(OutputParams.__doc__ or "").splitlines()[2:]]
)
