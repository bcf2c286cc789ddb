"""`OutputParams`: all options of a request, with the same names in Python, over HTTP and on the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any

import msgspec

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import area_json, area_text, as_window
from vllm_mmout.messages import unknown
from vllm_mmout.option import Option, options_of, said
from vllm_mmout.params.mosaics import MosaicOptions
from vllm_mmout.params.reading import OF_MODELS

LOCAL_ONLY = frozenset({"path", "sampling", "grid", "chunk_seconds", "stac_item"})
"""Names of the options that apply only in the process that made the request. They are not sent to an engine, and HTTP
clients cannot set them."""

STAYS = LOCAL_ONLY | {"partial_images", "aoi", "aoi_crs"}
"""Names of the options that stay in the frontend process. They are not sent to the engine.

Requests that differ only in these options can share a batch."""


class OutputParams(MosaicOptions, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Options of a request: which output it asks for, and how its input is read and processed.

    Raises:
        OptionError: a value has the wrong type or is out of range.

    """

    simplify: Annotated[
        float | None,
        said(
            "largest distance by which borders of polygons may move to remove corners. By default they follow the"
            " pixels.",
            ge=0,
            unit="pixels",
        ),
    ] = None
    partial_images: Annotated[
        int,
        said(
            "number of preview pictures while a scene is processed, evenly spread over its tiles. Unfinished parts are"
            " transparent. Inputs that fit one forward pass have no previews, nor have processors that do not join"
            " rasters; with several processors, the first one's result is shown. `AsyncLLM.generate` yields previews in"
            " its progress reports. For a model that generates pictures as tokens, they are spread over the rows, are"
            " sent in ``updates`` of its answers, and are grey where unfinished.",
            ge=0,
            le=3,
        ),
    ] = 0
    chunk_seconds: Annotated[
        float | None,
        said(
            "least length of the chunks of sound that `AsyncLLM.generate` yields while a model generates sound as"
            " tokens. By default the whole sound is returned at once.",
            ge=0.001,
            unit="seconds",
        ),
    ] = None
    sampling: Annotated[
        Any, said("vLLM's `SamplingParams`, for models that generate tokens; None for the default.")
    ] = None
    grid: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=1)], Annotated[int, msgspec.Meta(ge=1)]] | None,
        said(
            "rows and columns of codes in the pictures that a model generates, with the outputs media and mixed, or"
            " with partial_images. By default those of the model's layout."
        ),
    ] = None
    path: Annotated[
        str | None,
        said(
            "file or folder for the result, also in a bucket; only in Python. ``outputs.path`` is the path of the file."
        ),
    ] = None
    stac_item: Annotated[
        bool,
        said(
            "writes a STAC item, NAME.json, and a thumbnail beside the GeoTIFF of the result; only in Python and on the"
            ' command line, with path. Needs the extra "stac".'
        ),
    ] = False

    def __post_init__(self) -> None:
        for name in (
            "processor",
            "output",
            "bands",
            "indices",
            "scale",
            "offset",
            "bbox",
            "grid",
            "mosaic_grid",
            *OF_MODELS,
        ):
            value = getattr(self, name)
            if isinstance(value, list):
                msgspec.structs.force_setattr(self, name, tuple(value))
        if isinstance(self.path, PurePath):
            msgspec.structs.force_setattr(self, "path", str(self.path))
        self._convert_area_and_window()
        for option in _CHOSEN:
            _check_chosen(option, getattr(self, option.name))
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
        self._check_mosaic()

    def _check_mosaic(self) -> None:
        self._check_mosaic_options()
        if self.mosaic is None:
            return
        remedies = {
            "window": "it counts the pixels of one input; use bbox",
            "location": "each input has its own; leave it out",
            "dates": "each input has its own; leave it out",
            "grid": "it is for pictures that a model generates; leave it out",
        }
        for name, remedy in remedies.items():
            if getattr(self, name) is not None:
                raise OptionError(f"{name} is set beside mosaic={self.mosaic!r}: {remedy}", param=name)
        if self.bbox is not None and self.bbox_crs is None:
            message = 'bbox of a mosaic needs bbox_crs, such as "EPSG:4326", as its inputs may be in several systems'
            raise OptionError(message, param="bbox_crs")
        if self.partial_images:
            raise OptionError(
                "partial_images shows one scene, and a mosaic has several; leave one of them out",
                param="partial_images",
            )
        if isinstance(self.processor, tuple):
            raise OptionError("a mosaic takes one processor, not a list; send a request for each", param="processor")

    def _convert_area_and_window(self) -> None:
        """Convert ``aoi`` to GeoJSON text, and ``window`` to a `Window`."""
        if self.aoi is not None:
            msgspec.structs.force_setattr(self, "aoi", area_text(self.aoi, self.aoi_crs))
        if self.window is not None:
            try:
                msgspec.structs.force_setattr(self, "window", as_window(self.window))
            except InputError as error:
                raise OptionError(str(error), param="window") from None

    @property
    def part(self) -> bool:
        """True if these are the options for one part of a larger request, such as a tile."""
        return False

    @property
    def blends(self) -> bool:
        """True if the request is for one tile, and the pixels of overlapping tiles will be averaged."""
        return self.part and self.overlap > 0 and self.blend != "none"

    @property
    def of_run(self) -> OutputParams:
        """Options for running the model. If several kinds of output are requested, only the default kind is computed.

        The other kinds are converted from the output of the default kind.
        """
        return msgspec.structs.replace(self, output=None) if isinstance(self.output, tuple) else self

    def of_part(self, **changes: Any) -> OutputParams:
        """Return a copy of the options for one part of the request, such as a tile.

        ``changes`` are new values of options.
        """
        return _PartParams(**{**msgspec.structs.asdict(self.of_run), **changes})

    def to_wire(self) -> dict[str, Any]:
        """Return the options that the engine needs, as a dict of built-in types. Default values are left out."""
        return {name: value for name, value in self.of_run.to_mapping().items() if name not in STAYS}

    def to_mapping(self) -> dict[str, Any]:
        """Return the options as a dict of built-in types. Default values and options in `LOCAL_ONLY` are left out."""
        plain: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(self, sampling=None))
        # msgspec omits a text only if it is the default object itself, so equal unpickled texts are left out here.
        names = [key for key in plain if key not in LOCAL_ONLY and getattr(self, key) != OPTIONS[key].default]
        return {key: plain[key] for key in names} | ({_PART: True} if self.part else {})

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> OutputParams:
        """Create the options from plain data, as returned by `to_mapping` and `to_wire`.

        The data may come from the network, so an ``aoi`` must be JSON, not the path of a file.
        """
        names = [name for name in OPTIONS if name not in LOCAL_ONLY]
        for name in options:
            if name not in names and name != _PART:
                raise unknown(name, names)
        if options.get(_PART, False) not in {True, False}:
            raise OptionError(f"{_PART} must be true or false, got {options[_PART]!r}", param=_PART)
        given = {name: value for name, value in options.items() if name != _PART}
        if given.get("aoi") is not None:
            given["aoi"] = area_json(given["aoi"])
        params = cls(**given)
        return params.of_part() if options.get(_PART) else params


