"""OutputParams: the options of one request, the same names in Python, over HTTP and on the command line."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Literal

import msgspec

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.raster.window import Window, as_window

LOCAL_ONLY = frozenset({"path", "sampling"})
"""Options that are of this process alone: they never travel to an engine and are refused from the network."""

STAYS = LOCAL_ONLY | {"partial_images"}
"""Options that no engine needs to know: requests that differ in them alone are of one batch."""

OF_MODELS = ("location", "dates", "means", "stds")
"""Options that only some models take."""

BLENDS = ("cosine", "linear", "none")
"""How values are averaged where tiles overlap."""

MOST_PARTIAL_IMAGES = 3
"""As many pictures of a growing result as a request may ask for, as in OpenAI's interface."""

_FLOAT32 = (2.0**-149, (2 - 2.0**-23) * 2.0**127)
"""The smallest number and the largest that float32 has, above 0."""

RESAMPLINGS = ("nearest", "bilinear")
"""How bands of coarser pixels are brought to a finer grid."""


class OutputParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What one request asks of the output, and how its input is to be read.

    Args:
        processor: name of the output processor to use, or several names; a request with several gets a dict of
            results by name in the order asked, from one run of the model. None: the model's first.
        output: what a processor with a choice returns; segmentation has "classes", "probabilities",
            "confidence", "polygons", "areas". Of a model that generates tokens "none" leaves media tokens where they
            are: in the text, and not decoded.
        bands: bands of the input to feed, in the model's order: numbers from 1 as in rasterio and GDAL, or band
            descriptions; a band may repeat.
        indices: the same as ``bands`` but counted from 0, as clients of TerraTorch send it; not with ``bands``.
        nodata: value of the input that means "no observation", instead of the file's own.
        scale: what the input's values are multiplied by before the model sees them, one number or one a band. With
            ``scale`` or ``offset`` the model gets float32: value * scale + offset.
        offset: what is added to them, one number or one a band.
        window: the part of the input to use, a ``Window`` or (row, col, height, width) in pixels; the result lies on
            that part.
        bbox: the same as (west, south, east, north) in coordinates; every pixel that it touches is used. Not with
            ``window``.
        bbox_crs: coordinate system of ``bbox``, "EPSG:4326" (longitude, latitude) or another; None: the input's own.
        resampling: how bands of an input of several files are brought to the grid of the finest: "nearest" (the
            default) or "bilinear".
        location: latitude and longitude of the input's middle, in degrees, for models that take them; None: as its
            georeference says.
        dates: when each date of the input was taken, as ("2024-05-01",), for models that take them; None: as its
            metadata or its file's name says.
        means: what is subtracted of each band before the model sees it, instead of the model's own; after ``scale``.
        stds: what each band is divided by then.
        tile: side of the square tiles, in pixels, that an input larger than one tile is cut into; by default the
            model's own, and only for an input that is too large for one forward.
        overlap: pixels that neighbouring tiles share, at most half a tile. The outer quarter on either side, which a
            tile sees with little around it, counts nothing; the middle half is blended. An input that fits one forward
            has no tile borders.
        blend: how values are averaged where tiles overlap: weights along a "cosine" (the default) or "linear" ramp;
            "none" takes each pixel from the tile in whose middle it lies. Probabilities are averaged before the class
            is chosen; class ids of processors that know nothing else are taken as with "none".
        simplify: how far borders of polygons may move to have fewer corners, in pixels; None: they follow the pixels.
        partial_images: how many pictures of the result, 0 to 3, come before it while a scene grows, evenly spread over
            its tiles: `AsyncLLM.generate` yields them as ``outputs`` of reports of its progress. What is not finished
            is transparent. Inputs that fit one forward have none, nor do processors that join no rasters; of several
            picks it is the first's.
        sampling: vLLM's ``SamplingParams``, for models that generate tokens; None: the model's own.
        path: file or folder to write the result to (Python and command line only); ``outputs.path`` names the file.
        part: whether the request is one tile of several; the engine sets it on the requests that it makes of one.

    Raises:
        OptionError: a value has the wrong type or is out of range.

    """

    processor: str | tuple[str, ...] | None = None
    output: str | None = None
    bands: tuple[int | str, ...] | None = None
    indices: tuple[int, ...] | None = None
    nodata: float | None = None
    scale: float | tuple[float, ...] | None = None
    offset: float | tuple[float, ...] | None = None
    window: Window | None = None
    bbox: tuple[float, float, float, float] | None = None
    bbox_crs: str | None = None
    resampling: Literal["nearest", "bilinear"] = "nearest"
    location: tuple[float, float] | None = None
    dates: tuple[str, ...] | None = None
    means: tuple[float, ...] | None = None
    stds: tuple[float, ...] | None = None
    tile: int | None = None
    overlap: int = 0
    blend: Literal["cosine", "linear", "none"] = "cosine"
    simplify: float | None = None
    partial_images: int = 0
    sampling: Any = None
    path: str | None = None
    part: bool = False

    def __post_init__(self) -> None:
        for name in ("processor", "bands", "indices", "scale", "offset", "bbox", *OF_MODELS):
            value = getattr(self, name)
            if isinstance(value, list):
                msgspec.structs.force_setattr(self, name, tuple(value))
        if isinstance(self.path, Path):
            msgspec.structs.force_setattr(self, "path", str(self.path))
        if self.window is not None:
            try:
                msgspec.structs.force_setattr(self, "window", as_window(self.window))
            except InputError as error:
                raise OptionError(str(error), param="window") from None
        for name, known in (("blend", BLENDS), ("resampling", RESAMPLINGS)):
            if getattr(self, name) not in known:
                raise OptionError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}", param=name)
        try:
            msgspec.convert({**msgspec.structs.asdict(self), "sampling": None}, _Checked)
        except msgspec.ValidationError as error:
            place = re.search(r"\$\.(\w+)", str(error))
            raise OptionError(f"OutputParams: {error}", param=place and place[1]) from None
        self._check_ranges()

    def _check_ranges(self) -> None:
        if self.bands is not None and self.indices is not None:
            raise OptionError(
                "bands and indices are both set; give one: bands counts from 1, indices from 0", param="bands"
            )
        if self.bands is not None and not self.bands:
            raise OptionError("bands is empty; name at least one band, or leave it out", param="bands")
        for band in self.bands or ():
            if isinstance(band, int) and band < 1:
                raise OptionError(f"bands must count from 1, got {band}; to count from 0 use indices", param="bands")
        for index in self.indices or ():
            if index < 0:
                raise OptionError(f"indices must count from 0, got {index}", param="indices")
        if not 0 <= self.partial_images <= MOST_PARTIAL_IMAGES:
            raise OptionError(
                f"partial_images must be 0 to {MOST_PARTIAL_IMAGES}, got {self.partial_images}", param="partial_images"
            )
        self._check_what_is_said()
        self._check_tiles()
        self._check_box()
        self._check_picks()

    def _check_what_is_said(self) -> None:
        """Check what only some models take."""
        if self.location is not None:
            latitude, longitude = self.location
            if not (abs(latitude) <= 90 and abs(longitude) <= 180):
                raise OptionError(
                    f"location must be (latitude, longitude) in degrees, got {self.location}", param="location"
                )
        for day in self.dates or ():
            try:
                date.fromisoformat(day)
            except ValueError:
                raise OptionError(f'dates must be days such as "2024-05-01", got {day!r}', param="dates") from None
        for name, bad in (("means", ()), ("stds", (0.0,))):
            for number in getattr(self, name) or ():
                if not abs(number) <= _FLOAT32[1] or number in bad:
                    raise OptionError(
                        f"{name} must be finite{' and not 0' if bad else ''}, got {getattr(self, name)}", param=name
                    )

    def _check_tiles(self) -> None:
        if self.tile is not None and self.tile < 1:
            raise OptionError(f"tile must be 1 or more pixels, got {self.tile}", param="tile")
        if self.overlap < 0:
            raise OptionError(f"overlap must be 0 or more pixels, got {self.overlap}", param="overlap")
        if self.tile is not None and 2 * self.overlap > self.tile:
            raise OptionError(
                f"overlap must be at most half a tile, got {self.overlap} for tile={self.tile}", param="overlap"
            )
        window = self.window
        if window is not None and (min(window.row, window.col) < 0 or min(window.height, window.width) < 1):
            sides = (window.row, window.col, window.height, window.width)
            raise OptionError(
                f"window must be (row, col, height, width) with pixels in it, got {sides}", param="window"
            )
        self._check_scaling()

    def _check_scaling(self) -> None:
        smallest, largest = _FLOAT32
        for name, least in (("scale", smallest), ("offset", 0.0)):
            value = getattr(self, name)
            for number in value if isinstance(value, tuple) else () if value is None else (value,):
                if not least <= abs(number) <= largest:  # NaN is not
                    raise OptionError(
                        f"{name} must be finite{' and not 0' if least else ''} in float32, got {value}", param=name
                    )

    def _check_box(self) -> None:
        if self.simplify is not None and not 0 <= self.simplify < math.inf:
            raise OptionError(f"simplify must be 0 or more pixels, got {self.simplify}", param="simplify")
        if self.bbox is None:
            if self.bbox_crs is not None:
                raise OptionError(
                    f"bbox_crs is {self.bbox_crs!r} without bbox; give bbox=(west, south, east, north)", param="bbox"
                )
            return
        if self.window is not None:
            raise OptionError("window and bbox are both set; give one of them", param="bbox")
        west, south, east, north = self.bbox
        if not all(map(math.isfinite, self.bbox)) or south >= north or west == east:
            raise OptionError(
                f"bbox must be (west, south, east, north) with south below north, got {self.bbox}", param="bbox"
            )

    def _check_picks(self) -> None:
        if isinstance(self.processor, tuple):
            if not self.processor:
                raise OptionError(
                    "processor is an empty list; name at least one output processor, or leave it out", param="processor"
                )
            if len(set(self.processor)) < len(self.processor):
                raise OptionError(
                    f"processor names one output processor twice: {list(self.processor)}", param="processor"
                )

    @property
    def picks(self) -> tuple[str, ...] | None:
        """The processors asked for by name, None for the model's first."""
        return (self.processor,) if isinstance(self.processor, str) else self.processor

    @property
    def blends(self) -> bool:
        """Whether the output of this request is averaged with its neighbours' before the result is made of it."""
        return self.part and self.overlap > 0 and self.blend != "none"

    @property
    def reads(self) -> tuple[str, ...]:
        """The options set here that say how a raster is read and cut."""
        names = ("bands", "indices", "nodata", "scale", "offset", "window", "bbox", *OF_MODELS, "tile")
        return tuple(name for name in names if getattr(self, name) is not None)

    def to_wire(self) -> dict[str, Any]:
        """The options that travel with the request, as plain data without those left at their default."""
        wire: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(self, sampling=None))
        return {key: value for key, value in wire.items() if key not in STAYS}

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
                raise OptionError(f"unknown option {name!r}{hint} (known: {', '.join(known)})", param=str(name))
        return cls(**options)


_Checked = msgspec.defstruct(
    "_Checked", [(field.name, field.type) for field in msgspec.structs.fields(OutputParams)], kw_only=True
)
"""The types of OutputParams, checked strictly: msgspec checks types when it converts, not in constructors."""