class _PartParams(OutputParams, frozen=True, kw_only=True):
    """Options for one part of a user's request, such as a tile."""

    @property
    def part(self) -> bool:
        return True


def _check_chosen(option: Option, value: Any) -> None:
    """Raise OptionError if ``value`` is not among the choices of ``option``.

    The value None is allowed if None is the default of the option.
    """
    if value is not None or option.default is not None:
        option.checked(value)


_PART = "part"
OPTIONS = options_of(OutputParams)
"""Maps names of options to their declarations."""
_CHOSEN = [option for option in OPTIONS.values() if option.choices]
_BOUNDED = [option for option in OPTIONS.values() if option.bounded]
_Checked = msgspec.defstruct(
    "_Checked",
    [(option.name, option.hint | None if option.default is None else option.hint) for option in OPTIONS.values()],
    kw_only=True,
)
"""Struct for checking the types of options. It has the fields of `OutputParams`.

msgspec checks types when it converts a dict to a struct, but not in the constructor of a struct."""
OutputParams.__doc__ = "\n".join(
    [*(OutputParams.__doc__ or "").splitlines()[:2], "    Args:"]
    + [f"        {option.name}: {option.meta.description}" for option in OPTIONS.values()]
    + ["", *(OutputParams.__doc__ or "").splitlines()[2:]]
)
